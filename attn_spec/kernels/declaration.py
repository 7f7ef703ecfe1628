"""Declaration of a function as a kernel: the decorator, the reading of an undecorated callable, and the checks."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.coverage import silences
from attn_spec.contract.presets import UNDECLARED, as_contract
from attn_spec.kernels.argument_names import is_number
from attn_spec.kernels.destinations import SPELLINGS, required
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.kernel import DECLARABLE, FOUND, Kernel, KernelError, parameters_of
from attn_spec.kernels.limits import MEASURED, Limits
from attn_spec.kernels.presentations import PRESENTATIONS
from attn_spec.kernels.signatures.signature import Signature
from attn_spec.kernels.signed import adapted, named_row, with_row
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import DTYPES, FORMATS
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.conventions import ConventionError, Conventions, of_call, of_kernel
from attn_spec.problem.dtypes import INPUTS, dtype_of, refusal
from attn_spec.problem.options import OPTIONS, parameters, with_parameters

#: Declarations that are sequences of names.
LISTS = {"devices", "always"}
#: Dtypes of the integers that say where sequences lie.
INDEX_DTYPES = ("int32", "int64")


def kernel(
    *bare: Any,
    framework: str | None = None,
    dtypes: Iterable[str] | None = None,
    contract: str | Contract | Mapping[str, str | Contract] = "fused",
    supports: Iterable[str] = (),
    conventions: Mapping[str, Any] | Conventions | None = None,
    name: str | None = None,
    signature: str | None = None,
    **facts: Any,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a function as a kernel, which needs ``framework`` and ``dtypes``, unless ``signature`` gives them.

    Raises :class:`KernelError` for a declaration without these, for a bare ``@kernel``, and for an unknown name.

    A presentation that carries options, such as lengths of sequences, implies these in ``supports``. ``facts`` are the
    fields of :class:`Limits` and the fields of :class:`Kernel` that are no arguments here, except those in
    ``kernel.FOUND``.

    ``signature`` names a library's function, with whose parameters the function is then called. It gives every fact
    that is not declared, and the options that the function's parameters say; ``supports`` has further abilities.
    """
    if signature is not None and not bare:
        declared = {"framework": framework, "dtypes": dtypes, "contract": contract, "conventions": conventions}
        return _of_signature(named_row(signature), supports, {**declared, "name": name, **facts})
    if bare or framework is None or dtypes is None:
        raise KernelError(
            '@kernel needs framework and dtypes: write @kernel(framework="numpy", dtypes=["float32"]); '
            "a function without @kernel is examined too, its options read from its signature"
        )
    _check_lists(dtypes=dtypes, supports=supports, **{name: facts[name] for name in LISTS & set(facts)})

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(
            function=function,
            name=name or _default_name(function),
            framework=framework,
            dtypes=tuple(dtypes),
            contract=_contracts(contract),
            supports=(named := frozenset(supports)) | _carried(facts.get("presentation"), named),
            conventions=_conventions(conventions or {}),
            module=getattr(function, "__module__", None) or "",
            **_with_limits(facts | _option_dtypes(facts)),
        )
        _check(declared)
        return declared

    return declare


def from_callable(function: Callable[..., Any], **declared: Any) -> Kernel:
    """Return a kernel made of an undecorated callable: its signature gives the options, defaults give the rest.

    The contract is ``contract.UNDECLARED``, the loosest, since the callable declares nothing. For the same reason the
    output and the LSE of a query that sees no key are left open. ``declared`` overrides any argument of :func:`kernel`;
    ``without`` names options that the callable lacks. Preflight finds shape abilities (gqa, dv, cross, empty) by calls.
    Raises :class:`KernelError`.
    """
    without = set(declared.pop("without", ()))
    if unknown := sorted(without - set(DECLARABLE)):
        raise KernelError(f"unknown options {', '.join(unknown)} to leave out{suggestion(unknown[0], DECLARABLE)}")
    if declared.get("signature"):
        return _undeclared_of_signature(function, without, **declared)
    parameters = parameters_of(function)
    framework = declared.get("framework") or _framework_of(function, declared.get("name") or _default_name(function))
    try:
        dtypes = frameworks.framework(framework).usual
    except frameworks.FrameworkError as error:
        raise KernelError(str(error)) from error
    count = len(PRESENTATIONS.get(declared.get("presentation", "BHSD"), PRESENTATIONS["BHSD"]).tensors)
    destinations = required(parameters, count)
    named = {option for option, row in OPTIONS.items() if set(row.spellings) & set(parameters)}
    supports = {option for option in named if not OPTIONS[option].of or OPTIONS[option].of in named}
    supports |= {"lse"} & set(destinations)
    defaults = {"framework": framework, "dtypes": dtypes, "contract": UNDECLARED, "supports": supports}
    defaults |= {"destinations": destinations} if destinations else {}
    given = {key: value for key, value in declared.items() if value}
    given["supports"] = supports - without | set(given.get("supports", ()))
    return undeclared(kernel(**{**defaults, **given})(function), given.get("conventions", {}))


def _of_signature(
    row: Signature, supports: Iterable[str], declared: Mapping[str, Any]
) -> Callable[[Callable[..., Any]], Kernel]:
    """Return the decorator that declares a function with a library's signature."""
    _check_lists(supports=supports)
    abilities = frozenset(supports)

    def declare(function: Callable[..., Any]) -> Kernel:
        called = adapted(function, row, lse="lse" in abilities)
        named = {"name": declared["name"] or _default_name(function), "supports": abilities | called.options}
        made = kernel(**with_row(row, called, {**declared, **named}))(called)
        return replace(made, signature=row.name)

    return declare


def _undeclared_of_signature(
    function: Callable[..., Any], without: set[str], *, signature: str, **declared: Any
) -> Kernel:
    """Return the kernel of an undecorated callable with a library's signature, which gives what it would declare."""
    row = named_row(signature)
    called = adapted(function, row, lse="lse" not in without)
    given = {key: value for key, value in declared.items() if value}
    supports = called.options - without | set(given.pop("supports", ()))
    named = {"contract": UNDECLARED, "name": _default_name(function), **given, "supports": supports}
    framework = given.get("framework") or row.framework
    named.setdefault("dtypes", frameworks.framework(framework).usual)
    made = kernel(**with_row(row, called, named))(called)
    return replace(undeclared(made, {**row.conventions, **given.get("conventions", {})}), signature=signature)


def undeclared(made: Kernel, named: Mapping[str, Any] | Conventions) -> Kernel:
    """Return the kernel of an undecorated callable, for which only the conventions in ``named`` were declared."""
    conventions = named if isinstance(named, Conventions) else of_call(named)
    return replace(made, declared=False, conventions=conventions)


def default_name(stem: str, name: str) -> str:
    """Return the default name of a kernel, made of its module's name ``stem`` and its own name."""
    return stem if name == "attention" else f"{stem}:{name}"


def _default_name(function: Callable[..., Any]) -> str:
    stem = getattr(function, "__module__", "kernel").rpartition(".")[2]
    return default_name(stem, getattr(function, "__name__", type(function).__name__))


def _framework_of(function: Callable[..., Any], name: str) -> str:
    """Return the framework that the function's module imports, or imports a name from; NumPy if it imports no other.

    Raises :class:`KernelError`, with the kernel's ``name``, if the module imports two frameworks beside NumPy.
    """
    called = inspect.unwrap(getattr(function, "func", function))  # the function inside a functools.partial
    scope = getattr(called, "__globals__", None) or getattr(type(called).__call__, "__globals__", {})
    imported = {_package_of(value) for value in scope.values()}
    found = [name for name in frameworks.known() if name in imported and name != "numpy"]
    if len(found) > 1:
        raise KernelError(
            f"the module of {name} imports {' and '.join(found)}; say whose tensors it takes: "
            f"--framework {found[0]}, or framework={found[0]!r}"
        )
    return found[0] if found else "numpy"


def _package_of(value: Any) -> str:
    """Return the package of a global: a module, an object that a module defines, or an object whose type it defines."""
    owner = getattr(value, "__self__", None)  # C functions such as torch.matmul name no module
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    found = module or type(value if owner is None else owner).__module__
    return str(found).partition(".")[0].removesuffix("lib")  # jaxlib holds the arrays of jax


def _check_lists(**lists: Any) -> None:
    """Raise :class:`KernelError` if a sequence of names is a text, which would be read letter by letter."""
    for name, value in lists.items():
        if isinstance(value, str):
            raise KernelError(f"{name} must be several names, ({value!r},), not the text {value!r}")


def _with_limits(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a kernel, with the facts about limits gathered in ``limits``."""
    limits = [item.name for item in fields(Limits)]
    known = [*(item.name for item in fields(Kernel) if item.name not in FOUND), *limits]
    if unknown := sorted(set(facts) - set(known)):
        near = suggestion(unknown[0], known, f"; known are {', '.join(known)}")
        raise KernelError(f"unknown argument {unknown[0]} in the declaration of a kernel{near}")
    own = set(limits) & set(facts)
    try:
        stated = Limits(**{name: facts[name] for name in own})
        stated = replace(stated, always=with_parameters(stated.always))
        return {"limits": stated, **{name: value for name, value in facts.items() if name not in own}}
    except TypeError as error:
        raise KernelError(str(error)) from error


def _carried(presentation: Any, supports: Iterable[str]) -> frozenset[str]:
    """Return the options and abilities that every call in a presentation has; none if it does not exist.

    Rotary positions that a call passes in tables are those of tables too.
    """
    row = PRESENTATIONS.get(presentation)
    if row is None:
        return frozenset()
    passes_tables = "rotary" in row.passes and "rotary" in supports
    return row.carries | row.asks_for | ({"rotary_from_tables"} if passes_tables else set())


def _option_dtypes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dtypes of options that are declared, with those that the presentation implies."""
    row, declared = PRESENTATIONS.get(facts.get("presentation", "BHSD")), facts.get("option_dtypes", {})
    if row is None or not row.option_dtypes or not isinstance(declared, Mapping):
        return {}
    return {"option_dtypes": {**row.option_dtypes, **declared}}


def _contracts(declared: str | Contract | Mapping[str, str | Contract]) -> Contract | dict[str, Contract]:
    try:
        if isinstance(declared, Mapping):
            return {dtype: as_contract(contract) for dtype, contract in declared.items()}
        return as_contract(declared)
    except ContractError as error:
        raise KernelError(str(error)) from error


def _conventions(declared: Mapping[str, Any] | Conventions) -> Conventions:
    try:
        return of_kernel(declared)
    except ConventionError as error:
        raise KernelError(str(error)) from error


def _check(declared: Kernel) -> None:
    parameters_of(declared.function)  # raises here rather than at the first call
    if unknown := sorted(declared.supports.union(declared.limits.always, *declared.limits.exclusive) - set(DECLARABLE)):
        raise KernelError(
            f"{declared.name} declares unknown options {', '.join(unknown)}; known are {', '.join(DECLARABLE)}"
        )
    if unknown := sorted(set(declared.dtypes) - set(DTYPES)):
        raise KernelError(
            f"{declared.name} declares unknown dtypes {', '.join(unknown)}; known are {', '.join(DTYPES)}"
        )
    if isinstance(declared.contract, Mapping) and (missing := set(declared.dtypes) - set(declared.contract)):
        raise KernelError(f"{declared.name} declares no contract for {', '.join(sorted(missing))}; add one for each")
    if not declared.dtypes:
        raise KernelError(f"{declared.name} declares no dtypes; known are {', '.join(DTYPES)}")
    _check_contracts(declared)
    if declared.signatures is not None and not _is_count(declared.signatures):
        raise KernelError(f"{declared.name}: signatures must be None or at least 1, not {declared.signatures!r}")
    if not declared.slowness > 0:
        raise KernelError(f"{declared.name}: slowness must be more than 0, not {declared.slowness!r}")
    _check_options(declared)
    _check_defects(declared)
    for name, value, allowed in (
        ("framework", declared.framework, frameworks.known()),
        ("presentation", declared.presentation, PRESENTATIONS),
        ("merge", declared.merge or "mask", ("mask", "bias")),
    ):
        if value not in allowed:
            raise KernelError(f"{declared.name}: {name} must be one of {', '.join(allowed)}, not {value!r}")
    _check_presentation(declared)
    _check_destinations(declared)
    _check_limits(declared)


def _check_destinations(declared: Kernel) -> None:
    """Raise :class:`KernelError` unless destinations are parameters of the function, for results that it has."""
    given = declared.destinations
    if not isinstance(given, Mapping) or set(given) - set(SPELLINGS):
        raise KernelError(f"{declared.name}: destinations must be of {', '.join(SPELLINGS)}, not {given!r}")
    if "lse" in given and "lse" not in declared.supports:
        raise KernelError(f"{declared.name}: destinations has lse, which supports has not; declare both")
    parameters = declared.parameters
    takes_any = declared.builds or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if unknown := [name for name in given.values() if name not in parameters and not takes_any]:
        raise KernelError(f"{declared.name}: destinations names {unknown[0]}, which is no parameter of the function")


def _check_presentation(declared: Kernel) -> None:
    """Raise :class:`KernelError` if calls in the presentation cannot pass what the kernel declares."""
    shown = PRESENTATIONS[declared.presentation]
    if unsaid := sorted(name for name in declared.supports if not shown.can_say(name)):
        raise KernelError(
            f"{declared.name}: a call in the presentation {declared.presentation} cannot pass {unsaid[0]}, "
            f"{shown.refusal(unsaid[0])}; leave {unsaid[0]} out of supports"
        )
    if declared.merge is not None and not shown.can_say(declared.merge):
        raise KernelError(
            f"{declared.name}: a call in the presentation {declared.presentation} cannot pass a {declared.merge}, into "
            "which merge= writes other options; leave merge out"
        )
    parameters = declared.parameters
    takes_any = declared.builds or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for option, arguments in shown.passes.items():
        missing = [name for name in arguments if name not in parameters and not takes_any]
        if option in declared.supports and missing:
            raise KernelError(
                f"{declared.name}: a call in the presentation {declared.presentation} passes {option} in "
                f"{', '.join(arguments)}, and the function has no parameter {missing[0]}; add it, or leave {option} out"
            )
    if "states" in shown.carries and declared.conventions.lse_base != "e":
        _check_base(declared)
    of_heads = sorted({"gqa", "query_projection"} & declared.supports)
    if of_heads and shown.of_one_head:
        raise KernelError(
            f"{declared.name} is given one head at a time, so it cannot declare {of_heads[0]}; leave {of_heads[0]} out"
        )


def _check_base(declared: Kernel) -> None:
    """Raise :class:`KernelError` if a contract does not count that log-sum-exps of states are divided by ln 2."""
    for dtype in declared.dtypes:
        contract, given = declared.contract_for(dtype), FORMATS[dtype_of(declared.dtypes_at(dtype), "bias")]
        if not contract.base2 or contract.stages.score_accumulation.u < given.unit_roundoff:
            raise KernelError(
                f"{declared.name}: log-sum-exps of base 2 are rounded to {given.name} as they are handed over, and the "
                f"contract at {dtype} counts no such rounding; declare an exponent of base 2, and "
                "option_dtypes={'bias': ..} as wide as its work"
            )


def _check_contracts(declared: Kernel) -> None:
    """Raise :class:`KernelError` if a contract has no theorem for an option that the kernel declares."""
    for dtype in declared.dtypes:
        contract = declared.contract_declared(dtype)
        try:
            declared.contract_for(dtype)
        except ContractError as error:
            raise KernelError(f"{declared.name}: {error}") from error
        for silence in silences(contract):
            if silence.option in declared.supports:
                raise KernelError(
                    f"{declared.name}: {silence.words(contract)}; declare another contract, or leave "
                    f"{silence.option} out of supports"
                )


def _check_options(declared: Kernel) -> None:
    for name in declared.supports & set(OPTIONS):
        needed = {row.name for row in parameters(name) if not row.optional}
        if missing := sorted(needed - declared.supports):
            raise KernelError(
                f"{declared.name} declares {name}, but not {', '.join(missing)}, which {name} needs; declare both"
            )
    _check_owners(declared)
    if not isinstance(declared.option_dtypes, Mapping):
        raise KernelError(f"{declared.name}: option_dtypes must be a mapping, not {declared.option_dtypes!r}")
    if (reason := refusal({INPUTS: declared.dtypes[0], **declared.option_dtypes})) is not None:
        raise KernelError(f"{declared.name}: option_dtypes {reason}")
    _check_index_dtypes(declared)


def _check_index_dtypes(declared: Kernel) -> None:
    """Raise :class:`KernelError` unless ``index_dtypes`` has dtypes of integers, for arrays of a call."""
    if not isinstance(declared.index_dtypes, Mapping):
        raise KernelError(f"{declared.name}: index_dtypes must be a mapping, not {declared.index_dtypes!r}")
    known = PRESENTATIONS[declared.presentation].says_where if declared.presentation in PRESENTATIONS else ()
    for argument, dtype in declared.index_dtypes.items():
        if argument not in known or is_number(argument):
            own = ", ".join(name for name in known if not is_number(name)) or "none"
            raise KernelError(
                f"{declared.name}: index_dtypes has {argument}, which is no array of integers of a call in the "
                f"presentation {declared.presentation}; it has {own}"
            )
        if dtype not in INDEX_DTYPES:
            raise KernelError(
                f"{declared.name}: index_dtypes must be of {', '.join(INDEX_DTYPES)}, and {argument} has {dtype!r}"
            )


def _check_owners(declared: Kernel) -> None:
    """Raise :class:`KernelError` if a parameter of an option is declared without that option."""
    for name in sorted(declared.supports):
        owner = (OPTIONS[name] if name in OPTIONS else ABILITIES[name]).of
        if owner and owner not in declared.supports:
            alone = [ability for ability, row in ABILITIES.items() if name in row.spellings]
            instead = f", or {alone[0]} instead if it takes {name} alone" if alone else ""
            raise KernelError(f"{declared.name} declares {name}, a parameter of {owner}; declare {owner} too{instead}")


def _check_limits(declared: Kernel) -> None:
    limits = declared.limits
    _check_always(declared)
    for name, is_known, what in (
        ("head_dims", _is_width, "numbers of at least 1, or of pairs of them"),
        ("query_heads", _is_count, "numbers of at least 1"),
        ("kv_heads", _is_count, "numbers of at least 1"),
        ("query_lengths", _is_count, "numbers of at least 1"),
        ("page_sizes", _is_count, "numbers of at least 1"),
    ):
        lengths = getattr(limits, name)
        if lengths is not None and not (isinstance(lengths, tuple) and lengths and all(map(is_known, lengths))):
            raise KernelError(f"{declared.name}: {name} must be a tuple of {what}, not {lengths!r}")
    if limits.equal_dims == () and "dv" not in declared.supports:
        raise KernelError(
            f"{declared.name}: head_dims {limits.head_dims!r} are pairs of unequal numbers, so that every problem uses "
            "dv; declare dv too"
        )
    if "dv" in limits.always and limits.widths is not None and all(dim == other for dim, other in limits.widths):
        raise KernelError(
            f"{declared.name}: every problem uses dv, but head_dims {limits.head_dims!r} leave values as wide as keys; "
            "declare pairs, such as ((576, 512),)"
        )
    if limits.largest_position is not None and not _is_count(limits.largest_position):
        found = limits.largest_position
        raise KernelError(f"{declared.name}: largest_position must be a number of at least 1, not {found!r}")
    if limits.least_keys != 0 and not _is_count(limits.least_keys):
        raise KernelError(f"{declared.name}: least_keys must be a number of at least 0, not {limits.least_keys!r}")
    if not isinstance(limits.multiples, Mapping) or set(limits.multiples) - {"Q", "K"}:
        raise KernelError(f"{declared.name}: multiples must be of the axes 'Q' and 'K', not {limits.multiples!r}")
    if not all(map(_is_count, limits.multiples.values())):
        raise KernelError(f"{declared.name}: multiples must be numbers of at least 1, not {limits.multiples!r}")
    _check_largest(declared)
    _check_contradictions(declared)


def _check_contradictions(declared: Kernel) -> None:
    """Raise :class:`KernelError` if limits leave no problem, or contradict the presentation or the abilities."""
    limits = declared.limits
    if limits.page_sizes is not None and not PRESENTATIONS[declared.presentation].has_page_sizes:
        shown = declared.presentation
        raise KernelError(f"{declared.name}: page_sizes limit the pages of a cache, and a call as {shown} has none")
    if limits.tight_buffers and not PRESENTATIONS[declared.presentation].says_where:
        shown = declared.presentation
        raise KernelError(
            f"{declared.name}: tight_buffers is about buffers of sequences, and a call as {shown} has none"
        )
    if limits.kv_heads is not None and min(limits.kv_heads) > (most := min(limits.most("H"), limits.most("BH"))):
        raise KernelError(
            f"{declared.name}: kv_heads={limits.kv_heads!r} has no number of at most {most}, as largest= asks of query "
            "heads; change kv_heads or largest"
        )
    _check_heads(declared)
    if limits.equal_lengths and "cross" in declared.supports:
        raise KernelError(f"{declared.name}: with equal_lengths no problem uses cross; leave cross out of supports")
    if limits.query_lengths == (1,) and "cross" not in declared.supports:
        raise KernelError(
            f"{declared.name}: query_lengths=(1,) needs 'cross' in supports: without it key length = query length = 1"
        )
    if limits.query_lengths is not None and all(length % limits.step("Q") for length in limits.query_lengths):
        raise KernelError(
            f"{declared.name}: none of query_lengths={limits.query_lengths} is a multiple of {limits.step('Q')}, as "
            "multiples= asks of the axis 'Q'"
        )


def _check_heads(declared: Kernel) -> None:
    """Raise :class:`KernelError` if numbers of query heads fit no number of kv heads, or need an ability."""
    limits = declared.limits
    if limits.query_heads is None:
        return
    if not limits.pairs_of_heads:
        raise KernelError(
            f"{declared.name}: none of query_heads={limits.query_heads!r} is a multiple of one of "
            f"kv_heads={limits.kv_heads!r}; change one of them"
        )
    if max(limits.query_heads) > (most := min(limits.most("H"), limits.most("BH"))):
        raise KernelError(
            f"{declared.name}: query_heads={limits.query_heads!r} has a number above {most}, as largest= asks of query "
            "heads; change query_heads or largest"
        )
    if "gqa" in limits.needed and "gqa" not in declared.supports:
        raise KernelError(
            f"{declared.name}: no number of query_heads={limits.query_heads!r} is one of kv_heads={limits.kv_heads!r}, "
            "so that every problem uses gqa; declare gqa too"
        )


def _check_largest(declared: Kernel) -> None:
    """Raise :class:`KernelError` unless ``largest`` names axes, with numbers that leave some problem."""
    largest = declared.limits.largest
    if not isinstance(largest, Mapping) or set(largest) - set(MEASURED):
        raise KernelError(f"{declared.name}: largest must be of the axes {', '.join(MEASURED)}, not {largest!r}")
    if not all(map(_is_count, largest.values())):
        raise KernelError(f"{declared.name}: largest must be numbers of at least 1, not {largest!r}")
    for axis, step in declared.limits.multiples.items():
        if largest.get(axis, step) < step:
            raise KernelError(
                f"{declared.name}: no length of {axis} is a multiple of {step} and at most {largest[axis]}; "
                "change multiples or largest"
            )
    for length in declared.limits.query_lengths or ():
        if length > declared.limits.most("Q"):
            raise KernelError(
                f"{declared.name}: query_lengths has {length}, but largest allows {declared.limits.most('Q')}; "
                "leave it out"
            )


def _check_always(declared: Kernel) -> None:
    """Raise :class:`KernelError` if options in ``always=`` exclude one another, so that no problem has all of them."""
    always = declared.limits.always
    for one, other in itertools.combinations([name for name in always if name in OPTIONS], 2):
        if OPTIONS[one].excludes(OPTIONS[other]) or OPTIONS[other].excludes(OPTIONS[one]):
            raise KernelError(
                f"{declared.name} always uses {one} and {other}, which exclude each other; leave one out of always"
            )
    for pair in declared.limits.exclusive:
        if set(pair) <= set(always):
            raise KernelError(
                f"{declared.name} always uses {' and '.join(pair)}, which are in exclusive; leave one out of always"
            )


def _check_defects(declared: Kernel) -> None:
    """Raise :class:`KernelError` if a row of a kernel's own table of defects is about another kernel or dtype.

    The ids of properties are not checked, since this folder does not know them.
    """
    for defect in declared.known_defects:
        about = f"{declared.name}: the known defect of {defect.property}"
        if defect.kernel not in (None, declared.name):
            raise KernelError(f"{about} names the kernel {defect.kernel}; leave kernel out of a kernel's own table")
        if defect.dtype is not None and defect.dtype not in declared.dtypes:
            raise KernelError(f"{about} is at {defect.dtype}, which the kernel does not declare; remove the defect")


def _is_width(value: Any) -> bool:
    """Return whether a value is a head dimension, or a pair of those of queries and of values."""
    return _is_count(value) or (isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

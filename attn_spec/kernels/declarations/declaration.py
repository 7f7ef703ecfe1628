"""Declaration of a function as a kernel: the decorator and the reading of an undecorated callable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from attn_spec.contract.contract import Contract, ContractError
from attn_spec.contract.presets import UNDECLARED, as_contract
from attn_spec.kernels.declarations.declaration_checks import check
from attn_spec.kernels.declarations.signed import adapted, named_row, with_row
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.kernel import DECLARABLE, FOUND, Kernel, KernelError, parameters_of
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results.destinations import required
from attn_spec.kernels.signatures.signature import Signature
from attn_spec.nearest_names import suggestion
from attn_spec.problem.conventions import ConventionError, Conventions, of_call, of_kernel
from attn_spec.problem.dtypes import refusal, simplified
from attn_spec.problem.options import OPTIONS, with_parameters

#: Declarations that are sequences of names.
LISTS = {"devices", "always", "forward_only"}


def kernel(
    *bare: Any,
    framework: str | None = None,
    dtypes: Iterable[str | Mapping[str, str]] | None = None,
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
    check_lists(dtypes=dtypes, supports=supports, **{name: facts[name] for name in LISTS & set(facts)})

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(
            function=function,
            name=name or _default_name(function),
            framework=framework,
            dtypes=tuple(map(_row_of_dtypes, dtypes)),
            contract=_contracts(contract),
            supports=(named := frozenset(supports)) | _carried(facts.get("presentation"), named),
            conventions=_conventions(conventions or {}),
            module=getattr(function, "__module__", None) or "",
            **_with_limits(facts | _option_dtypes(facts)),
        )
        check(declared)
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
    check_lists(supports=supports)
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
    """Return the framework whose names the function uses, itself or by functions of its module; NumPy's do not count.

    If it uses none, it is the one that the module imports, or imports a name from; NumPy if it imports no other. Raises
    :class:`KernelError`, with the kernel's ``name``, if two frameworks beside NumPy are left.
    """
    called = inspect.unwrap(getattr(function, "func", function))  # the function inside a functools.partial
    called = called if hasattr(called, "__globals__") else type(called).__call__
    found: list[str] = []
    for scope in (_used_by(called, {}), getattr(called, "__globals__", {})):
        imported = {_package_of(value) for value in scope.values()}
        found = found or [name for name in frameworks.known() if name in imported and name != "numpy"]
    if len(found) > 1:
        raise KernelError(
            f"the module of {name} imports {' and '.join(found)}; say whose tensors it takes: "
            f"--framework {found[0]}, or framework={found[0]!r}"
        )
    return found[0] if found else "numpy"


def _used_by(called: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Add to ``found`` the globals that a function uses, and that functions of its module do which it uses."""
    codes = [code] if (code := getattr(called, "__code__", None)) is not None else []
    for code in codes:
        codes += [each for each in code.co_consts if inspect.iscode(each)]
        for name in code.co_names:
            if name in found or name not in called.__globals__:
                continue
            value = found[name] = called.__globals__[name]
            own = inspect.unwrap(value) if callable(value) else value
            if getattr(own, "__globals__", None) is called.__globals__:
                _used_by(own, found)
    return found


def _package_of(value: Any) -> str:
    """Return the package of a global: a module, an object that a module defines, or an object whose type it defines."""
    owner = getattr(value, "__self__", None)  # C functions such as torch.matmul name no module
    module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    found = module or type(value if owner is None else owner).__module__
    return str(found).partition(".")[0].removesuffix("lib")  # jaxlib holds the arrays of jax


def check_lists(**lists: Any) -> None:
    """Raise :class:`KernelError` if a sequence is a text, read letter by letter, or if dtypes are one mapping."""
    for name, value in lists.items():
        if isinstance(value, str):
            raise KernelError(f"{name} must be several names, ({value!r},), not the text {value!r}")
        if name == "dtypes" and isinstance(value, Mapping):
            raise KernelError(f"dtypes must be several, ({dict(value)!r},), not one mapping {dict(value)!r}")


def _with_limits(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a kernel, with the facts about limits gathered in ``limits`` and ``backward_limits``."""
    limits = [item.name for item in fields(Limits)]
    known = [*(item.name for item in fields(Kernel) if item.name not in FOUND), *limits]
    if unknown := sorted(set(facts) - set(known)):
        near = suggestion(unknown[0], known, f"; known are {', '.join(known)}")
        raise KernelError(f"unknown argument {unknown[0]} in the declaration of a kernel{near}")
    own = set(limits) & set(facts)
    of_gradients = facts.get("backward_limits", {})
    if not isinstance(of_gradients, Mapping | Limits):
        raise KernelError(f'backward_limits must name limits, {{"equal_lengths": True}}, not {of_gradients!r}')
    try:
        stated = Limits(**{name: facts[name] for name in own})
        stated = replace(stated, always=with_parameters(stated.always))
        narrower = of_gradients if isinstance(of_gradients, Limits) else Limits(**of_gradients)
    except TypeError as error:
        raise KernelError(str(error)) from error
    others = {name: value for name, value in facts.items() if name not in own}
    return {**others, "limits": stated, "backward_limits": narrower}


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


def _row_of_dtypes(declared: str | Mapping[str, str]) -> str:
    """Return the dtypes of q, k and v as they are spelled everywhere. Raises :class:`KernelError`."""
    if isinstance(declared, str) and ":" not in declared:
        return declared
    if (reason := refusal(declared)) is not None:
        raise KernelError(f"dtypes {reason}")
    if not isinstance(found := simplified(declared), str):
        raise KernelError(
            f"dtypes must name q, k and v alone, not {', '.join(name for name, _ in found)}; the dtypes "
            "of options are option_dtypes="
        )
    return found


def _contracts(declared: str | Contract | Mapping[str, str | Contract]) -> Contract | dict[str, Contract]:
    try:
        if isinstance(declared, Mapping):
            return {_row_of_dtypes(dtype): as_contract(contract) for dtype, contract in declared.items()}
        return as_contract(declared)
    except ContractError as error:
        raise KernelError(str(error)) from error


def _conventions(declared: Mapping[str, Any] | Conventions) -> Conventions:
    try:
        return of_kernel(declared)
    except ConventionError as error:
        raise KernelError(str(error)) from error

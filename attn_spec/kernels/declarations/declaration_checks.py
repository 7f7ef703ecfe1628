"""Checks of a declaration: names that exist, and facts that do not contradict one another."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import NoneType
from typing import Any

from attn_spec.contract.contract import ContractError
from attn_spec.contract.coverage import silence_of_gradients, silence_of_probabilities, silences
from attn_spec.contract.presets import check_said
from attn_spec.faults import with_article
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.kernel import DECLARABLE, Kernel, KernelError, parameters_of
from attn_spec.kernels.limits import MEASURED
from attn_spec.kernels.presentations.appending import quantised_writes
from attn_spec.kernels.presentations.packing.argument_names import is_number
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results.destinations import SPELLINGS
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import FORMATS, INPUT_DTYPES
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.conventions import SAME
from attn_spec.problem.dtypes import dtype_of, input_dtypes, refusal, with_options
from attn_spec.problem.options import OPTIONS, parameters

#: Dtypes of the integers that say where sequences lie.
INDEX_DTYPES = ("int32", "int64")


def check(declared: Kernel) -> None:
    """Raise :class:`KernelError` for a name that does not exist, and for facts that contradict one another."""
    parameters_of(declared.function)  # raises here rather than at the first call
    _check_beside(declared)
    _check_when_off(declared)
    limits = declared.limits
    named = declared.supports.union(limits.always, *limits.exclusive, limits.beside, *limits.beside.values())
    if unknown := sorted(named - set(DECLARABLE)):
        raise KernelError(
            f"{declared.name} declares unknown options {', '.join(unknown)}; known are {', '.join(DECLARABLE)}"
        )
    if unknown := sorted(dtype for dtype in declared.dtypes if refusal(dtype) is not None):
        raise KernelError(
            f"{declared.name} declares unknown dtypes {', '.join(unknown)}; known are {', '.join(INPUT_DTYPES)}"
        )
    if isinstance(declared.contract, Mapping) and (missing := set(declared.dtypes) - set(declared.contract)):
        raise KernelError(f"{declared.name} declares no contract for {', '.join(sorted(missing))}; add one for each")
    if not declared.dtypes:
        raise KernelError(f"{declared.name} declares no dtypes; known are {', '.join(INPUT_DTYPES)}")
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
    _check_ties(declared)
    _check_destinations(declared)
    _check_limits(declared)
    _check_gradients(declared)


def _check_ties(declared: Kernel) -> None:
    """Raise :class:`KernelError` if inputs that are in one tensor, or that an option makes one, have several dtypes."""
    together = dict.fromkeys(_held_together(declared), f"a tensor of the presentation {declared.presentation}")
    if "latent" in declared.supports:
        together["kv"] = "latent"
    for dtype, (names, why) in itertools.product(declared.dtypes, together.items()):
        own = dict(zip("qkv", input_dtypes(dtype), strict=True))
        if len({own[name] for name in names}) > 1:
            raise KernelError(
                f"{declared.name}: {' and '.join(names)} must have one dtype, since they are one in {why}, not {dtype}"
            )


def _held_together(declared: Kernel) -> list[str]:
    """Return the inputs of each tensor of a call that holds several inputs."""
    shown = PRESENTATIONS[declared.presentation]
    held = {shown.holds(tensor) for tensor in shown.tensors}
    return [names for names in held if len(names) > 1 and set(names) <= set("qkv")]


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
    _check_appended(declared)
    if shown.appends:
        shown = shown.handing(descales_by_key="descale_by_key" in declared.supports)
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


def _check_appended(declared: Kernel) -> None:
    """Raise :class:`KernelError` unless contracts say how a call makes the scales that it appends, and no others."""
    for dtype in declared.dtypes:
        reasons = quantised_writes.refusals(
            declared.contract_declared(dtype),
            declared.supports,
            declared.limits.always,
            declared.dtypes_at(dtype),
            appends=PRESENTATIONS[declared.presentation].appends,
        )
        if reason := next(reasons, ""):
            raise KernelError(f"{declared.name}: {reason}")


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
    """Raise :class:`KernelError` if a contract has no theorem for what the kernel declares."""
    for dtype in declared.dtypes:
        contract = declared.contract_declared(dtype)
        try:
            check_said(contract, dtype)
            resolved = declared.contract_for(dtype)
        except ContractError as error:
            raise KernelError(f"{declared.name}: {error}") from error
        if reason := silence_of_probabilities(resolved):
            raise KernelError(f"{declared.name}: {reason}")
        if "backward" in declared.supports and (reason := silence_of_gradients(contract)):
            raise KernelError(f"{declared.name}: {reason}; declare another contract, or leave backward out of supports")
        for silence in silences(contract):
            if silence.concerns_options(declared.supports):
                raise KernelError(
                    f"{declared.name}: {silence.words(contract)}; declare another contract, or leave "
                    f"{silence.option} out of supports"
                )
    if "backward" in declared.supports:
        declared.check_backward()


def _check_options(declared: Kernel) -> None:
    for name in declared.supports & set(OPTIONS):
        needed = {row.name for row in parameters(name) if not row.optional}
        if missing := sorted(needed - declared.supports):
            raise KernelError(
                f"{declared.name} declares {name}, but not {', '.join(missing)}, which {name} needs; declare both"
            )
    _check_owners(declared)
    if declared.conventions.empty_row_by_bias != SAME and (declared.merge == "bias" or "states" in declared.supports):
        raise KernelError(
            f"{declared.name}: one tensor of a call says which keys or states there are, so that no row is emptied by "
            f"a bias otherwise than by a mask; leave empty_row_by_bias out, which is {SAME!r} then"
        )
    if not isinstance(declared.option_dtypes, Mapping):
        raise KernelError(f"{declared.name}: option_dtypes must be a mapping, not {declared.option_dtypes!r}")
    if (reason := refusal(with_options(declared.dtypes[0], declared.option_dtypes))) is not None:
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
        of_any = ABILITIES[name].of_any if name in ABILITIES else ()
        if of_any and declared.supports.isdisjoint(of_any):
            raise KernelError(
                f"{declared.name} declares {name}, but none of {', '.join(of_any)}, which it is about; declare these "
                f"that the kernel takes, or leave {name} out"
            )


def _check_limits(declared: Kernel) -> None:
    limits = declared.limits
    _check_always(declared)
    for name, is_known, what in (
        ("head_dims", _is_width, "numbers of at least 1, or of pairs of them"),
        ("query_heads", _is_count, "numbers of at least 1"),
        ("kv_heads", _is_count, "numbers of at least 1"),
        ("group_sizes", _is_count, "numbers of at least 1"),
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


def _check_gradients(declared: Kernel) -> None:
    """Raise :class:`KernelError` for what calls with gradients lack, if it is no ability, or leaves no such call."""
    for name in declared.forward_only:
        if name not in declared.supports:
            near = suggestion(name, sorted(declared.supports))
            raise KernelError(f"{declared.name}: forward_only names {name}, which supports= does not have{near}")
        if name in (*declared.limits.needed, *declared.backward_limits.always):
            raise KernelError(f"{declared.name}: every problem uses {name}, so that it cannot be forward_only")
    if (narrowed := declared.for_gradients) is not declared:
        _check_limits(narrowed)


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
    sizes = limits.group_sizes
    if sizes is not None and 1 not in sizes and "gqa" not in declared.supports:
        raise KernelError(
            f"{declared.name}: group_sizes={sizes!r} leaves 1 out, so that every problem uses gqa; declare gqa too"
        )
    if limits.query_heads is None:
        return
    if not limits.pairs_of_heads:
        by = "" if sizes is None else f", by one of group_sizes={sizes!r}"
        raise KernelError(
            f"{declared.name}: none of query_heads={limits.query_heads!r} is a multiple of one of "
            f"kv_heads={limits.kv_heads!r}{by}; change one of them"
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


def _check_when_off(declared: Kernel) -> None:
    """Raise :class:`KernelError` unless ``when_off=`` maps options of the kernel to plain values."""
    form = "{'causal': False}"
    if not isinstance(declared.when_off, Mapping):
        raise KernelError(
            f"{declared.name}: when_off must be a mapping of options to arguments, {form}, not {declared.when_off!r}"
        )
    for name, value in declared.when_off.items():
        if name not in OPTIONS or name not in declared.supports:
            raise KernelError(
                f"{declared.name}: when_off names {name}, which is no option in supports; give arguments of options "
                f"that a problem does not use, {form}"
            )
        if not isinstance(value, NoneType | bool | int | float | str | tuple):
            raise KernelError(
                f"{declared.name}: when_off gives {with_article(type(value).__name__)} for {name}; a plain value turns "
                f"an option off, {form}"
            )


def _check_beside(declared: Kernel) -> None:
    """Raise :class:`KernelError` if ``beside=`` is no mapping, or wants others of which none is supported."""
    beside, form = declared.limits.beside, "{'window': ('causal',)}"
    if not isinstance(beside, Mapping) or not all(isinstance(others, tuple) for others in beside.values()):
        raise KernelError(f"{declared.name}: beside must map options to tuples of others, as {form}, not {beside!r}")
    for name, others in beside.items():
        if name in declared.supports and declared.supports.isdisjoint(others) and set(others) <= set(DECLARABLE):
            raise KernelError(
                f"{declared.name}: beside takes {name} only with {' or '.join(others)}, and supports has none of them; "
                f"leave {name} out of supports"
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
        about = f"{declared.name}: the known defect of {defect.property or ' with '.join(defect.needs)}"
        if defect.kernel not in (None, declared.name):
            raise KernelError(f"{about} names the kernel {defect.kernel}; leave kernel out of a kernel's own table")
        if defect.dtype is not None and defect.dtype not in declared.dtypes:
            raise KernelError(f"{about} is at {defect.dtype}, which the kernel does not declare; remove the defect")


def _is_width(value: Any) -> bool:
    """Return whether a value is a head dimension, or a pair of those of queries and of values."""
    return _is_count(value) or (isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1

"""Dtypes of the tensors of a problem: one for all, or some by name, such as a bfloat16 cache beside float32 queries.

Dtypes of several inputs are spelled in one way, ``q:float32,kv:bfloat16``, wherever a dtype has a name: on the command
line, in a report, in a certificate.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from attn_spec.numbers.formats import DTYPES, EIGHT_BITS, FORMATS, INPUT_DTYPES
from attn_spec.problem.options import OPTIONS

#: Name of the inputs q, k and v together.
INPUTS = "qkv"
#: The dtype of all tensors, or dtypes by name as a mapping, as pairs, or spelled. Inputs are named together, "qkv", or
#: apart; an option without a name has the dtype of q.
Dtypes = str | Mapping[str, str] | tuple[tuple[str, str], ...]


def dtype_of(dtypes: Dtypes, name: str, other: str | None = None) -> str:
    """Return the dtype of a tensor in simplified dtypes: its own if it has one, else ``other``, else that of q.

    Options that are named have a dtype of their own, and so have k and v if theirs is not that of q. Beside queries of
    integers an option without a name has float32.
    """
    if dtypes in INPUT_DTYPES:
        found: str = other or dtypes  # type: ignore[assignment] - a text
    else:
        of_q, own = _own(dtypes)  # type: ignore[arg-type] - simplified dtypes are no mapping
        found = own.get(name) or other or of_q
    return "float32" if FORMATS[found].is_integer and name not in INPUTS else found


def input_dtypes(dtypes: Dtypes) -> tuple[str, str, str]:
    """Return the dtypes of q, k and v in simplified dtypes."""
    return dtype_of(dtypes, "q"), dtype_of(dtypes, "k"), dtype_of(dtypes, "v")


def has_eight_bits(dtypes: Dtypes) -> bool:
    """Return whether q, k or v has 8 bits in simplified dtypes."""
    return not set(EIGHT_BITS).isdisjoint(input_dtypes(dtypes))


def spelled(dtypes: Dtypes) -> str:
    """Return the dtypes of q, k and v as one name: ``float32`` of all three, or for instance ``q:float32,kv:bfloat16``.

    The dtypes must have no :func:`refusal`.
    """
    own = _by_input(_pairs(dtypes))
    if len({own[name] for name in INPUTS}) == 1:
        return own["q"]
    groups = itertools.groupby(INPUTS, own.__getitem__)
    return ",".join(f"{''.join(names)}:{dtype}" for dtype, names in groups)


def in_one_spelling(dtype: str) -> str:
    """Return a dtype, or dtypes of inputs that a user wrote in any order, as :func:`spelled`; others unchanged."""
    return spelled(dtype) if refusal(dtype) is None else dtype


def simplified(dtypes: Dtypes) -> str | tuple[tuple[str, str], ...]:
    """Return the spelled dtypes of the inputs if no option is named, else pairs: inputs, then options sorted by name.

    The dtypes must have no :func:`refusal`.
    """
    inputs = spelled(dtypes)
    options = sorted((name, dtype) for name, dtype in _pairs(dtypes) if not _names_inputs(name))
    return (*_pairs(inputs), *options) if options else inputs


def with_options(inputs: Dtypes, options: Mapping[str, str]) -> dict[str, str]:
    """Return the dtypes of inputs and of options together, by name."""
    return {**dict(_pairs(inputs)), **options}


def refusal(dtypes: Any) -> str | None:
    """Return what the tensors of a problem must have instead of these dtypes; None if they can have them."""
    try:
        pairs = _pairs(dtypes)
    except (TypeError, ValueError):
        return f"must be a dtype, or a mapping from names to dtypes, not {dtypes!r}"
    able = [name for name, row in OPTIONS.items() if row.tensor is np.float64]
    if unknown := [name for name, _ in pairs if name not in able and not _names_inputs(name)]:
        return f"must name q, k, v or options that are tensors of numbers ({', '.join(able)}), not {unknown[0]!r}"
    for name, dtype in pairs:
        known = INPUT_DTYPES if _names_inputs(name) else DTYPES
        if dtype not in known:
            of_option = "" if _names_inputs(name) else f", for {name}"
            return f"must be of {', '.join(known)}{of_option}, not {dtype!r}"
    return _refusal_of_names(pairs)


def _refusal_of_names(pairs: list[tuple[str, str]]) -> str | None:
    """Return what tensors must be named instead of these; None if each is named once, and each input is."""
    inputs = [name for name, _ in pairs if _names_inputs(name)]
    if sorted("".join(inputs)) != sorted(INPUTS):
        return f"must name each of q, k and v once, as 'qkv' or apart, not {', '.join(inputs) or 'none of them'}"
    if len(dict(pairs)) < len(pairs):
        return f"must name each option once, not {', '.join(name for name, _ in pairs)}"
    return None


def with_dtypes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a problem or recipe with "dtypes", for the "dtype" and "option_dtypes" of schema 3."""
    others = {name: value for name, value in document.items() if name not in ("dtype", "option_dtypes")}
    if len(others) == len(document):
        return others
    own = document.get("option_dtypes") or ()
    return others | {"dtypes": [(INPUTS, document.get("dtype", "float32")), *own]}


def _pairs(dtypes: Dtypes) -> list[tuple[str, str]]:
    """Return names with dtypes, of a mapping, of pairs, or of a text."""
    if isinstance(dtypes, str) and ":" in dtypes:
        parts = (part.partition(":") for part in dtypes.split(","))
        return [(name.strip(), dtype.strip()) for name, _, dtype in parts]
    if isinstance(dtypes, str):
        return [(INPUTS, dtypes)]
    return [(name, dtype) for name, dtype in (dtypes.items() if isinstance(dtypes, Mapping) else dtypes)]


def _by_input(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return the dtype of each of q, k and v."""
    return {name: dtype for names, dtype in pairs if _names_inputs(names) for name in names}


@lru_cache(256)
def _own(dtypes: str | tuple[tuple[str, str], ...]) -> tuple[str, dict[str, str]]:
    """Return the dtype of q, and those of the tensors that have a dtype of their own, by name."""
    pairs = _pairs(dtypes)
    inputs, options = _by_input(pairs), {name: dtype for name, dtype in pairs if not _names_inputs(name)}
    return inputs["q"], {name: dtype for name, dtype in inputs.items() if dtype != inputs["q"]} | options


def _names_inputs(name: Any) -> bool:
    return isinstance(name, str) and name != "" and set(name) <= set(INPUTS)

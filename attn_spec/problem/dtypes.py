"""Dtypes of the tensors of a problem: one for all, or some by name, such as a float32 bias beside float16 inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.options import OPTIONS

#: Name of the inputs q, k and v together.
INPUTS = "qkv"
#: The dtype of all tensors, or dtypes by name as a mapping or as pairs. Inputs are named together, "qkv", or apart; an
#: option without a name has the dtype of the inputs.
Dtypes = str | Mapping[str, str] | tuple[tuple[str, str], ...]


def dtype_of(dtypes: Dtypes, name: str, other: str | None = None) -> str:
    """Return the dtype of a tensor in simplified dtypes: that of its name, else ``other``, else that of the inputs."""
    if isinstance(dtypes, str):
        return other or dtypes
    named = dict(dtypes)
    return named.get(name) or other or named[INPUTS]


def simplified(dtypes: Dtypes) -> str | tuple[tuple[str, str], ...]:
    """Return the dtype of all tensors, or else pairs: the inputs together, then options sorted by name.

    The dtypes must have no :func:`refusal`.
    """
    if isinstance(dtypes, str):
        return dtypes
    pairs = _pairs(dtypes)
    inputs = next(dtype for name, dtype in pairs if _names_inputs(name))
    options = sorted((name, dtype) for name, dtype in pairs if not _names_inputs(name))
    return ((INPUTS, inputs), *options) if options else inputs


def refusal(dtypes: Any) -> str | None:
    """Return what the tensors of a problem must have instead of these dtypes; None if they can have them."""
    try:
        pairs = [(INPUTS, dtypes)] if isinstance(dtypes, str) else _pairs(dtypes)
    except (TypeError, ValueError):
        return f"must be a dtype, or a mapping from names to dtypes, not {dtypes!r}"
    able = [name for name, row in OPTIONS.items() if row.tensor is np.float64]
    if unknown := [name for name, _ in pairs if name not in able and not _names_inputs(name)]:
        return f"must name q, k, v or options that are tensors of numbers ({', '.join(able)}), not {unknown[0]!r}"
    if unknown := [dtype for _, dtype in pairs if dtype not in DTYPES]:
        return f"must be of {', '.join(DTYPES)}, not {unknown[0]!r}"
    return _refusal_of_names(pairs)


def _refusal_of_names(pairs: list[tuple[str, str]]) -> str | None:
    """Return what tensors must be named instead of these; None if each input is, once, and all have one dtype."""
    inputs = [name for name, _ in pairs if _names_inputs(name)]
    if sorted("".join(inputs)) != sorted(INPUTS):
        return f"must name each of q, k and v once, as 'qkv' or apart, not {', '.join(inputs) or 'none of them'}"
    if len(named := dict(pairs)) < len(pairs):
        return f"must name each option once, not {', '.join(name for name, _ in pairs)}"
    if len({named[name] for name in inputs}) > 1:  # no theorem knows inputs of several dtypes yet
        return f"must be the same for q, k and v, not {', '.join(named[name] for name in inputs)}"
    return None


def with_dtypes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a problem or recipe with "dtypes", for the "dtype" and "option_dtypes" of schema 3."""
    others = {name: value for name, value in document.items() if name not in ("dtype", "option_dtypes")}
    if len(others) == len(document):
        return others
    own = document.get("option_dtypes") or ()
    return others | {"dtypes": [(INPUTS, document.get("dtype", "float32")), *own]}


def _pairs(dtypes: Mapping[str, str] | tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    return [(name, dtype) for name, dtype in (dtypes.items() if isinstance(dtypes, Mapping) else dtypes)]


def _names_inputs(name: Any) -> bool:
    return isinstance(name, str) and name != "" and set(name) <= set(INPUTS)

"""Destinations: tensors that a call is given to write its results into, in place of results that it returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentations.placement import LARGE
from attn_spec.kernels.results.returned import out_and_lse
from attn_spec.numbers import bits
from attn_spec.problem.conventions import Conventions

#: Names of parameters that look like destinations if a callable cannot be called without them, by quantity.
SPELLINGS = {"output": ("out", "output", "o"), "lse": ("lse",)}


def required(parameters: Mapping[str, inspect.Parameter], tensors: int) -> dict[str, str]:
    """Return the parameters that look like destinations and have no default, by quantity; none without an output.

    A call passes as many ``tensors`` by position, which are no destinations.
    """
    named = {
        name
        for name, parameter in list(parameters.items())[tensors:]
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and parameter.default is parameter.empty
    }
    found = {quantity: next((each for each in spelled if each in named), "") for quantity, spelled in SPELLINGS.items()}
    return {quantity: name for quantity, name in found.items() if name} if found["output"] else {}


def poison(conventions: Conventions) -> float:
    """Return the number that a destination holds before the call.

    It is NaN, unless a query without keys has the output NaN by convention, which a call must write too.
    """
    return LARGE if "nan" in conventions.outputs_without_keys else np.nan


def written(returned: Any, buffers: Mapping[str, Any]) -> Any:
    """Return the results of a call, those in ``buffers`` by quantity, as a call without destinations returns them.

    ``returned`` is what the call returned: nothing, or the same results. Raises :class:`Misbehaviour` for others.
    """
    out, lse = (None, None) if returned is None else out_and_lse(returned)
    for quantity, own in (("out", out), ("lse", lse)):
        buffer = buffers.get("output" if quantity == "out" else quantity)
        if buffer is not None and own is not None and not _equal(own, buffer):
            raise Misbehaviour(
                f"the kernel returned another {quantity} than it wrote into the tensor for it; it must return nothing "
                "or the same"
            )
    out, lse = buffers.get("output", out), buffers.get("lse", lse)
    return out if lse is None else (out, lse)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two results are the same tensor, or equal ones."""
    if one is other:
        return True
    if type(one) is not type(other) or tuple(one.shape) != tuple(other.shape):
        return False
    return bool(bits.identical(values_of(one), values_of(other)).all())

"""Results that a later call overwrites: what a call returned is read, another call is made, and it is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.results.returned import parts
from attn_spec.numbers import bits


def after_another_call(own: Framework, what: str, returned: Any, another: Callable[[], object]) -> Any:
    """Return what a call of the framework ``own`` returned, as it is after ``another`` call.

    Raises :class:`Misbehaviour` if a tensor has other values then; ``what`` names the results in the message.
    """
    before = _values(own, returned)
    with own.kept(returned) as again:
        another()
        found = again()
    after = _values(own, found)
    for place, values in before.items():
        if place not in after or values.shape != after[place].shape:
            raise Misbehaviour(f"{what} {_OVERWRITTEN}: it has another shape then; {_REMEDY}")
        changed = ~bits.identical(values, after[place])
        if changed.any():
            share = f"{np.count_nonzero(changed)} of {changed.size} elements"
            raise Misbehaviour(f"{what} {_OVERWRITTEN}: {share} have other values then; {_REMEDY}")
    return found


#: Parts of the message.
_OVERWRITTEN = "is overwritten by the next call"
_REMEDY = "return memory of its own, or declare the convention overwrites_results=True, as CUDA graphs need"


def _values(own: Framework, returned: Any) -> dict[Any, np.ndarray]:
    """Return the values of the tensors of a result, by their places in it."""
    every = parts(returned).items()
    return {place: own.take(x).astype(np.float64) for place, x in every if x is not None and own.is_own(x)}

"""Keys so far below the maximum of their row that no rounding brings them back: bounds need not look at their scores.

A finite fill, -1e4 or -1e9, is written for -inf. The error of such a score grows with its size, and would be the
largest of its row in every theorem that speaks of all keys. But let s_j + Delta_j < M - Delta_M - 700. Then the
computed weight of j is below e^-700 of the largest, or 0 if the score overflows to -inf, whatever the reference;
accumulators that have met only such keys are multiplied by as little when the maximum comes; and a reference that a
nearer key meets is never theirs. So the row is rounded as if they were hidden, but for additions of numbers that small:
they still count among its ``keys``, as terms of its sums, and their values among those that an output may combine.
The backward pass multiplies such weights, and what underflow makes of them, by gradients that no score enters.

Merges of log-sum-exps are left out: L - log sigmoid(L - L') of a far L and a near L' is off by the roundoff of L.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.bounds.forward.score_bounds import row_shift, score_error
from attn_spec.bounds.intermediates import Intermediates, kept
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard

#: Depth below the maximum to which keys count, and the logarithm of what one beyond adds to sums of terms of size 1.
FARTHEST, NEGLIGIBLE = 700.0, -600.0


def without_far_keys(x: Intermediates, c: ResolvedContract) -> Intermediates:
    """Return the row sums, weights and outputs with far keys hidden; ``x`` itself where there are none."""
    return _without_far_keys(x, c) or x


# None for x itself: a kept result that holds x would keep it for ever.
@kept
@np.errstate(all="ignore")
def _without_far_keys(x: Intermediates, c: ResolvedContract) -> Intermediates | None:
    if c.lse_merges:
        return None
    delta = score_error(x, c)
    if guard("products of base 2 that are rounded before their difference", c.base2, False):
        sizes = np.where(x.visible, np.abs(x.s) + row_shift(x, c) + delta, 0.0)
        delta = delta + 8 * c.stages.score_accumulation.u * sizes
    low = np.where(x.visible, x.s - delta, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    far = x.visible & (x.s + delta < low - FARTHEST)
    if not far.any():
        return None
    near = {name: np.where(far, 0.0, getattr(x, name)) for name in ("scaled", "capped", "s")}
    return replace(x, visible=x.visible & ~far, **near)

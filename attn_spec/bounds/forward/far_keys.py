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
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard

#: Depth below the maximum to which keys count, and the logarithm of what one beyond adds to sums of terms of size 1.
FARTHEST, NEGLIGIBLE = 700.0, -600.0


def without_far_keys(forward: Intermediates, contract: ResolvedContract) -> Intermediates:
    """Return the row sums, weights and outputs with far keys hidden; ``forward`` itself where there are none."""
    return _without_far_keys(forward, contract) or forward


# None for ``forward`` itself: a memoized result that holds it would keep it for ever.
@of_forward_pass
@np.errstate(all="ignore")
def _without_far_keys(forward: Intermediates, contract: ResolvedContract) -> Intermediates | None:
    if contract.lse_merges:
        return None
    delta = score_error(forward, contract)
    if guard("products of base 2 that are rounded before their difference", contract.base2, False):
        sizes = np.where(forward.visible, np.abs(forward.s) + row_shift(forward, contract) + delta, 0.0)
        delta = delta + 8 * contract.stages.score_accumulation.u * sizes
    low = np.where(forward.visible, forward.s - delta, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    far = forward.visible & (forward.s + delta < low - FARTHEST)
    if not far.any():
        return None
    after = {name: np.where(far, 0.0, s) for name, s in forward.after.items()}
    return replace(forward, visible=forward.visible & ~far, after=after, s=np.where(far, 0.0, forward.s))

"""Factors of weights before they meet values: those of dropout, and descales of values.

    c_ij = d_j / (1 - p) where the weight of key j for query i is kept, else 0        o_ic = sum_j c_ij P_ij v_jc

d_j is the descale of the value of key j, 1 without ``v_descale``: the value is the real number d_j v_jc.

The softmax and its log-sum-exp know nothing of it. Srivastava et al., "Dropout" (2014), section 10, with the scale in
training; Vaswani et al., "Attention is all you need" (2017), section 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem


def weight_factors(problem: Problem, one: Any, *head: int) -> np.ndarray | None:
    """c [B, Hq, Sq, Sk], or that of a ``head`` (b, h), as numbers like ``one``, some 1; None if all are 1."""
    if problem.dropout_keep is None and problem.v_descale is None:
        return None
    kept = True if problem.dropout_keep is None else problem.dropout_keep
    keep: np.ndarray = np.broadcast_to(kept, problem.score_shape)[head]
    factors = np.full(keep.shape, one - one, dtype=float if isinstance(one, float) else object)
    factors[keep] = one / (one - (problem.dropout_p or 0.0))
    if problem.v_descale is None:
        return factors
    d: np.ndarray = np.broadcast_to(problem.by_pair("v_descale"), problem.score_shape)[head]
    return factors * d.astype(factors.dtype)

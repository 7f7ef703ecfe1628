"""Dropout: what weights are multiplied by before they meet values.

    c_ij = 1 / (1 - p) where the weight of key j for query i is kept, else 0        o_ic = sum_j c_ij P_ij v_jc

The softmax and its log-sum-exp know nothing of it. Srivastava et al., "Dropout" (2014), section 10, with the scale in
training; Vaswani et al., "Attention is all you need" (2017), section 5.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem


def keep_factors(problem: Problem, one: Any) -> np.ndarray | None:
    """c [B, Hq, Sq, Sk], as numbers like ``one``, 1 in some arithmetic; None without dropout."""
    if problem.dropout_keep is None:
        return None
    c = one / (one - (problem.dropout_p or 0.0))
    factors = np.full(problem.score_shape, one - one, dtype=float if isinstance(one, float) else object)
    factors[np.broadcast_to(problem.dropout_keep, problem.score_shape)] = c
    return factors

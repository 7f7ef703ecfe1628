"""Scores in float64 by NumPy or PyTorch, with bounds on their errors and sizes.

By Higham's model (*Accuracy and Stability of Numerical Algorithms*, section 3.1) a product q.k has an error of at most
D U |q| |k|. For fewer roundings, q = q_0 + q_1 and k = k_0 + k_1 are split as in ``numbers.error_free_products``. The
numbers of q_0 and k_0 have b bits, so that their products add up exactly in any order:

    q.k = q_0.k_0 + (q_0.k_1 + q_1.k),    |q_0| <= 2^a (1 + 2^-7), |q_1| <= 2^(a - b - 1), where all |q| < 2^a

and for k the same holds, with |k| < 2^c. The second sum has 2 D terms of at most 1.01 2^(a + c - b - 1). Its error is
therefore at most 2.02 D^2 U 2^(a + c - b).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from attn_spec.bounds.forward.row_sum_bounds import EVALUATION
from attn_spec.contract.roundoff import elementary_error
from attn_spec.judgement.long.engine import Engine
from attn_spec.numbers.error_free_products import bits, bounds, cut
from attn_spec.problem.problem import Problem

#: Unit roundoff of float64.
U = 2.0**-53
#: Factor that covers products of few roundings which are counted as sums, and the rounding of the sizes themselves.
SLACK = 1.0 + 2.0**-10
#: Upper bound on the total effect of underflow in one row, below every number that matters.
TINY = 2.0**-1000
#: Largest size of an argument of exp whose exponential is not 0.
LOWEST = 746


@dataclass(frozen=True)
class Scores:
    """Scores of a problem in float64, with bounds for each row [B, Hq, Sq]."""

    #: Array of the engine, -inf where masked, [B, Hq, Sq, Sk].
    s: Any
    #: Number of keys that each row sees.
    keys: np.ndarray
    #: Bound on the error of each row's scores.
    delta: np.ndarray
    #: Bound on the size of each row's scores.
    size: np.ndarray

    @property
    def log_weight_error(self) -> np.ndarray:
        """Bound on the error of log exp(s - M): the errors of s, of the difference (at most 2 |s|) and of exp."""
        arguments = np.minimum(2 * self.size, LOWEST) + 1
        return self.delta + (arguments * U + elementary_error(EVALUATION, "exp_error")) * SLACK


def float64_scores(problem: Problem, engine: Engine, *, cut_operands: bool = False) -> Scores:
    """Return the scores of a problem for which ``glance.is_plain``.

    With ``cut_operands`` q and k are split as the module says, so that products are rounded less.
    """
    cap, D, k = problem.softcap, problem.head_dim, problem.per_query_head(problem.k)
    lengths = np.linalg.norm(k, axis=-1).max(axis=-1, initial=0.0)[..., None]
    largest = abs(problem.scale_value) * np.linalg.norm(problem.q, axis=-1) * lengths
    if cut_operands:
        s, of_rest = _of_cut_operands(problem.q, k, engine)
        delta = 8 * largest + abs(problem.scale_value) * of_rest
    else:
        s, delta = _product(problem.q, k, engine), (D + 8) * largest
    xp = array_namespace(s)
    s *= problem.scale_value
    size = largest
    if cap is not None:
        s /= cap
        s = xp.tanh(s)
        s *= cap
        delta = delta + (4 + elementary_error(EVALUATION, "tanh_error") / U) * cap
        size = np.minimum(size, cap)
    if problem.bias is not None:
        s += engine.give(problem.bias)
        of_bias = np.where(np.isfinite(problem.bias), abs(problem.bias), 0.0).max(axis=-1, initial=0.0)
        delta, size = delta + 4 * of_bias, size + of_bias
    if problem.alibi_slopes is not None:
        far = abs(problem.distances)
        s -= engine.give(problem.alibi_slopes * far)
        of_slopes = abs(problem.alibi_slopes)[..., 0] * far.max(axis=-1, initial=0)
        delta, size = delta + 4 * of_slopes, size + of_slopes
    visible = problem.visible
    s[engine.give(np.broadcast_to(~visible, s.shape))] = -np.inf
    return Scores(s, visible.sum(axis=-1), delta * U * SLACK + TINY, size * SLACK)


def _product(q: np.ndarray, k: np.ndarray, engine: Engine) -> Any:
    given = engine.give(k)
    return array_namespace(given).matmul(engine.give(q), array_namespace(given).matrix_transpose(given))


def _of_cut_operands(q: np.ndarray, k: np.ndarray, engine: Engine) -> tuple[Any, np.ndarray]:
    """Return q k^T, and the error of its second sum in units of U, [.., Sq]."""
    D = q.shape[-1]
    b, of_q, of_k = bits(D), bounds(q, -1), bounds(k, -1)
    q_0, k_0 = next(cut(q, None, of_q, b)), next(cut(k, None, of_k, b))
    s = _product(q_0, k_0, engine)
    s += _product(np.concatenate([q_0, q - q_0], axis=-1), np.concatenate([k - k_0, k], axis=-1), engine)
    return s, 2.02 * D**2 * 2.0**-b * of_q[..., 0] * of_k.max(axis=(-1, -2), initial=0.0)[..., None]

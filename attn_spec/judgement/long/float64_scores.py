"""Scores in float64 by NumPy or PyTorch, with bounds on their errors and sizes.

By Higham's model (*Accuracy and Stability of Numerical Algorithms*, section 3.1) a product q.k has an error of at most
D U |q| |k|. For fewer roundings, q = q_0 + q_1 and k = k_0 + k_1 are split as in ``numbers.error_free_products``. The
numbers of q_0 and k_0 have b bits, so that their products add up exactly in any order:

    q.k = q_0.k_0 + (q_0.k_1 + q_1.k),    |q_0| <= 2^a (1 + 2^-7), |q_1| <= 2^(a - b - 1), where all |q| < 2^a

and for k the same holds, with |k| < 2^c. The second sum has 2 D terms of at most 1.01 2^(a + c - b - 1). Its error is
therefore at most 2.02 D^2 U 2^(a + c - b).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from attn_spec.attention.terms import ADDENDS, BENDS, numbers_of, used
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

    #: Array of the engine, -inf where masked, [B, Hq, Sq, Sk], with one more column for a sink.
    s: Any
    #: Number of keys that each row sees.
    keys: np.ndarray
    #: Bound on the error of each row's scores.
    delta: np.ndarray
    #: Bound on the size of each row's scores, and of its sink.
    size: np.ndarray
    has_sink: bool = False

    @property
    def log_weight_error(self) -> np.ndarray:
        """Bound on the error of log exp(s - M): the errors of s, of the difference (at most 2 |s|) and of exp."""
        arguments = np.minimum(2 * self.size, LOWEST) + 1
        return self.delta + (arguments * U + elementary_error(EVALUATION, "exp_error")) * SLACK


def float64_scores(problem: Problem, engine: Engine, *, cut_operands: bool = False) -> Scores:
    """Return the scores of a problem for which ``glance.is_plain``.

    With ``cut_operands`` q and k are split as the module says, so that products are rounded less.
    """
    k, A = problem.per_query_head(problem.k), RowBounds(engine)
    lengths = np.linalg.norm(k, axis=-1).max(axis=-1, initial=0.0)[..., None]
    sigma = abs(problem.scale_value)
    largest = sigma * np.linalg.norm(problem.q, axis=-1) * lengths
    # The scale costs three roundings: two of the constant, one of the product.
    if cut_operands:
        x, of_rest = _of_cut_operands(problem.q, k, engine)
        delta = 5 * largest + sigma * of_rest
    else:
        x, delta = _product(problem.q, k, engine), (problem.head_dim + 5) * largest
    x *= problem.scale_value
    s = Numbers(x, delta, largest, engine)
    del x  # a term need not keep the array before it
    p = {name: A.given(x) for name, x in numbers_of(problem).items()}
    for row in used(problem, (*BENDS, *ADDENDS)).values():
        s = row.value(A, s, p)
    visible = problem.visible
    s.x[engine.give(np.broadcast_to(~visible, s.x.shape))] = -np.inf
    found = Scores(s.x, visible.sum(axis=-1), s.delta * U * SLACK + TINY, s.size * SLACK)
    return found if problem.sinks is None else _with_sink(found, problem, engine)


def _with_sink(scores: Scores, problem: Problem, engine: Engine) -> Scores:
    """Return scores with one more column, the sink of each head, which is exact."""
    z = problem.sinks_of_heads
    column = engine.give(np.where(problem.sees_sink[..., None], z, -np.inf))
    s = array_namespace(scores.s).concat([scores.s, column], axis=-1)
    size = np.maximum(scores.size, np.where(np.isfinite(z), np.abs(z), 0.0)[..., 0])
    return replace(scores, s=s, size=size, has_sink=True)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers in float64 with bounds on errors and sizes of each row, to first order; ``SLACK`` covers the others."""

    #: Array of the engine, [.., Sq, Sk], or NumPy array of numbers that are given, which broadcasts to that.
    x: Any
    #: Bound on the errors of a row in units of U, and on its sizes, [.., Sq].
    delta: np.ndarray
    size: np.ndarray
    engine: Engine
    is_given: bool = False

    @property
    def array(self) -> Any:
        """The array of the engine."""
        return self.engine.give(self.x) if self.is_given else self.x

    def _rounded(self, other: Numbers, of: Callable[[Any, Any], Any], delta: np.ndarray, size: np.ndarray) -> Numbers:
        """Return the result of an operation, which is rounded; its operands have errors that add up to ``delta``."""
        is_given = self.is_given and other.is_given
        x = of(self.x, other.x) if is_given else of(self.array, other.array)
        return Numbers(x, delta + size, size, self.engine, is_given)

    def __add__(self, other: Numbers) -> Numbers:
        return self._rounded(other, operator.add, self.delta + other.delta, self.size + other.size)

    def __sub__(self, other: Numbers) -> Numbers:
        return self._rounded(other, operator.sub, self.delta + other.delta, self.size + other.size)

    def __mul__(self, other: Numbers) -> Numbers:
        delta = self.delta * other.size + self.size * other.delta
        return self._rounded(other, operator.mul, delta, self.size * other.size)

    def __truediv__(self, other: Numbers) -> Numbers:
        """Return the quotient by numbers that are given."""
        assert other.is_given
        least = np.abs(other.x).min(axis=-1)
        return self._rounded(other, operator.truediv, self.delta / least, self.size / least)


class RowBounds:
    """The operations of terms with bounds for each row."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def given(self, x: np.ndarray) -> Numbers:
        """Numbers, or -inf at masked keys."""
        size = np.maximum(x.max(axis=-1, initial=0.0), -x.min(axis=-1, initial=0.0))
        if not np.isfinite(size).all():
            size = np.where(np.isfinite(x), np.abs(x), 0.0).max(axis=-1, initial=0.0)
        return Numbers(x, np.zeros(size.shape), size, self.engine, is_given=True)

    def tanh(self, x: Numbers) -> Numbers:
        """Return the tangent, whose slope is at most 1."""
        delta = x.delta + elementary_error(EVALUATION, "tanh_error") / U
        return Numbers(array_namespace(x.array).tanh(x.array), delta, np.minimum(x.size, 1.0), self.engine)


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

"""Score functions: each is the product of two operands, which are formulas of q and of k, and of a parameter.

    s_ij = scale * q'_i . k'_j        q' = f(q, p)        k' = g(k, p)

A row is all that the suite knows of one: truth, enclosure, bounds and gradients evaluate its formulas, each in an
arithmetic of its own (``arithmetic``). By the chain rule the gradient of q is what f makes of that of q'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.attention.arithmetic import Arithmetic
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Operand:
    """What q or k becomes before the product, and what the gradient of that becomes."""

    #: (arithmetic, x [rows, D], parameter) -> x' [rows, D].
    value: Callable[[Arithmetic, Any, Any], Any]
    #: (arithmetic, x, parameter, gradient of x') -> gradient of x.
    pull: Callable[[Arithmetic, Any, Any, Any], Any]


@dataclass(frozen=True, kw_only=True)
class Score:
    """All that is known of one score function."""

    formula: str
    #: Where it comes from.
    source: str
    queries: Operand
    keys: Operand
    #: The norm of q and k below which kernels differ: libraries clamp it, each at a number of its own.
    shortest: float = 0.0
    #: Whether the operands are q and k themselves.
    plain: bool = False

    def parameter(self, problem: Problem) -> Any:
        """The tensor [B, Hq, .., ..] of the option that chose the score; None of a plain one."""
        option = problem.score_option
        if option is None:
            return None
        tensor = getattr(problem, option)
        return np.broadcast_to(tensor, (*problem.score_shape[:2], *tensor.shape[2:]))


AS_GIVEN = Operand(value=lambda A, x, p: x, pull=lambda A, x, p, t: t)


def _unit(A: Arithmetic, x: Any) -> Any:
    return A.quotient(x, A.root(A.total(x * x)))


def _pulled_from_unit(A: Arithmetic, x: Any, t: Any) -> Any:
    """The gradient of x for that of u = x / |x|: (t - u (u.t)) / |x|."""
    u = _unit(A, x)
    return A.quotient(t - u * A.total(u * t), A.root(A.total(x * x)))


#: The score of each option that chooses one; of None, the product of q and k.
SCORES: dict[str | None, Score] = {
    None: Score(
        formula="q.k",
        source="Vaswani et al. (2017), equation 1",
        queries=AS_GIVEN,
        keys=AS_GIVEN,
        plain=True,
    ),
    "score_weight": Score(
        formula="q^T W k",
        source="Luong et al., arXiv 1508.04025, section 3.1, general",
        queries=AS_GIVEN,
        keys=Operand(
            value=lambda A, k, W: A.product(k, A.transposed(W)),
            pull=lambda A, k, W, t: A.product(t, W),
        ),
    ),
    "score_gamma": Score(
        formula="gamma q.k / (|q| |k|), and 0 where q or k is 0",
        source="Graves et al., Neural Turing machines, arXiv 1410.5401, equations 5 and 6",
        shortest=1e-6,
        queries=Operand(
            value=lambda A, q, gamma: _unit(A, q),
            pull=lambda A, q, gamma, t: _pulled_from_unit(A, q, t),
        ),
        keys=Operand(
            value=lambda A, k, gamma: gamma * _unit(A, k),
            pull=lambda A, k, gamma, t: _pulled_from_unit(A, k, gamma * t),
        ),
    ),
}


def score_of(problem: Problem) -> Score:
    """The score function of a problem."""
    return SCORES[problem.score_option]

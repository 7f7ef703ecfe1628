"""Weightings: formulas from the scores of a query to its weights, and from gradients of weights to those of scores.

    P_j = w(s)_j / N        N = epsilon + sum_l w(s)_l        L = log N        over the keys that the query sees

w is the exponential, and epsilon 0, or in linear attention w(s) = s.

A row is all that truth knows of one: the definition and its enclosures evaluate its formulas, in an arithmetic each.
What rounding does to weights is a theorem of its own (``bounds.forward.weight_bounds``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attn_spec.attention.operations import Elementary

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """A weighting. Scores and weights of a query are arrays [1, n] of its n >= 1 visible keys."""

    formula: str
    #: Source of the formula.
    source: str
    #: (arithmetic, s) -> P and L.
    value: Callable[[Elementary, Any], tuple[Any, Any]]
    #: (arithmetic, s, P, dP, dL) -> the gradient of s.
    pull: Callable[[Elementary, Any, Any, Any, Any], Any]


def _softmax(A: Elementary, s: Any) -> tuple[Any, Any]:
    """Exponentials of s less r, which is exact mathematics for any number r."""
    r = A.reference(s)
    e = A.exp(s - r)
    total = A.total(e)
    return A.divided(e, total), r + A.log(total)


def _through_softmax(A: Elementary, s: Any, P: Any, dP: Any, dL: Any) -> Any:
    """P (dP - sum P dP + dL), from dP less any number: that of the heaviest key, whose P may be near 1."""
    del s
    less = A.less(dP, A.heaviest(P))
    return P * (less - A.total(P * less) + dL)


@dataclass(frozen=True)
class _Linear:
    """Scores over their sum and epsilon."""

    epsilon: float

    def value(self, A: Elementary, s: Any) -> tuple[Any, Any]:
        N = A.total(s) + self.epsilon
        return A.divided(s, N), A.log(N)

    def pull(self, A: Elementary, s: Any, P: Any, dP: Any, dL: Any) -> Any:
        """(dP - sum P dP + dL) / N."""
        return A.divided(dP - A.total(P * dP) + dL, A.total(s) + self.epsilon)


SOFTMAX = Weighting(
    formula="exp(s_j)",
    source="Vaswani et al., Attention is all you need (2017), equation 1; its gradient is in Dao et al., "
    "FlashAttention (2022), appendix B.2",
    value=_softmax,
    pull=_through_softmax,
)


def weighting_of(problem: Problem) -> Weighting:
    """Return the weighting of a problem."""
    if problem.feature_map is None:
        return SOFTMAX
    linear = _Linear(problem.feature_epsilon or 0.0)
    return Weighting(
        formula="s_j",
        source="Katharopoulos et al., Transformers are RNNs, arXiv 2006.16236, equation 4",
        value=linear.value,
        pull=linear.pull,
    )

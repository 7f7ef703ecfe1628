"""The domain of the bounds of gradients: the elements on whose way nothing overflows, hidden keys included.

Rows and keys are judged apart: one row that may overflow silences no other.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.backward.weight_gradient_bounds import cotangent_entering, largest_quotient
from attn_spec.bounds.forward.domain import empty_rows_in_domain, in_domain, lse_fits, most_of_row
from attn_spec.bounds.forward.product_bounds import last_factor
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard, term, times


@np.errstate(all="ignore")
def score_gradients_fit(
    x: Intermediates,
    near: Intermediates,
    g: GradientIntermediates,
    c: ResolvedContract,
    *,
    X: np.ndarray,
    dA: np.ndarray,
    used: dict[str, np.ndarray],
) -> np.ndarray:
    """Rows [B, Hq, Sq] in the forward domain whose score gradients cannot overflow, nor what they are made of.

    ``near`` leaves far keys out; ``X`` and ``dA`` [B, Hq, Sq, Sk] are the errors of X = dP - D + dL and of dA, ``used``
    those of "output" and "lse" where the backward pass reads them. A row that sees no key has no score gradient, as
    long as nothing that is hidden overflows, of which a weight of 0 makes NaN.
    """
    forward = in_domain(near, c, used.get("output", np.zeros(x.O.shape)))
    if "lse" in used:
        # No contract says of which base it is.
        fits = lse_fits(near, c, used["lse"], unit=math.log(2.0))
        forward &= guard("log-sum-exps that the backward pass reads", fits, True)
    cotangent, _ = cotangent_entering(near, g, c)
    products = x.largest_factor * (cotangent @ value_sizes(x, c).swapaxes(-1, -2))
    products = products * times("quotients of cotangents by row sums", largest_quotient(near, c))
    delta = (cotangent * np.abs(x.O)).sum(-1)
    dL = 0.0 if g.lse_cotangent is None else np.abs(g.lse_cotangent)
    off = most_of_row(X)
    reached = np.maximum(
        term("products of cotangents and values", most_of_row(products) + off),
        np.maximum(
            term("delta and the cotangent of the log-sum-exp", delta + dL + off),
            term("the difference of dP and delta", most_of_row(np.abs(g.X) + X)),
        ),
    )
    reached = np.maximum(
        reached,
        term(
            "score gradients that are scaled before their products", _early_factor(x) * most_of_row(np.abs(g.dA) + dA)
        ),
    )
    return guard("score gradients of rows outside the forward domain", forward | empty_rows_in_domain(x, c), True) & (
        reached <= _largest_score_gradient(c)
    )


def sums_fit(
    x: Intermediates, c: ResolvedContract, sums: np.ndarray, growth: np.ndarray, last: float | None = None
) -> np.ndarray:
    """Return where gradients whose terms have sizes that add up to ``sums`` [.., rows, D] cannot overflow, [.., rows].

    They grow by the roundings of sums; ``last`` multiplies them, by default what may multiply dS.
    """
    stages = ("gradient_accumulation", "inner_accumulation", "partial_gradients", "score_accumulation")
    widest = (_early_factor(x) if last is None else last) * most_of_row(sums * (1 + growth))
    return (widest <= c.largest(*stages)) & np.isfinite(widest)


def _early_factor(x: Intermediates) -> float:
    """The largest number that may multiply dS, before its products or after."""
    return max(last_factor(x), abs(x.problem.scale_value) / (x.problem.softcap or 1.0))


def _largest_score_gradient(c: ResolvedContract) -> float:
    return c.largest(
        *("multiplicands", "score_accumulation", "stored_scores", "softmax", "weight_gradients", "score_gradients"),
        *("inner_accumulation", "gradient_accumulation"),
    )

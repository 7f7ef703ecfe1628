"""The domain of the bounds of gradients: the elements on whose way nothing overflows, hidden keys included.

Rows and keys are judged apart: one row that may overflow silences no other.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.attention.terms import divisor
from attn_spec.bounds.backward.weight_gradient_bounds import cotangent_entering, largest_quotient
from attn_spec.bounds.forward.domain import empty_rows_in_domain, in_domain, lse_fits, most_of_row
from attn_spec.bounds.forward.product_bounds import last_factor
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard, term, times


@np.errstate(all="ignore")
def score_gradients_fit(
    forward: Intermediates,
    near: Intermediates,
    grad: GradientIntermediates,
    contract: ResolvedContract,
    *,
    E_X: np.ndarray,
    E_dA: np.ndarray,
    used: dict[str, np.ndarray],
) -> np.ndarray:
    """Rows [B, Hq, Sq] in the forward domain whose score gradients cannot overflow, nor what they are made of.

    ``near`` leaves far keys out; ``E_X`` and ``E_dA`` [B, Hq, Sq, Sk] are the errors of X = dP - D + dL and of dA,
    ``used`` those of "output" and "lse" where the backward pass reads them. A row that sees no key has no score
    gradient, as long as nothing that is hidden overflows, of which a weight of 0 makes NaN.
    """
    inside = in_domain(near, contract, used.get("output", np.zeros(forward.O.shape)))
    if "lse" in used:
        # No contract says of which base it is.
        fits = lse_fits(near, contract, used["lse"], unit=math.log(2.0))
        inside &= guard("log-sum-exps that the backward pass reads", fits, True)
    cotangent, _ = cotangent_entering(near, grad, contract)
    products = forward.largest_factor * (cotangent @ value_sizes(forward, contract).swapaxes(-1, -2))
    products = products * times("quotients of cotangents by row sums", largest_quotient(near, contract))
    delta = (cotangent * np.abs(forward.O)).sum(-1)
    dL = 0.0 if grad.lse_cotangent is None else np.abs(grad.lse_cotangent)
    off = most_of_row(E_X)
    reached = np.maximum(
        term("products of cotangents and values", most_of_row(products) + off),
        np.maximum(
            term("delta and the cotangent of the log-sum-exp", delta + dL + off),
            term("the difference of dP and delta", most_of_row(np.abs(grad.X) + E_X)),
        ),
    )
    reached = np.maximum(
        reached,
        term(
            "score gradients that are scaled before their products",
            _early_factor(forward) * most_of_row(np.abs(grad.dA) + E_dA),
        ),
    )
    return guard(
        "score gradients of rows outside the forward domain", inside | empty_rows_in_domain(forward, contract), True
    ) & (reached <= _largest_score_gradient(contract))


def sums_fit(
    forward: Intermediates, contract: ResolvedContract, sums: np.ndarray, growth: np.ndarray, last: float | None = None
) -> np.ndarray:
    """Return where gradients whose terms have sizes that add up to ``sums`` [.., rows, D] cannot overflow, [.., rows].

    They grow by the roundings of sums; ``last`` multiplies them, by default what may multiply dS.
    """
    stages = ("products", "gradient_accumulation", "inner_accumulation", "partial_gradients", "score_accumulation")
    widest = (_early_factor(forward) if last is None else last) * most_of_row(sums * (1 + growth))
    return (widest <= contract.largest(*stages)) & np.isfinite(widest)


def _early_factor(forward: Intermediates) -> float:
    """Return the largest number that may multiply dS, before its products or after."""
    return max(last_factor(forward), abs(forward.problem.scale_value) / (divisor(forward.problem) or 1.0))


def _largest_score_gradient(contract: ResolvedContract) -> float:
    return contract.largest(
        *("multiplicands", "score_accumulation", "stored_scores", "softmax", "weight_gradients", "score_gradients"),
        *("products", "inner_accumulation", "gradient_accumulation"),
    )

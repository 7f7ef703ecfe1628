"""Products of the gradients of the scores with k, q or dO, summed over keys or queries: what their sums add to errors.

Symbols as in ``gradient_bounds``.
"""

from __future__ import annotations

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.intermediates import Intermediates
from attn_spec.error.products import Factors, entry, left_out, sum_underflow, sums, terms
from attn_spec.error.roundoff import Rounding, conversion, growth, is_power_of, rounding
from attn_spec.error.score_bounds import last_factor, operand_entry, operand_format, operand_scaling
from attn_spec.error.score_gradient_bounds import ScoreGradientError


def product_error(
    b: ScoreGradientError,
    n: np.ndarray,
    *,
    own: np.ndarray,
    total: np.ndarray,
    seen: np.ndarray,
    early: np.ndarray,
    entered: np.ndarray,
) -> np.ndarray:
    """Error of a product of dS with k or q: errors of dS, then accumulation, scaling and storing.

    ``own`` is what the errors of dS make of it, ``total`` the sum of sizes of its products; of the sums over the same
    ``n`` terms, ``seen`` is that of |k| or |q|, ``early`` that of its products with what underflows early, and
    ``entered`` that of |dS|.

    The scale costs three roundings: two of the constant, one of the product. So does a softcap c, where the slope of
    the tanh was multiplied by sigma / c: its inverse, the quotient and a second product (c itself cancels).
    """
    c, sigma, cap = b.c, abs(b.x.problem.scale_value), b.x.problem.softcap
    # The product may reuse the q or k that the forward pass had scaled before entry.
    operand, scaled = operand_entry(b.x, c), operand_scaling(b.x, c)
    work, tiny_sum = rounding(c, "score_accumulation"), underflow_of_sum(c)
    gradients = c.format("score_gradients")
    dS_entry = entry(c, gradients)
    missing = left_out(c, gradients, operand_format(b.x, c))
    last = 3 * sum(not is_power_of(2, constant) for constant in (sigma, cap or 1.0))
    widened = conversion(c, "score_accumulation", c.format("gradient_accumulation"))
    scaling = ((scaled.u, 1), (widened.u, 1), (work.u, last + (2 if scaled.u else 0)))
    G = growth((operand.u, 1), (dS_entry.u, 1), (missing, 1), *scaling, *accumulated(c, n))
    unscaled = own + G * total + (1 + G) * dS_entry.eta * seen
    stores, partial = intermediate_stores(c, n)
    tiny = tiny_sum * 4 * terms(c, n) + partial.eta * 2 * (stores + n * (partial.u > 0))
    factor = last_factor(b.x)
    entering = (operand.eta + scaled.eta) * (sigma * entered + factor * n * dS_entry.eta) + early
    return sigma * unscaled + (1 + G) * entering + factor * tiny + work.eta


def accumulated(c: ResolvedContract, n: np.ndarray | np.float64) -> Factors:
    """Factors of a sum of n products in the accumulator, and of its stores in between."""
    stores, partial = intermediate_stores(c, n)
    return (*sums(c, "gradient_accumulation", n), (partial.u, stores))


def intermediate_stores(c: ResolvedContract, n: np.ndarray | np.float64) -> tuple[np.ndarray, Rounding]:
    """How often a partial sum of n terms is stored, and the rounding: adding 0 to a stored sum rounds nothing."""
    return np.minimum(c.gradient_stores, n), partial_rounding(c)


def partial_rounding(c: ResolvedContract) -> Rounding:
    """Rounding of a partial sum to the format it waits in: none, but underflow, where that is the accumulator's."""
    return Rounding(
        conversion(c, "partial_gradients", c.format("gradient_accumulation")).u, rounding(c, "partial_gradients").eta
    )


def underflow_of_sum(c: ResolvedContract) -> float:
    """Absolute error of one product or addition in the accumulators of gradients."""
    return sum_underflow(c, "gradient_accumulation")


def queries_that_see(x: Intermediates) -> np.ndarray:
    """How many queries of the head group see each key, [B, Hkv, Sk, 1]."""
    return x.over_group(x.visible.sum(axis=-2)[..., None])

"""A part of every bound of dQ, dK and dV that sums of sizes tell: what a contract allows whatever scores are.

With S = sum |dS| |k| or |q| (or P |dO|), and (u, eta) the last rounding, the error is allowed to be at least

    sigma (r + G (1 + r)) S + u |dQ| + eta        dQ, dK        r: growth of the cast and the store of dS
    (r + G (1 + r)) S + u |dV| + eta              dV            r: that of the cast of a weight

with G the growth of the sum, ``gradient_bounds.product_growth`` or ``value_gradient_bounds.value_growth``. Of the
bounds these are summands, all others being 0 or more. The error of dS is at least r |dS|, that of its last step
(``score_gradient_bounds``). So is what it has of its own, beside what a row has in common: PA >= P (e^common - 1) and P
(1 + A) >= P e^common, so the error of dA is at least P (g |X| + (1 + g) e_D), which is all that is taken off; the slope
of a softcap multiplies both alike. The error of a weight that was cast is at least the cast's.

What keeps within this part needs no look at the whole: it is refuted under no contract that has it.
"""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.backward.gradient_bounds import product_growth
from attn_spec.bounds.backward.gradient_sums import last_cast
from attn_spec.bounds.backward.value_gradient_bounds import value_growth
from attn_spec.bounds.forward.least_bounds import DEFLATION
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import probability_cast
from attn_spec.contract.roundoff import gamma


@np.errstate(all="ignore")
def least_gradient_error(
    forward: Intermediates, contract: ResolvedContract, name: str, *, n: np.ndarray, value: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """At most what :func:`gradient_bounds.gradient_bound` allows "dq", "dk" or "dv", [.., rows, D].

    ``n`` [.., rows, 1] counts the terms of each sum, whose sizes add up to ``size`` at least; the gradient has a size
    of ``value`` at least. ``forward`` is any row of a problem with a plain score; no value is taken from it.
    """
    if name == "dv":
        sigma, r, G = 1.0, math.expm1(-math.log1p(-probability_cast(contract).u)), value_growth(forward, contract, n)
    else:
        cast = contract.stages.score_gradients.of(contract.stages.stored_scores.format)
        stored = contract.stages.stored_scores.of(contract.stages.score_accumulation.format)
        sigma, r = abs(forward.problem.scale_value), gamma((cast.u, 1), (stored.u, 1))
        G = product_growth(forward, contract, n)
    out = last_cast(contract, forward.problem.dtype_of(name[1:], contract.gradients))
    return (sigma * (r + G * (1 + r)) * size + out.u * value + out.eta) * DEFLATION

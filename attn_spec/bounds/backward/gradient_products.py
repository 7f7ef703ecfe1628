"""Bounds of the products that dQ and dK are: dS with k, and dS^T with q.

Errors of dS come first, then the roundings of the product, of the scale and of what is stored.
"""

from __future__ import annotations

import numpy as np

from attn_spec.attention.terms import divisor
from attn_spec.bounds.backward.gradient_key_sums import (
    KeySums,
    ProductSums,
)
from attn_spec.bounds.backward.gradient_sums import (
    accumulated,
    stored_sums,
    sum_eta,
)
from attn_spec.bounds.backward.latent_gradients import key_gradient_error
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError
from attn_spec.bounds.backward.value_gradient_bounds import dv_error
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.forward.product_bounds import last_factor, operand_entry, operand_format, operand_scaling
from attn_spec.bounds.forward.row_sum_bounds import evaluation_alpha
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import number_of_products, rounding_on_entry, skipped_pieces
from attn_spec.contract.roundoff import gamma, is_power_of
from attn_spec.contract.terms import count, term, times


def dq_error(errors: ScoreGradientError, slack: np.ndarray | float) -> np.ndarray:
    """sigma sum_j dS_ij k_j: [.., Sq, D].

    What the errors dS_j of a row have in common is summed with the signs of k.
    """
    size, k = errors.forward.k_size, errors.forward.k
    together = errors.E_dS @ size
    sigma = abs(errors.forward.problem.scale_value)
    kept = np.abs(errors.grad.dS @ k) + (slack / sigma if sigma else 0.0)
    # The sum of P k is itself evaluated in float64, from P with its own error.
    evaluated = np.expm1(4 * evaluation_alpha(errors.near))[..., None] + max(2.0**-40, k.shape[-2] * 2.0**-52)
    shared = np.abs(errors.P_slope @ k) + term("the evaluation of P k", evaluated * (errors.P_slope @ size))
    apart = (
        term("keys' own errors in dq", errors.own @ size)
        + term("the row's weights in dq", errors.G * kept)
        + term("delta in dq", errors.E_D * shared)
    )
    dS_size = np.abs(errors.grad.dS) + errors.E_dS
    sums = ProductSums(
        own=np.fmin(together, apart),
        total=dS_size @ size,
        seen=errors.forward.visible @ size,
        early=errors.early @ size,
        entered=dS_size.sum(-1, keepdims=True),
        n=errors.forward.keys,
    )
    return product_error(errors.forward, errors.contract, sums, errors.forward.largest_factor)


def dk_error(forward: Intermediates, contract: ResolvedContract, sums: KeySums) -> np.ndarray:
    """sigma sum over queries and the head group of dS_ij q_i: [B, Hkv, Sk, D]."""
    return product_error(forward, contract, sums.k_sums, sums.raised)


def dkv_error(forward: Intermediates, contract: ResolvedContract, sums: KeySums) -> np.ndarray:
    """Error of dK + [dV, 0] of a plain score: [B, Hkv, Sk, D]."""
    sigma, form = forward.problem.scale_value, contract.stages.gradient_accumulation.format
    error = dk_error(forward, contract, sums)
    dk = Approximation(sigma * sums.of_k, abs(sigma) * sums.k_sums.total, error, form, contract)
    return key_gradient_error(contract, dk, dv_error(forward, contract, sums), sums.k_sums.n)


def product_error(forward: Intermediates, contract: ResolvedContract, sums: ProductSums, raised: float) -> np.ndarray:
    """Error of a product of dS with k or q: errors of dS, then accumulation, scaling and storing.

    Dropout raises a weight by ``raised`` at most.

    The scale costs three roundings: two of the constant, one of the product. So does a divisor c, where the slope
    was multiplied by sigma / c: its inverse, the quotient and a second product (c itself cancels). Dropout may
    have its factor 1 / (1 - p) here, see ``dropout_bounds``.
    """
    n, sigma, G = sums.n, abs(forward.problem.scale_value), product_growth(forward, contract, sums.n)
    operand, scaled = operand_entry(forward, contract), operand_scaling(forward, contract)
    work, tiny_sum, dS_entry = (
        contract.stages.score_accumulation,
        sum_eta(contract),
        rounding_on_entry(contract, contract.stages.score_gradients.format),
    )
    unscaled = (
        term("the error of dS in dq and dk", sums.own)
        + term("roundings of dq and dk", G * sums.total)
        + term(
            "underflow of dS on entry",
            times("roundings make the underflow of dS grow", 1 + G)
            * dS_entry.eta
            * sums.seen
            * times("underflow of dS on entry, raised", raised),
        )
    )
    stores, partial = stored_sums(contract, n)
    tiny = term(
        "underflow of dq's and dk's sums",
        tiny_sum * count("several underflows of dq's and dk's sums", 4) * number_of_products(contract, n),
    ) + term(
        "underflow of dq's and dk's stores",
        partial.eta * 2 * (stores + term("underflow of stored products of dq and dk", n * (partial.u > 0))),
    )
    factor = times("underflow of sums of dq and dk, raised", raised) * last_factor(forward)
    entering = term(
        "underflow of operands in dq and dk",
        (
            term("underflow of operands on entry in dq and dk", operand.eta)
            + term("underflow of scaled operands in dq and dk", scaled.eta)
        )
        * (sigma * sums.entered + term("underflow of both factors of dq and dk", factor * n * dS_entry.eta)),
    ) + term("underflow of a dS that is scaled early", sums.early)
    return (
        sigma * unscaled
        + times("roundings make underflow grow in dq and dk", 1 + G) * entering
        + term("all underflow of dq's and dk's sums", times("a scale that magnifies underflow", factor) * tiny)
        + term("underflow of the last scale", work.eta)
    )


def product_growth(forward: Intermediates, contract: ResolvedContract, n: np.ndarray) -> np.ndarray:
    """Relative error of a sum of n products of dS with k or q, after its scale; ``forward`` is a row of the problem."""
    # The product may reuse the q or k that the forward pass had scaled before entry.
    operand, scaled = operand_entry(forward, contract), operand_scaling(forward, contract)
    gradients, work = contract.stages.score_gradients.format, contract.stages.score_accumulation
    dS_entry, missing = (
        rounding_on_entry(contract, gradients),
        skipped_pieces(contract, gradients, operand_format(forward, contract)),
    )
    last = last_roundings(forward)
    widened = work.of(contract.stages.gradient_accumulation.format)
    last = last + term("the root that is left for the last scale", 2 if scaled.u else 0)
    scaling = (
        (scaled.u, count("the operand that was scaled for dq and dk", 1)),
        (widened.u, count("storing dq and dk before their scale", 1)),
        (work.u, term("all roundings of the last scale", last)),
    )
    late = late_roundings(forward, contract)
    return gamma(
        (operand.u, count("the scaled operand's entry in dq and dk", 1)),
        (dS_entry.u, count("the entry of dS", 1)),
        (missing, count("pieces left out of dq and dk", 1)),
        *term("1 / (1 - p) at the end of dq and dk", late, ()),
        *term("scaling in dq and dk", scaling, ()),
        *term("sums of dq and dk", accumulated(contract, n), ()),
    )


def last_roundings(forward: Intermediates) -> int:
    """Return the roundings of the scale, and of a divisor of scores: none of powers of 2."""
    constants = (
        abs(forward.problem.scale_value),
        times("the softcap as the last factor", divisor(forward.problem) or 1.0),
    )
    return count("roundings of the last scale", 3) * sum(not is_power_of(2, constant) for constant in constants)

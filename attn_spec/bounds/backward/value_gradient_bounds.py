"""Bounds on the error of dV = P^T dO, a sum over queries of products of weights with cotangents.

Symbols are those of ``gradient_bounds``.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.backward.gradient_key_sums import KeySums
from attn_spec.bounds.backward.gradient_sums import (
    accumulated,
    stored_sums,
    sum_eta,
)
from attn_spec.bounds.backward.weight_gradient_bounds import cotangent_entry, cotangent_format
from attn_spec.bounds.forward.dropout_bounds import factor_roundings, factor_underflow, weight_stages
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import number_of_products, skipped_pieces
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import count, term, times


def dv_error(forward: Intermediates, contract: ResolvedContract, sums: KeySums) -> Approximation:
    """Sum over queries and the head group of c_ij P_ij dO_i: [B, Hkv, Sk, Dv]; of a layer that of each head."""
    cotangent, n, G = cotangent_entry(contract), sums.v_sums.n, value_growth(forward, contract, sums.v_sums.n)
    factor_eta = factor_underflow(forward, contract, *weight_stages(contract), "gradients")
    stores, partial = stored_sums(contract, n)
    tiny = times("underflow of sums of dv, raised", sums.raised) * (
        term(
            "underflow of dv's sums",
            sum_eta(contract) * count("several underflows of dv's sums", 4) * number_of_products(contract, n),
        )
        + term("underflow of dv's stores", partial.eta * 2 * (stores + n))
    ) + term("underflow of dv when it is raised", term("underflow of the product of dV with 1 / (1 - p)", factor_eta))
    error = (
        term("weights in dv", sums.v_sums.own)
        + term("roundings of dv", G * sums.v_sums.total)
        + times("roundings make underflow grow in dv", 1 + G)
        * (
            term("underflow of weights in dv", sums.v_sums.eta)
            + term("underflow of dO on entry", cotangent.eta * sums.v_sums.entered)
        )
        + tiny
    )
    return Approximation(sums.of_v, sums.v_sums.total, error, contract.stages.gradient_accumulation.format, contract)


def value_growth(forward: Intermediates, contract: ResolvedContract, n: np.ndarray) -> np.ndarray:
    """Relative error of a sum of n products of weights with dO."""
    cotangent, missing = (
        cotangent_entry(contract),
        skipped_pieces(contract, contract.stages.probabilities.format, cotangent_format(contract)),
    )
    factor = factor_roundings(forward, contract, *weight_stages(contract), "gradients")
    return gamma(
        (cotangent.u, count("entry of dO", 1)),
        (missing, count("pieces left out of dv", 1)),
        *term("the product of dV with 1 / (1 - p)", factor, ()),
        *term("sums of dv", accumulated(contract, n), ()),
    )

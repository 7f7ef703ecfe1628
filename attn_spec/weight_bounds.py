"""How far a score, and a softmax weight, may lie from the truth under a contract: one function per theorem.

Symbols: s scores, M row maximum, Delta error of a score, alpha error of the logarithm of a weight, R rescalings one
weight can see, sigma the scale. All arrays are [B, Hq, Sq, Sk] and 0 where a key is hidden.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from attn_spec import bits
from attn_spec.contract import Contract
from attn_spec.formats import FORMATS
from attn_spec.intermediates import Intermediates
from attn_spec.roundoff import (
    EXACT,
    Rounding,
    conversion,
    elementary_error,
    growth,
    holds,
    is_power_of,
    multiplicand,
    rounding,
)


def dot_product_error(x: Intermediates, c: Contract) -> np.ndarray:
    """Error of q.k before the scale: |q|.|k| K((u_in, 2), (u_s, d)) + underflow.

    One product passes at most d roundings, for every order and tree (Higham, section 3.1). The error is 0 where
    every partial sum is exact, see :func:`exact_scores`.
    """
    accumulator, scaled = rounding(c, "score_accumulation"), operand_scaling(x, c)
    entry, sigma, d = multiplicand(c, x.problem.dtype), abs(x.problem.scale_value), x.problem.head_dim
    factors = [(entry.u, 2), (accumulator.u, min(d, c.summation_depth or d)), (scaled.u, 2)]
    #: A product may have been scaled already when it underflows.
    unscale = max(1.0, 1 / sigma if sigma else 1.0)
    entry = Rounding(entry.u, entry.eta + scaled.eta)
    sums = np.abs(x.q).sum(-1)[..., :, None] + np.abs(x.k).sum(-1)[..., None, :]
    underflow = 2 * d * accumulator.eta * unscale + 2 * entry.eta * (sums + d * entry.eta)
    return np.where(exact_scores(x, c), 0.0, x.magnitude * growth(*factors) + underflow)


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def exact_scores(x: Intermediates, c: Contract) -> np.ndarray:
    """Where q.k is exact in any order: every partial sum is a multiple of g = 2^(low q + low k) below 2^p g.

    ``low`` is the exponent of the lowest set bit of a vector's entries; p the accumulator's precision.
    """
    form = c.format("score_accumulation")
    sigma = abs(x.problem.scale_value)
    if multiplicand(c, x.problem.dtype).u or operand_scaling(x, c).u:
        return np.zeros(x.dot.shape, dtype=bool)
    low_q = bits.lowest_bit_exponent(x.q, -1)[..., :, None]
    low_k = bits.lowest_bit_exponent(x.k, -1)[..., None, :]
    low = low_q + low_k
    fits = np.log2(x.magnitude) <= form.precision + np.minimum(low, 4000.0) - 1e-9
    scaled_low = np.minimum(np.minimum(low_q, low_k), low) + min(0.0, math.log2(sigma) if sigma else 0.0)
    return fits & (scaled_low >= form.emin)


@np.errstate(all="ignore")
def score_error(x: Intermediates, c: Contract) -> np.ndarray:
    """Delta: error of the finished score.

    Scale: two roundings of the constant, one of the product. Softcap: the slope of c tanh(s/c) is sech^2(s/c), which
    falls with |s|, so an error e of the argument costs at most e sech^2((|s| - e)/c). Bias: one rounding. Each
    result is stored.
    """
    delta = softcapped_error(x, c)
    if x.problem.bias is not None:
        delta = _bias_error(x, c, delta, x.problem.bias)
    return np.where(x.visible, delta, 0.0)


def softcapped_error(x: Intermediates, c: Contract) -> np.ndarray:
    """Error of the score after the scale and the softcap, before the bias."""
    stored, work = rounding(c, "stored_scores"), rounding(c, "score_accumulation")
    sigma = abs(x.problem.scale_value)
    delta = sigma * dot_product_error(x, c)
    narrows = not holds(c.format("stored_scores"), c.format("score_accumulation"))
    if narrows:
        delta = delta + stored.u * (np.abs(x.scaled) + delta) + sigma * stored.eta
    if not is_power_of(2, sigma):
        delta = delta + growth((work.u, 2), (stored.u, 1)) * (np.abs(x.scaled) + delta) + stored.eta
    elif sigma < 1:
        delta = delta + np.where(exact_scores(x, c) & (not narrows), 0.0, stored.eta)
    return delta if x.problem.softcap is None else _softcap_error(x, c, delta, x.problem.softcap)


def _softcap_error(x: Intermediates, c: Contract, delta: np.ndarray, cap: float) -> np.ndarray:
    stored, work = rounding(c, "stored_scores"), rounding(c, "score_accumulation")
    delta = delta + growth((work.u, 2), (stored.u, 1)) * (np.abs(x.scaled) + delta) + cap * stored.eta
    nearest = np.maximum(np.abs(x.scaled) - delta, 0.0) / cap
    slope = np.cosh(np.minimum(nearest, 300.0)) ** -2.0
    delta = np.minimum(delta * slope, 2 * cap) + cap * (elementary_error(c, "tanh_error") + 2 * stored.eta)
    return delta + growth((work.u, 1), (stored.u, 2)) * (np.abs(x.capped) + delta) + stored.eta


def _bias_error(x: Intermediates, c: Contract, delta: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """One rounding of the sum; with base 2, score and bias are each multiplied by a rounded log2(e) first."""
    stored, work = rounding(c, "stored_scores"), rounding(c, "score_accumulation")
    if c.exponent == "base2":
        delta = delta + 3 * work.u * (np.abs(x.capped) + delta + np.where(np.isfinite(bias), np.abs(bias), 0.0))
        delta = delta + 2 * work.eta
    return delta + stored.u * (np.abs(x.s) + delta) + stored.eta


def rescalings(x: Intermediates, c: Contract, delta: np.ndarray) -> np.ndarray:
    """R: how often one weight can be multiplied by a rescale factor other than exp(0).

    A weight is rescaled when the running maximum rises strictly. Each rise is owed to another key whose computed
    score exceeds the weight's own, so R is at most the number of such keys, for any order, tiling or tree of
    merges; and at most one less than the number of tiles.
    """
    tiles = max(math.ceil(x.problem.key_length / c.kv_tile), 1)
    if tiles == 1 or not c.exp_of_zero_is_one:
        return np.full(x.s.shape, float(tiles - 1))
    upper = np.where(x.visible, x.s + delta, -np.inf)
    lower = np.where(x.visible, x.s - delta, np.inf)
    others = _count_above(upper, lower) - (x.visible & (upper > lower))
    return np.minimum(others, tiles - 1).astype(np.float64)


def _count_above(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """For each entry of ``lower``, how many entries of ``upper`` in its row exceed it."""
    n = upper.shape[-1]
    order = np.argsort(np.concatenate([upper, lower], axis=-1), axis=-1, kind="stable")
    not_above = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(not_above, order, np.cumsum(order < n, axis=-1), axis=-1)
    return n - not_above[..., n:]


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def log_weight_error(x: Intermediates, c: Contract) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """alpha with |log(w_hat / w)| <= alpha for every weight w = exp(s - m), and the R and Delta it was made of.

    The exponents of a weight and of its rescale factors are non-positive and sum to s - M, so rounding all those
    arguments together costs no more than rounding the one argument x = M - s (they telescope), whatever the tiling.
    With base 2 the arguments are products with a rounded log2(e), which costs 6u x + u |s| + 2u max|s| more.

    Merging normalized parts, o = sum_t e^(L_t - L) o_t, is merging (m_t, l_t, acc_t) with a factor common to all
    weights of part t: the error of its rounded L_t, and that of the exponential.
    """
    delta = score_error(x, c)
    softmax, work = rounding(c, "softmax"), rounding(c, "score_accumulation")
    distance = _distance(x, c, delta)
    alpha = delta + np.where(_exact_differences(x, c, delta), 0.0, softmax.u) * distance
    if c.exponent == "base2":
        size = np.where(x.visible, np.abs(x.s) + delta, 0.0)
        alpha = alpha + work.u * (6 * distance + size + 2 * size.max(axis=-1, keepdims=True, initial=0.0))
        alpha = alpha + 2 * work.eta
    R = rescalings(x, c, delta)
    alpha = alpha + (1 + R) * exponential_error(c)
    if c.lse_merges:
        alpha = alpha + c.lse_merges * (partial_lse_error(x, c) + merge_weight_error(x, c))
    return np.where(x.visible, alpha, 0.0), R, delta


def exponential_error(c: Contract) -> float:
    """Largest error of the logarithm of one exponential: its own, and its rounding."""
    softmax = rounding(c, "softmax")
    return 2 * softmax.eta - math.log1p(-elementary_error(c, "exp_error")) - math.log1p(-softmax.u)


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def partial_lse_error(x: Intermediates, c: Contract) -> np.ndarray:
    """Error of the log-sum-exp L_t of any part of a row, given its row sum l_t and reference m_t, [.., Sq, 1].

    1 <= l_t < n e^(slack + 1) whatever the part, so |log l_t| < log n + slack + 1 and |L_t| is at most that much more
    than the largest score. One logarithm, one sum, one store; with base 2 both summands are multiplied by ln 2.
    """
    log_sum = np.log(np.maximum(x.keys, 1)) + c.reference_slack + 1
    size = _largest_score(x, c) + log_sum
    work, softmax, final = (rounding(c, stage).u for stage in ("score_accumulation", "softmax", "lse"))
    base2 = 4 if c.exponent == "base2" else 0
    relative = growth((softmax, 2), (final, 1), (work, base2))
    return elementary_error(c, "log_error") * (1 + log_sum) + relative * size


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def merge_weight_error(x: Intermediates, c: Contract) -> np.ndarray:
    """Error of the logarithm of one computed e^(L_t - L), given L_t and L, for the part t of each key.

    L is the largest L_t, or their own log-sum-exp, so the argument is at most M - s + 2 log n in size.
    """
    delta = score_error(x, c)
    argument = _distance(x, c, delta) + 2 * np.log(np.maximum(x.keys, 1)) + 1
    work, softmax = (rounding(c, stage).u for stage in ("score_accumulation", "softmax"))
    error = softmax * argument + exponential_error(c)
    if c.exponent == "base2":  # a difference of natural logarithms is multiplied by a rounded log2(e)
        error = error + 2 * work * argument
    return np.where(x.visible, error, 0.0)


def _distance(x: Intermediates, c: Contract, delta: np.ndarray) -> np.ndarray:
    """Largest size of the arguments that make up one weight: M - s as computed, and the slack of the reference."""
    return x.M - x.s + delta + delta.max(axis=-1, keepdims=True, initial=0.0) + 2 * c.reference_slack


def _largest_score(x: Intermediates, c: Contract) -> np.ndarray:
    """Largest |s| + Delta of each row, [.., Sq, 1]."""
    size = np.where(x.visible, np.abs(x.s), 0.0) + score_error(x, c)
    return size.max(axis=-1, keepdims=True, initial=0.0)


def _exact_differences(x: Intermediates, c: Contract, delta: np.ndarray) -> np.ndarray:
    """Rows whose scores are exact and whose differences s - M fit the softmax's format on the scores' grid."""
    sigma = abs(x.problem.scale_value)
    plain = x.problem.bias is None and x.problem.softcap is None and c.reference_slack == 0
    plain = plain and c.exponent == "natural"  # multiplied by log2(e), scores leave their grid
    if not (plain and is_power_of(2, sigma)) or not x.s.size:
        return np.zeros((*x.s.shape[:-1], 1), dtype=bool)
    low = bits.lowest_bit_exponent(x.q, -1)[..., None] + math.log2(sigma)
    low = low + bits.lowest_bit_exponent(x.k, -1).min(-1)[..., None, None]
    reach = np.where(x.visible, x.M - x.s, 0.0).max(axis=-1, keepdims=True)
    fits = np.log2(reach) <= c.format("softmax").precision + np.minimum(low, 4000.0) - 1e-9
    return fits & (delta.max(axis=-1, keepdims=True) == 0)


def operand_scaling(x: Intermediates, c: Contract) -> Rounding:
    """Rounding of q or k by a scale that multiplies them first, relative to the unscaled operand.

    Two roundings of the constant, one of the product, which is stored. A power of 4 has an exact root and never
    rounds, unless storing does; but it may underflow.
    """
    sigma = abs(x.problem.scale_value)
    if c.scale_on == "scores" or sigma == 0:
        return EXACT
    if sigma == 1:  # nothing to multiply, but storing may round
        return conversion(c, "stored_scores", FORMATS[x.problem.dtype])
    stored, work = rounding(c, "stored_scores"), rounding(c, "score_accumulation")
    exact = is_power_of(4, sigma) and conversion(c, "stored_scores", FORMATS[x.problem.dtype]).u == 0
    u = 0.0 if exact else float(growth((stored.u, 1), (work.u, 2)))
    return Rounding(u, stored.eta * max(1.0, 1 / sigma))

"""How far each element of an attention output may lie from the truth under a contract.

Every bound is deterministic and per element, and holds for every tiling and order of summation, with or without
fused multiply-add. Symbols: P = exp(s - L) weights, o = P v, n visible keys of a row, A = e^alpha - 1.

The formulas are evaluated in float64 on rounded intermediates. All summands are non-negative, so their rounding is
covered by the factor INFLATION; the error of P itself enters as exp(2 alpha64) on every deviation, where alpha64 is
the same theorem under the float64 contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from attn_spec.contract import FP64, Contract
from attn_spec.intermediates import Intermediates
from attn_spec.roundoff import (
    casts_row_sum,
    elementary_error,
    growth,
    multiplicand,
    probability_cast,
    readings,
    rounding,
    row_sum_entry,
    row_sum_store,
)
from attn_spec.weight_bounds import log_weight_error, merge_weight_error, partial_lse_error

#: Covers the float64 evaluation of a bound: relative error below 4 (n + d + 40) 2^-53.
INFLATION = 1.0 + 2.0**-30

#: The arithmetic of ``intermediates`` itself: NumPy float64, natural exponentials, one tile.
EVALUATION: Contract = replace(FP64, scale_on="scores", exponent="natural", kv_tile=2**62).at("float64")

#: Total relative error of a row's weights from which the hull bound may be the smaller one.
HULL_FROM = 2.0**-4

#: Most products Sq * Sk * Dv for which |v - o| is formed element by element.
ELEMENTWISE_LIMIT = 2**19


@dataclass(frozen=True)
class ForwardBound:
    """Largest allowed errors of O [B, Hq, Sq, Dv] and LSE [B, Hq, Sq], and the rows [B, Hq, Sq] they hold for."""

    output: np.ndarray
    lse: np.ndarray
    in_domain: np.ndarray


@dataclass(frozen=True)
class WeightError:
    """Errors of the weights of each row, as the output and the LSE need them; P's evaluation error is included."""

    #: P A and P (1 + A), [.., Sq, Sk].
    PA: np.ndarray
    P1A: np.ndarray
    #: P times the largest relative fall of a weight inside the row sum, [.., Sq, Sk].
    fall: np.ndarray
    #: Relative growth of a weight inside the row sum only, [.., Sq, Sk].
    C: np.ndarray
    #: Rescalings, [.., Sq, Sk].
    R: np.ndarray
    #: e^(m - L): turns an absolute error of an unnormalized weight into one of a probability, [.., Sq, 1].
    inverse_sum: np.ndarray
    #: Absolute error of one unnormalized weight in the numerator, and in the row sum, [.., Sq, 1].
    eta: np.ndarray
    eta_sum: np.ndarray
    #: How far the reference m may lie from M, [.., Sq, 1].
    top: np.ndarray


@np.errstate(all="ignore")
def forward_bound(
    x: Intermediates, contract: Contract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound under a resolved contract. The true output lies in ``o`` +- ``slack`` (default: x.O, exact)."""
    o = x.O if o is None else o
    slack = np.broadcast_to(np.asarray(slack, dtype=np.float64), o.shape)
    pairs = [(c, weight_error(x, c)) for c in readings(contract)]
    output = np.maximum.reduce([output_error(x, c, w, o, slack) for c, w in pairs])
    lse = np.maximum.reduce([lse_error(x, c, w) for c, w in pairs])
    return ForwardBound(output, lse, in_domain(x, contract, output))


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def evaluation_error(x: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves: the same theorems under the float64 contract.

    The formula is given the computed o for the true one, see :func:`amplification`.
    """
    amplify = amplification(evaluation_alpha(x))
    bound = forward_bound(x, EVALUATION)
    return ForwardBound(bound.output * amplify[..., None], bound.lse * amplify, bound.in_domain)


def amplification(alpha: np.ndarray) -> np.ndarray:
    """Factor for a bound whose formula was given computed values for the true ones.

    With g the coefficient of those values in the formula, the true error is at most the formula over 1 - g, and
    g < 4 expm1(alpha64) + 2^-20.
    """
    g = 4 * np.expm1(np.minimum(alpha, 1.0)) + 2.0**-20
    return np.where(g < 0.5, 1 / (1 - np.minimum(g, 0.5)), np.inf)


def evaluation_alpha(x: Intermediates) -> np.ndarray:
    """Largest alpha of each row under the float64 contract, [.., Sq]: the error of P's own evaluation."""
    return log_weight_error(x, EVALUATION)[0].max(axis=-1, initial=0.0)


@np.errstate(all="ignore")
def weight_error(x: Intermediates, c: Contract) -> WeightError:
    """alpha, row-sum roundings and underflow of every weight, with the error of P's own evaluation."""
    alpha, R, delta = log_weight_error(x, c)
    cast, softmax = probability_cast(c), rounding(c, "softmax")
    if casts_row_sum(c):
        alpha = np.where(x.visible, alpha - math.log1p(-cast.u), 0.0)
    depth = np.minimum(np.maximum(x.keys - 1, 0), c.summation_depth or np.inf) + R
    row_sum, entry, store = rounding(c, "row_sum"), row_sum_entry(c), row_sum_store(c)
    widen = np.exp(np.minimum(2 * evaluation_alpha(x)[..., None], 700.0))
    raised = np.where(x.visible, np.exp(np.minimum(x.log_P + alpha, 700.0)), 0.0)
    deviation = np.where(alpha < 1, x.P * np.expm1(np.minimum(alpha, 1.0)), raised)
    fall = -np.expm1(-alpha + depth * math.log1p(-row_sum.u) + math.log1p(-entry.u) + math.log1p(-store))
    top = delta.max(axis=-1, keepdims=True, initial=0.0) + c.reference_slack
    inverse_sum = np.exp(np.minimum(x.M - np.where(np.isfinite(x.L), x.L, 0.0) + top, 700.0)) * widen
    C = growth((row_sum.u, depth), (entry.u, 1.0), (store, 1.0))
    steps = 4 * (1 + 2 * R.max(axis=-1, keepdims=True, initial=0.0)) * math.exp(c.reference_slack)
    eta, eta_sum = steps * softmax.eta, steps * max(softmax.eta, row_sum.eta)
    return WeightError(
        PA=deviation * widen,
        P1A=raised * widen,
        fall=x.P * fall * widen,
        C=C,
        R=R,
        inverse_sum=inverse_sum,
        eta=eta,
        eta_sum=(eta_sum + (cast.eta if casts_row_sum(c) else 0.0)) * (1 + C.max(axis=-1, keepdims=True, initial=0.0)),
        top=top,
    )


@np.errstate(all="ignore")
def output_error(x: Intermediates, c: Contract, w: WeightError, o: np.ndarray, slack: np.ndarray) -> np.ndarray:
    """|O_hat - o| element by element, [.., Sq, Dv].

    Write the computed weights as P(1 + a), |a| <= A, with factors 1 + b of the numerator only, |b| <= B, and 1 + c
    of the row sum only, |c| <= C. Because sum_j P (v_j - o) = 0,

        O_hat - o = [ sum P a (v - o) + sum P (1 + a)(b v - c o) + underflow ] / sum P (1 + a)(1 + c).

    Where the denominator cannot be kept away from 0 only :func:`hull_error` remains.
    """
    before = float(c.normalize == "before_product")
    cast, entry, softmax = probability_cast(c), multiplicand(c, x.problem.dtype), rounding(c, "softmax")
    accumulator, out = rounding(c, "output_accumulation"), rounding(c, "output")
    depth = np.minimum(x.keys, c.summation_depth or np.inf) + w.R
    B = growth((0.0 if casts_row_sum(c) else cast.u, 1), (entry.u, 1), (softmax.u, before), (accumulator.u, depth))
    if c.lse_merges:
        B = (1 + B) * (1 + _merge_growth(x, c)) - 1
    size_v, size_o = np.abs(x.v), np.abs(o) + slack
    total_v, most_B = x.visible @ size_v, B.max(axis=-1, keepdims=True, initial=0.0)
    steps = x.keys + w.R.max(axis=-1, keepdims=True, initial=0.0)
    absolute = (cast.eta + before * softmax.eta) * total_v + 4 * steps * accumulator.eta
    absolute = (1 + most_B) * absolute
    # A v that underflows on entry is off by entry.eta whatever its weight, so the row sum does not scale it down.
    entering = (1 + most_B) * entry.eta
    underflow = (1.0 if before else w.inverse_sum) * absolute + entering * w.P1A.sum(-1, keepdims=True)
    underflow = underflow + w.inverse_sum * ((1 + most_B) * w.eta * total_v + x.keys * w.eta_sum * size_o)
    if c.lse_merges:
        tiny = 4 * c.lse_merges * (softmax.eta + accumulator.eta)
        underflow = underflow + (1 + most_B) * tiny * (1 + x.keys + total_v + x.keys * size_o)
    numerator = _spread(w.PA, x.v, o) + w.PA.sum(-1, keepdims=True) * slack + underflow
    numerator += (w.P1A * B) @ size_v + (w.P1A * w.C).sum(-1, keepdims=True) * size_o
    kappa = 1 - w.fall.sum(-1, keepdims=True) - w.inverse_sum * x.keys * w.eta_sum
    X = np.where(kappa > 0, numerator / kappa, np.inf)
    if w.PA.sum(-1).max(initial=0.0) > HULL_FROM or not np.isfinite(X).all():
        X = np.fmin(X, hull_error(x, w, o, B) + slack + 8 * math.exp(c.reference_slack) * absolute + 2 * entering)
    finish = growth((softmax.u, 2 * (1 - before)), (out.u, 1))
    if c.lse_merges:  # normalized by e^L, with L rounded, instead of by the sum of the e^(L_t - L) themselves
        finish = (1 + finish) * np.exp(c.lse_merges * partial_lse_error(x, c)) - 1
    return (X + finish * (size_o + X) + 2 * softmax.eta + out.eta) * INFLATION


def hull_error(x: Intermediates, w: WeightError, o: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Error of any convex combination of the visible values, widened by B and C, [.., Sq, Dv].

    Whatever the computed weights, they are non-negative and add up to the row sum but for 1 + B and 1 + C, and the
    row sum is at least about exp(0), its largest term. inf where C is too large to say anything.
    """
    high, low = _visible_range(x)
    most_B, most_C = (z.max(axis=-1, keepdims=True, initial=0.0) for z in (B, w.C))
    loose = np.where(most_C < 0.25, (1 + most_B) / (1 - 2 * np.minimum(most_C, 0.25)) - 1, np.inf)
    return np.maximum(high - o, o - low) + loose * np.maximum(np.abs(high), np.abs(low))


def _merge_growth(x: Intermediates, c: Contract) -> np.ndarray:
    """Factor of the numerator only, less 1, of merges through log-sum-exps, [.., Sq, Sk].

    Each divides by l_t, stores o_t and multiplies it by e^(L_t - L), which L may have been summed up from or not.
    """
    stores = growth((rounding(c, "softmax").u, 4 * c.lse_merges))
    return (1 + stores) * np.exp(np.minimum(2 * c.lse_merges * merge_weight_error(x, c), 700.0)) - 1


@np.errstate(all="ignore")
def row_sum_error(x: Intermediates, w: WeightError) -> np.ndarray:
    """|log(l_hat / l)| of the row sum relative to the kernel's own reference, [.., Sq]."""
    absolute = (w.inverse_sum * x.keys * w.eta_sum)[..., 0]
    rise = np.log1p((w.PA + w.P1A * w.C).sum(-1) + absolute)
    fall = w.fall.sum(-1) + absolute
    X = np.maximum(rise, np.where(fall < 1, -np.log1p(-np.minimum(fall, 1.0)), np.inf))
    return np.where(np.isnan(X), np.inf, X)


@np.errstate(all="ignore")
def lse_error(x: Intermediates, c: Contract, w: WeightError) -> np.ndarray:
    """|LSE_hat - L|, [.., Sq]: error of the row sum, then of the logarithm and the last additions."""
    softmax, final = rounding(c, "softmax"), rounding(c, "lse")
    L = np.where(np.isfinite(x.L), x.L, 0.0)[..., 0]
    X = row_sum_error(x, w)
    log_sum = np.abs(L - x.M[..., 0]) + w.top[..., 0]
    X = X + elementary_error(c, "log_error") * (1 + log_sum + X) + softmax.u * (log_sum + X)
    X = X + growth((softmax.u, 2), (final.u, 1)) * (np.abs(L) + X)
    if c.exponent == "base2":  # m and log2 of the row sum are both multiplied by a rounded ln 2
        work = rounding(c, "score_accumulation").u
        X = X + growth((work, 4)) * (np.abs(x.M[..., 0]) + w.top[..., 0] + log_sum + X)
    return (np.where(np.isnan(X), np.inf, X) + 3 * softmax.eta + final.eta) * INFLATION


@np.errstate(all="ignore")
def in_domain(x: Intermediates, c: Contract, allowed: np.ndarray) -> np.ndarray:
    """Rows with a visible key where no intermediate can overflow under the contract, [.., Sq]."""
    sigma = abs(x.problem.scale_value)
    scores = np.maximum(x.magnitude * max(1.0, sigma), np.maximum(np.abs(x.s), np.abs(x.scaled)))
    stages = ("score_accumulation", "stored_scores", "softmax")
    inside = 4 * scores.max(axis=-1, initial=0.0) < min(c.format(stage).largest for stage in stages)
    if c.scale_on == "operands":
        operands = max(np.abs(x.q).max(initial=0.0), np.abs(x.k).max(initial=0.0)) * max(1.0, sigma)
        inside &= bool(2 * operands < c.format("stored_scores").largest)
    sums = x.P @ np.abs(x.v) if c.normalize == "before_product" else x.visible @ np.abs(x.v)
    sums = 2 * math.exp(c.reference_slack) * sums.max(axis=-1, initial=0.0)
    inside &= sums < c.format("output_accumulation").largest
    softmax = c.format("softmax")
    # Where the row sum's reciprocal multiplies the output, that must be a normal number.
    reciprocal = 1 / softmax.smallest_normal if c.normalize == "after_product" else np.inf
    row_sum = 2 * math.exp(c.reference_slack) * x.keys[..., 0]
    inside &= row_sum < min(c.format("row_sum").largest, softmax.largest, reciprocal)
    widest = (np.abs(x.O) + allowed).max(axis=-1, initial=0.0)
    entries = max(np.abs(tensor).max(initial=0.0) for tensor in (x.q, x.k, x.v))
    inside &= bool(entries < c.format("multiplicands").largest) | (c.multiplicands == x.problem.dtype)
    inside &= (widest < 0.99 * c.format("softmax").largest) & (2 * np.abs(x.L[..., 0]) < c.format("lse").largest)
    return inside & (widest < 0.99 * c.format("output").largest) & (x.keys[..., 0] > 0)


def _spread(W: np.ndarray, v: np.ndarray, o: np.ndarray) -> np.ndarray:
    """sum_j W_ij |v_jc - o_ic|, [.., Sq, Dv]; above ELEMENTWISE_LIMIT by the triangle inequality."""
    if W.size * v.shape[-1] > ELEMENTWISE_LIMIT:
        return W @ np.abs(v) + W.sum(-1, keepdims=True) * np.abs(o)
    return (W[..., None, :] @ np.abs(v[..., None, :, :] - o[..., :, None, :]))[..., 0, :]


def _visible_range(x: Intermediates) -> tuple[np.ndarray, np.ndarray]:
    """Largest and smallest visible value of each column, [.., Sq, Dv]; 0 for empty rows."""
    high, low = np.zeros(x.O.shape), np.zeros(x.O.shape)
    for column in range(x.v.shape[-1]):
        values = x.v[..., None, :, column]
        high[..., column] = np.where(x.visible, values, -np.inf).max(axis=-1, initial=-np.inf)
        low[..., column] = np.where(x.visible, values, np.inf).min(axis=-1, initial=np.inf)
    empty = x.keys == 0
    return np.where(empty, 0.0, high), np.where(empty, 0.0, low)

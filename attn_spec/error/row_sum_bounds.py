"""How far the weights of a row, their sum and its logarithm may lie from the truth under a contract.

Symbols: P = exp(s - L) weights, n visible keys of a row, A = e^alpha - 1. The formulas are evaluated in float64 on
rounded intermediates. All summands are non-negative, so their rounding is covered by the factor INFLATION; the error
of P itself enters as exp(2 alpha64) on every deviation, where alpha64 is the same theorem under the float64 contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.far_keys import NEGLIGIBLE
from attn_spec.error.intermediates import Intermediates, kept
from attn_spec.error.presets import FP64
from attn_spec.error.products import Factors, casts_row_sum, on_matrix_unit, probability_cast, row_sum_entry, sums
from attn_spec.error.roundoff import conversion, elementary_error, growth, rounding, row_sum_store
from attn_spec.error.score_bounds import row_shift, shift_error
from attn_spec.error.weight_bounds import log_weight_error, reference_rounding, row_sum_difference

#: Covers the float64 evaluation of a bound: relative error below 4 (n + d + 40) 2^-53.
INFLATION = 1.0 + 2.0**-30

#: The arithmetic of ``intermediates`` itself: NumPy float64, natural exponentials, one tile.
EVALUATION: ResolvedContract = replace(FP64, exponent="natural", kv_tile=None).at("float64")


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
    #: Bound on |log(sum of the weights / their row sum)|, [.., Sq, 1].
    defect: np.ndarray
    #: Rescalings of a weight on its way to the output, [.., Sq, Sk].
    R: np.ndarray
    #: e^(m - L): turns an absolute error of an unnormalized weight into one of a probability, [.., Sq, 1].
    inverse_sum: np.ndarray
    #: Absolute error of one unnormalized weight in the numerator, and in the row sum, [.., Sq, 1].
    eta: np.ndarray
    eta_sum: np.ndarray
    #: How far the reference m, as the exponents have it, may lie from M, [.., Sq, 1].
    top: np.ndarray
    #: Factor for sums over P that covers the error of P's own evaluation, [.., Sq, 1].
    widen: np.ndarray


def amplification(alpha: np.ndarray) -> np.ndarray:
    """Factor for a bound whose formula was given computed values for the true ones.

    With g the coefficient of those values in the formula, the true error is at most the formula over 1 - g, and
    g < 4 expm1(alpha64) + 2^-20.
    """
    g = 4 * np.expm1(np.minimum(alpha, 1.0)) + 2.0**-20
    return np.where(g < 0.5, 1 / (1 - np.minimum(g, 0.5)), np.inf)


def evaluation_alpha(x: Intermediates) -> np.ndarray:
    """Largest alpha of each row under the float64 contract, [.., Sq]: the error of P's own evaluation."""
    return log_weight_error(x, EVALUATION).rescaled.max(axis=-1, initial=0.0)


@kept
@np.errstate(all="ignore")
def weight_error(x: Intermediates, c: ResolvedContract) -> WeightError:
    """alpha, row-sum roundings and underflow of every weight, with the error of P's own evaluation."""
    e = log_weight_error(x, c)
    # Weights that are normalized before they meet v are computed from the last reference; then a row sum that was not
    # differs by ``apart``.
    alpha, R = (e.direct, np.zeros(e.R.shape)) if c.normalize == "before_product" else (e.rescaled, e.R)
    cast, softmax = probability_cast(c), rounding(c, "softmax")
    if casts_row_sum(c):
        alpha = np.where(x.visible, alpha - math.log1p(-cast.u), 0.0)
    alpha = np.where(x.visible, alpha + merged_row_sum_error(c), 0.0)
    row_sum, entry, store = rounding(c, "row_sum"), row_sum_entry(c), row_sum_store(c)
    summed = _sums(x, c, e.R)
    apart = row_sum_difference(x, c, e)
    widen = np.exp(np.minimum(2 * evaluation_alpha(x)[..., None], 700.0))
    PA, P1A = deviations(x, alpha)
    shrunk = np.maximum.reduce([np.asarray(sum(-n * math.log1p(-u) for u, n in factors)) for factors in summed])
    defect = apart + shrunk - math.log1p(-entry.u) - math.log1p(-store)
    fall = -np.expm1(-alpha - defect)
    top = e.delta.max(axis=-1, keepdims=True, initial=0.0) + c.reference_distance + reference_rounding(x, c)
    inverse_sum = np.exp(np.minimum(x.M - np.where(np.isfinite(x.L), x.L, 0.0) + top, 700.0)) * widen
    grown = np.maximum.reduce([growth(*factors, (entry.u, 1.0), (store, 1.0)) for factors in summed])
    C = (1 + grown) * np.exp(np.minimum(apart, 700.0)) - 1
    # A lazy reference lets rescale factors exceed 1, and with them what underflowed before.
    most = e.R.max(axis=-1, keepdims=True, initial=0.0)
    steps = 4 * (1 + 2 * most + 2 * c.lse_merges) * np.exp(c.reference_slack if c.reference == "maximum" else 0.0)
    eta, eta_sum = steps * softmax.eta, steps * max(softmax.eta, row_sum.eta)
    return WeightError(
        PA=PA * widen,
        P1A=P1A * widen,
        fall=x.P * fall * widen,
        C=C,
        defect=defect.max(axis=-1, keepdims=True, initial=0.0) - (math.log1p(-cast.u) if casts_row_sum(c) else 0.0),
        R=R,
        inverse_sum=inverse_sum,
        eta=eta,
        eta_sum=(eta_sum + (cast.eta if casts_row_sum(c) else 0.0)) * (1 + C.max(axis=-1, keepdims=True, initial=0.0)),
        top=top,
        widen=widen,
    )


def _sums(x: Intermediates, c: ResolvedContract, R: np.ndarray) -> list[Factors]:
    """Factors of one weight on its way through the row sum, for each way in which that may be added up.

    One by one; or, if it adds what the cast has changed, as the product with ones on a matrix unit. Rescalings and
    weighted merges round once each, and merges once more for their sum.
    """
    row_sum, moved = rounding(c, "row_sum"), R + (2 * c.lse_merges if c.merging == "weighted" else 0)
    ways: list[Factors] = [((row_sum.u, np.minimum(np.maximum(x.keys - 1, 0), c.summation_depth or np.inf) + moved),)]
    if casts_row_sum(c) and on_matrix_unit(c):
        length = x.problem.key_length
        blocks = math.ceil(length / c.matrix_block) + c.tiles(length)
        ways.append(((row_sum.u, moved), *sums(c, "row_sum", x.keys, blocks=blocks)))
    return ways


def merged_row_sum_error(c: ResolvedContract) -> float:
    """|log| of the factor that the row sums of merges by a difference put before the weights of a part.

    A weighted merge divides by the row sum whose logarithm it stores, so those roundings are the row sum's alone. A
    difference never divides: what L is off from log(e^L_1 + e^L_2) by stays in all weights that it stands for. Each
    merge rounds a rescaled row sum, their sum, and what the logarithm is taken of.
    """
    if c.merging == "weighted":
        return 0.0
    return -c.lse_merges * (2 * math.log1p(-rounding(c, "row_sum").u) + math.log1p(-row_sum_store(c)))


def deviations(x: Intermediates, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P A and P (1 + A) for A = e^alpha - 1, in the log domain where alpha is large, [.., Sq, Sk].

    Both are e^NEGLIGIBLE e^alpha for keys that were left out as far ones, where alpha is what a row has in common.
    """
    raised = np.where(x.visible, np.exp(np.minimum(x.log_P + alpha, 700.0)), 0.0)
    PA = np.where(alpha < 1, x.P * np.expm1(np.minimum(alpha, 1.0)), raised)
    if x.visible is not x.seen:
        far = np.where(x.seen & ~x.visible, np.exp(np.minimum(NEGLIGIBLE + alpha, 700.0)), 0.0)
        PA, raised = PA + far, raised + far
    return PA, raised


@np.errstate(all="ignore")
def row_sum_error(x: Intermediates, w: WeightError) -> np.ndarray:
    """|log(l_hat / l)| of the row sum relative to the kernel's own reference, [.., Sq]."""
    absolute = (w.inverse_sum * x.keys * w.eta_sum)[..., 0]
    rise = np.log1p((w.PA + w.P1A * w.C).sum(-1) + absolute)
    fall = w.fall.sum(-1) + absolute
    X = np.maximum(rise, np.where(fall < 1, -np.log1p(-np.minimum(fall, 1.0)), np.inf))
    return np.where(np.isnan(X), np.inf, X)


@np.errstate(all="ignore")
def lse_error(x: Intermediates, c: ResolvedContract, w: WeightError) -> np.ndarray:
    """|LSE_hat - L|, [.., Sq]: error of the row sum, then of the logarithm and the last additions."""
    softmax, final = rounding(c, "softmax"), conversion(c, "lse", c.format("softmax"))
    L = np.where(np.isfinite(x.L), x.L, 0.0)[..., 0]
    X = row_sum_error(x, w)
    log_sum = np.abs(L - x.M[..., 0]) + w.top[..., 0]
    X = X + elementary_error(c, "log_error") * (1 + log_sum + X) + softmax.u * (log_sum + X)
    shift = row_shift(x, c)[..., 0]
    X = X + growth((softmax.u, 2), (final.u, 1)) * (np.abs(L) + shift + X)
    if c.exponent == "base2":  # m and log2 of the row sum are both multiplied by a rounded ln 2
        work = rounding(c, "score_accumulation").u
        X = X + growth((work, 4)) * (np.abs(x.M[..., 0]) + shift + w.top[..., 0] + log_sum + X)
    X = X + shift_error(x, c, X[..., None])[..., 0]
    return (np.where(np.isnan(X), np.inf, X) + 3 * softmax.eta + final.eta) * INFLATION

"""How far each element of dQ, dK, dV, dBias may lie from the truth under a contract.

With dO the cotangent of the output and dL that of the LSE,

    dP = dO v^T    D_i = sum_c dO_ic o_ic    X = dP - D + dL    dA = P X    dS = dA (1 - tanh^2) under a softcap
    dQ = sigma dS k    dK = sigma dS^T q    dV = P^T dO    dBias = dA summed over the broadcast axes

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). Each bound propagates the errors of its factors; products
and sums are the theorems of ``bounds``. Absolute terms (underflow) accompany every rounding: they are what decides
near zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from attn_spec.bounds import (
    EVALUATION,
    INFLATION,
    WeightError,
    amplification,
    evaluation_alpha,
    in_domain,
    lse_error,
    output_error,
    row_sum_error,
    weight_error,
)
from attn_spec.contract import Contract
from attn_spec.intermediates import GradientIntermediates, Intermediates
from attn_spec.roundoff import Rounding, conversion, elementary_error, growth, multiplicand, probability_cast, rounding
from attn_spec.weight_bounds import log_weight_error, operand_scaling, softcapped_error

#: The arithmetic of ``gradient_intermediates``: float64, weights stored by the forward pass.
GRADIENT_EVALUATION: Contract = replace(EVALUATION, backward_weights="stored", normalize="before_product")


@dataclass(frozen=True)
class GradientBound:
    """Largest allowed errors of dQ, dK, dV and dBias, and whether the domain holds for a whole [B, Hkv] group."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None
    #: Error of X = dP - D + dL, [B, Hq, Sq, Sk].
    X: np.ndarray
    #: bool [B, Hkv].
    in_domain: np.ndarray


@dataclass(frozen=True)
class _Backward:
    """Everything the four bounds share; arrays are [B, Hq, Sq, Sk]."""

    x: Intermediates
    g: GradientIntermediates
    c: Contract
    #: P A, P (1 + A): relative errors of the backward weights; eta: their absolute error.
    PA: np.ndarray
    P1A: np.ndarray
    eta: float
    #: Errors of X, dA, dS.
    X: np.ndarray
    dA: np.ndarray
    dS: np.ndarray


@np.errstate(all="ignore")
def gradient_bound(
    x: Intermediates, g: GradientIntermediates, contract: Contract, slack: GradientBound | None = None
) -> GradientBound:
    """The bound under one reading of a resolved contract, see :func:`roundoff.gradient_readings`.

    ``slack`` bounds the errors of ``x`` and ``g`` (default: none).
    """
    b = _backward(x, g, contract, 0.0 if slack is None else slack.X)
    errors = {"dq": _dq_error(b), "dk": _dk_error(b), "dv": _dv_error(b)}
    if g.dbias is not None:
        errors["dbias"] = _dbias_error(b)
    finished: dict[str, np.ndarray] = {}
    for name, error in errors.items():
        size = np.abs(getattr(g, name)) + (0.0 if slack is None else getattr(slack, name))
        out = rounding(contract, "output")
        total = (error + out.u * (size + error) + out.eta) * _widening(x, name, error.shape) * INFLATION
        finished[name] = np.where(np.isnan(total), np.inf, total)
    return GradientBound(**{"dbias": None, **finished}, X=b.X, in_domain=_gradients_in_domain(b))


def _widening(x: Intermediates, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Factor for the error of the weights' own evaluation, over all rows that a gradient sums: [B or 1, 1, 1, 1]."""
    alpha = evaluation_alpha(x).max(axis=(1, 2), initial=0.0)
    if name == "dbias" and shape[0] == 1:
        alpha = alpha.max(initial=0.0, keepdims=True)
    return np.exp(np.minimum(16 * alpha, 700.0))[:, None, None, None]


@lru_cache(maxsize=4)
@np.errstate(all="ignore")
def gradient_evaluation_error(x: Intermediates, g: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves, as :func:`bounds.evaluation_error`."""
    amplify = amplification(evaluation_alpha(x).max(initial=0.0))
    bound = gradient_bound(x, g, GRADIENT_EVALUATION)
    grown = {name: getattr(bound, name) * amplify for name in ("dq", "dk", "dv", "X")}
    return replace(bound, **grown, dbias=None if bound.dbias is None else bound.dbias * amplify)


def _backward(x: Intermediates, g: GradientIntermediates, c: Contract, slack: np.ndarray | float) -> _Backward:
    w = weight_error(x, c)
    alpha, eta = _backward_alpha(x, c, w)
    P1A = np.where(x.visible, np.exp(np.minimum(x.log_P + alpha, 700.0)), 0.0)
    PA = np.where(alpha < 1, x.P * np.expm1(np.minimum(alpha, 1.0)), P1A)
    EX = _x_error(x, g, c, w, PA=PA, P1A=P1A, eta=eta)
    size = np.abs(g.X) + slack
    work, stored, cast = (rounding(c, stage) for stage in ("score_accumulation", "stored_scores", "score_gradients"))
    relative = growth((work.u, 3), (stored.u, 1))
    dA = PA * (1 + relative) * size + relative * x.P * size + P1A * (1 + relative) * EX
    dA = np.where(x.visible, dA + eta * (size + EX) * (1 + relative) + 4 * work.eta + 2 * stored.eta, 0.0)
    dA = np.minimum(dA, (P1A + eta) * (1 + relative) * (size + EX) + x.P * size + 4 * work.eta + 2 * stored.eta)
    dS = _through_softcap(x, g, c, dA)
    narrowing = growth((cast.u, 1), (stored.u, 1))
    dS = np.where(x.visible, dS + narrowing * (np.abs(g.dS) + dS) + cast.eta + stored.eta, 0.0)
    return _Backward(x, g, c, PA, P1A, eta, EX, dA, dS)


def _backward_alpha(x: Intermediates, c: Contract, w: WeightError) -> tuple[np.ndarray, float]:
    """Log error of the backward weights, and their absolute error.

    Recomputed, exp(s - LSE) is not renormalized, so the error of the LSE does not cancel. Stored, the weight carries
    the relative error of the row sum it was divided by, and the cast of the probabilities.
    """
    alpha, _, delta = log_weight_error(x, c)
    softmax, cast = rounding(c, "softmax"), probability_cast(c)
    if c.backward_weights == "stored":
        row = row_sum_error(x, w)[..., None]
        return np.where(x.visible, alpha + row - 2 * math.log1p(-softmax.u) - math.log1p(-cast.u), 0.0), (
            4 * softmax.eta + cast.eta
        )
    work = rounding(c, "score_accumulation")
    EL = lse_error(x, c, w)[..., None]
    L = np.where(np.isfinite(x.L), x.L, 0.0)
    argument = np.abs(x.s - L) + delta + EL
    size = np.abs(x.s) + delta + np.abs(L) + EL
    total = delta + EL + softmax.u * argument + (8 * work.u * size if c.exponent == "base2" else 0.0)
    total = total - math.log1p(-elementary_error(c, "exp_error")) - math.log1p(-softmax.u)
    return np.where(x.visible, total, 0.0), 4 * softmax.eta


def _x_error(
    x: Intermediates,
    g: GradientIntermediates,
    c: Contract,
    w: WeightError,
    *,
    PA: np.ndarray,
    P1A: np.ndarray,
    eta: float,
) -> np.ndarray:
    """Error of X = dP - D + dL before it meets P.

    D is the row sum of dO times the stored output when weights are recomputed, of P dP when they are stored.
    """
    entry, accumulator = multiplicand(c, x.problem.dtype), rounding(c, "gradient_accumulation")
    work, stored = rounding(c, "score_accumulation"), rounding(c, "stored_scores")
    size_g, size_v, Dv = np.abs(g.cotangent), np.abs(x.v), x.problem.value_dim
    magnitude = size_g @ size_v.swapaxes(-1, -2)
    sums = size_g.sum(-1)[..., :, None] + size_v.sum(-1)[..., None, :]
    dP = growth((entry.u, 2), (accumulator.u, Dv)) * magnitude + 2 * Dv * accumulator.eta + 2 * entry.eta * sums
    dP = dP + stored.u * (np.abs(g.dP) + dP) + stored.eta
    if c.backward_weights == "stored":
        sizes = np.where(x.visible, np.abs(g.dP) + dP, 0.0)
        n = x.keys + 1.0
        D = (PA * np.abs(g.dP) + P1A * dP + growth((work.u, n)) * P1A * sizes + eta * sizes).sum(-1, keepdims=True)
        D = D + 2 * n * work.eta
    else:
        EO = output_error(x, c, w, x.O, np.zeros(x.O.shape))
        summands = size_g * (np.abs(x.O) + EO)
        D = (size_g * EO).sum(-1, keepdims=True) + growth((work.u, Dv)) * summands.sum(-1, keepdims=True)
        D = D + 2 * Dv * work.eta
    if g.lse_cotangent is not None:
        D = D + work.u * (np.abs(g.D) + D + np.abs(g.lse_cotangent)[..., None])
    return np.where(x.visible, dP + D, 0.0)


def _through_softcap(x: Intermediates, g: GradientIntermediates, c: Contract, dA: np.ndarray) -> np.ndarray:
    """Error of dS = dA (1 - t^2), t = tanh(s/c): the factor's error is 2|t| e + e^2 for an error e of t."""
    cap = x.problem.softcap
    if cap is None:
        return dA
    stored, work = rounding(c, "stored_scores"), rounding(c, "score_accumulation")
    t = np.abs(x.capped) / cap
    e = softcapped_error(x, c) / cap + stored.u * t
    factor = 2 * t * e + e * e + 4 * stored.u
    relative = growth((stored.u, 1), (work.u, 1))
    exact = np.maximum(1 - t * t, 0.0)
    dS = np.abs(g.dA) * factor + (exact + factor) * dA
    return dS + relative * (np.abs(g.dS) + dS) + stored.eta * (1 + 2 / cap)  # dA may be multiplied by c, then divided


def _dq_error(b: _Backward) -> np.ndarray:
    """sigma sum_j dS_ij k_j: [.., Sq, D]."""
    size = np.abs(b.x.k)
    n = b.x.keys
    return _product_error(b, b.dS @ size, (np.abs(b.g.dS) + b.dS) @ size, n, b.x.visible @ size)


def _dk_error(b: _Backward) -> np.ndarray:
    """sigma sum over queries and the head group of dS_ij q_i: [B, Hkv, Sk, D]."""
    size = np.abs(b.x.q)
    first = b.x.over_group(b.dS.swapaxes(-1, -2) @ size)
    total = b.x.over_group((np.abs(b.g.dS) + b.dS).swapaxes(-1, -2) @ size)
    seen = b.x.over_group(b.x.visible.swapaxes(-1, -2) @ size)
    return _product_error(b, first, total, _queries(b.x), seen)


def _product_error(b: _Backward, own: np.ndarray, total: np.ndarray, n: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Error of a product of dS with k or q: errors of dS, then accumulation, scaling and storing."""
    accumulator, entry, partial = _gradient_roundings(b)
    work, sigma = rounding(b.c, "score_accumulation"), abs(b.x.problem.scale_value)
    scaled = operand_scaling(b.x, b.c)  # the product may reuse the q or k that the forward pass had scaled
    dS_entry = conversion(b.c, "multiplicands", b.c.format("score_gradients"))
    stores = np.minimum(b.c.gradient_stores, n)  # adding 0 to a stored sum rounds nothing
    G = growth((accumulator.u, n), (entry.u, 1), (scaled.u, 1), (dS_entry.u, 1), (work.u, 4), (partial.u, stores))
    unscaled = own + G * total + dS_entry.eta * seen
    tiny = accumulator.eta * 4 * n + partial.eta * 2 * (stores + n * (partial.u > work.u))
    # dS may be scaled before the product; then its underflow is not scaled down.
    stored = max(rounding(b.c, stage).eta for stage in ("stored_scores", "score_gradients"))
    entering = sigma * (entry.eta + scaled.eta) * n * np.abs(b.g.dS).max(initial=0.0)
    return sigma * unscaled + max(0.0, 1 - sigma) * stored * seen + max(1.0, sigma) * tiny + work.eta + entering


def _dv_error(b: _Backward) -> np.ndarray:
    """Sum over queries and the head group of P_ij dO_i: [B, Hkv, Sk, Dv]."""
    accumulator, entry, partial = _gradient_roundings(b)
    cast, n = probability_cast(b.c), _queries(b.x)
    stores = np.minimum(b.c.gradient_stores, n)
    size = np.abs(b.g.cotangent)
    G = growth((accumulator.u, n), (entry.u, 1), (cast.u, 1), (partial.u, stores))
    own = b.x.over_group(b.PA.swapaxes(-1, -2) @ size)
    total = b.x.over_group(b.P1A.swapaxes(-1, -2) @ size)
    seen = b.x.over_group(b.x.visible.swapaxes(-1, -2) @ size)
    tiny = (b.eta + cast.eta) * (1 + G) * seen + accumulator.eta * 4 * n + partial.eta * 2 * (stores + n)
    return own + G * total + tiny + entry.eta * n


def _dbias_error(b: _Backward) -> np.ndarray:
    """dA summed over the broadcast axes of the bias, in any order."""
    accumulator, _, partial = _gradient_roundings(b)
    stored = rounding(b.c, "stored_scores")
    axes = b.x.problem.bias_axes
    n = b.x.visible.sum(axis=axes, keepdims=True)
    cast = rounding(b.c, "score_gradients")
    G = growth((accumulator.u, n), (partial.u, b.c.gradient_stores), (cast.u, 1), (stored.u, 1))
    total = (np.abs(b.g.dA) + b.dA).sum(axis=axes, keepdims=True)
    tiny = n * (cast.eta + stored.eta + accumulator.eta + partial.eta) + b.c.gradient_stores * partial.eta
    return b.dA.sum(axis=axes, keepdims=True) + G * total + 2 * tiny


def _gradient_roundings(b: _Backward) -> tuple[Rounding, Rounding, Rounding]:
    """Of the accumulator, of the q, k or dO that enter a product, of a stored partial sum."""
    return (
        rounding(b.c, "gradient_accumulation"),
        multiplicand(b.c, b.x.problem.dtype),
        rounding(b.c, "partial_gradients"),
    )


def _queries(x: Intermediates) -> np.ndarray:
    """How many queries of the head group see each key, [B, Hkv, Sk, 1]."""
    return x.over_group(x.visible.sum(axis=-2)[..., None])


def _gradients_in_domain(b: _Backward) -> np.ndarray:
    """Groups [B, Hkv] in which every row that sees a key is in the forward domain and no gradient can overflow."""
    x, c = b.x, b.c
    rows = in_domain(x, c, np.zeros(x.O.shape)) | (x.keys[..., 0] == 0)
    stages = ("multiplicands", "score_accumulation", "stored_scores", "softmax", "score_gradients")
    stages = (*stages, "gradient_accumulation", "partial_gradients", "output")
    largest = min(c.format(stage).largest for stage in stages)
    magnitude = (np.abs(b.g.cotangent) @ np.abs(x.v).swapaxes(-1, -2)).max(axis=(-1, -2), initial=0.0)
    delta = (np.abs(b.g.cotangent) * np.abs(x.O)).sum(-1).max(-1, initial=0.0)
    sigma = max(1.0, abs(x.problem.scale_value), x.problem.softcap or 0.0)
    inside = rows.all(axis=-1) & (8 * sigma * (magnitude + delta) < largest)
    inside = inside.reshape(x.problem.batch, x.problem.kv_heads, x.problem.group).all(axis=-1)
    sums = np.abs(b.g.dS) + b.dS
    heads = [
        (sums @ np.abs(x.k)).max(axis=(-1, -2), initial=0.0),
        (sums.swapaxes(-1, -2) @ np.abs(x.q)).max(axis=(-1, -2), initial=0.0),
        (b.P1A.swapaxes(-1, -2) @ np.abs(b.g.cotangent)).max(axis=(-1, -2), initial=0.0),
    ]
    widest = sigma * np.maximum.reduce(heads).reshape(x.problem.batch, x.problem.kv_heads, -1).sum(axis=-1)
    return inside & (4 * widest < largest) & np.isfinite(widest)

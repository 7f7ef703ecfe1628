"""Bounds on the errors of the gradients of scores: of X = dP - D + dL, of dA = P X and of dS.

With dO the cotangent of the output and dL that of the LSE,

    dP = dO v^T    D_i = sum_c dO_ic o_ic = sum_j P_ij dP_ij    dA = P X    dS = dA (1 - tanh^2) under a softcap

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). Two errors are common to a row: g, relative, of its weights
(their LSE or row sum), and that of D. They leave dS_j with g dS_j and -(1 + g) e_D P_j slope_j, whose sums with k
cancel as those of dS and P do; so they are kept apart from a key's own errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attn_spec.bounds.backward.backward_weights import BackwardWeights, backward_weights, is_stored
from attn_spec.bounds.backward.delta_bounds import Setting, delta_error
from attn_spec.bounds.backward.gradient_domain import score_gradients_fit
from attn_spec.bounds.backward.reference_gradients import left_of_references
from attn_spec.bounds.backward.weight_gradient_bounds import (
    divides_cotangent,
    largest_quotient,
    weight_gradient_error,
)
from attn_spec.bounds.forward.bounds import exact_output_error
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.forward.product_bounds import last_factor
from attn_spec.bounds.forward.row_sum_bounds import (
    WeightError,
    lse_error,
    weight_error,
)
from attn_spec.bounds.forward.score_bounds import softcapped_error
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import entry
from attn_spec.contract.roundoff import growth
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.problem.handled import check_handled

#: Options whose roundings are in the theorems of softmax gradients, see ``problem.handled``.
HANDLES = ("scale", "softcap", "bias", "alibi_slopes", "dropout_keep", "dropout_p")


@dataclass(frozen=True)
class ScoreGradientError:
    """Errors of a row of score gradients, and what they are made of; arrays are [B, Hq, Sq, Sk] or [B, Hq, Sq, 1]."""

    x: Intermediates
    #: Intermediates of weights, which leave far keys out.
    near: Intermediates
    g: GradientIntermediates
    c: ResolvedContract
    #: The weights that make dV.
    weights: BackwardWeights
    #: All errors together: of X, of dA, of dS.
    X: np.ndarray
    dA: np.ndarray
    dS: np.ndarray
    #: Error of dS that is a key's own.
    own: np.ndarray
    #: Common to a row: the factor of dS, less 1; the error of D with it; and P slope, which that is multiplied by.
    G: np.ndarray
    D: np.ndarray
    P_slope: np.ndarray
    #: Underflow of sigma dS, where constants multiply dS before its products.
    early: np.ndarray
    #: Rows in the domain, bool [B, Hq, Sq]: none of all that overflows.
    inside: np.ndarray


@np.errstate(all="ignore")
def score_gradient_error(
    x: Intermediates, g: GradientIntermediates, c: ResolvedContract, slack: np.ndarray | float
) -> ScoreGradientError:
    """Errors of dS under a contract that leaves no reading open; ``slack`` bounds the error of ``g.X``.

    With a, g the errors of P, e and e_D those of dP and D, and r of the two operations,

        dA_hat - P X = g P X - (1 + g) e_D P + (1 + g)(P X [(1 + a)(1 + r) - 1] + P (1 + a)(1 + r) e - ..) + underflow.

    The whole is never more than what |dA_hat| and |dA| are together, which says more where A is large.
    """
    check_handled(x.problem, HANDLES, "the bound of gradients")
    near, casts = without_far_keys(x, c), c.score_gradients_of == "cast"
    w = weight_error(near, c)
    scored = backward_weights(near, c, w, cast=guard("the cast of weights that make dS", casts, False))
    around = np.where(x.visible, np.abs(g.dP - g.D) + slack, 0.0)
    row = Setting(x, near, g, c, w, scored, casts, np.abs(g.X) + slack, around, slack)
    edP = weight_gradient_error(x, near, g, c)
    eD = delta_error(row, edP)
    EX = np.where(x.visible, edP + eD, 0.0)
    G = np.expm1(np.minimum(scored.common, 700.0))
    eD_weighted = times("the row's weights with delta in dq", 1 + G) * eD
    if g.lse_cotangent is not None:  # P dL may have weights of its own: then no factor is common to all of dS
        G = np.zeros(G.shape)
    left = 0.0
    if divides_cotangent(c):
        left = left_of_references(near, g, c, w, row.of_output, most=scored.most, edP=edP, eD=eD)
    dA, most = (error + term("what is left of references", left) for error in _weighted_error(row, EX))
    slope = np.ones(x.s.shape) if x.problem.softcap is None else 1 - (x.capped / x.problem.softcap) ** 2
    P_slope = np.where(x.visible, x.P * np.maximum(slope, 0.0), 0.0)
    full = _narrowed(x, g, c, _through_softcap(x, g, c, dA))
    dA = np.minimum(dA, most * (1.0 if stands("the most of dA is below its error") else 0.5))
    return ScoreGradientError(
        x=x,
        near=near,
        g=g,
        c=c,
        weights=backward_weights(near, c, w, cast=True),
        X=EX,
        dA=dA,
        dS=_narrowed(x, g, c, _through_softcap(x, g, c, dA)),
        own=term("the row's weights in dS", np.maximum(full - P_slope * (G * row.size + eD_weighted), 0.0)),
        G=G,
        D=eD_weighted,
        P_slope=P_slope,
        early=_early_underflow(x, g, c, dA),
        inside=score_gradients_fit(x, near, g, c, X=EX, dA=dA, used=_used(near, c, w)),
    )


def _used(x: Intermediates, c: ResolvedContract, w: WeightError) -> dict[str, np.ndarray]:
    """Errors of what of the forward pass the backward pass reads, by name."""
    found = {"output": exact_output_error(x, c)} if c.delta == "output" else {}
    return found if is_stored(c) else found | {"lse": lse_error(x, c, w)}


def _weighted_error(row: Setting, EX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Error of dA = P X for an error EX of X, and the most that it can be, whatever scores are off by; 0 where hidden.

    dL may be added to dP - D, or P dL to P (dP - D) with weights found again as exp(s - LSE): an LSE of its own
    (``torch.logsumexp``) is differentiated so. Then each summand has the error of its own weights.
    """
    x, g, c, weights, total = row.x, row.g, row.c, row.weights, row.size
    work, stored = c.stages.score_accumulation, c.stages.stored_scores
    narrow, parts = stored.of(work.format).u, 1
    own, P1A, eta = weights.PA * total, weights.P1A, weights.eta
    if g.lse_cotangent is not None:
        dL = np.where(x.visible, np.abs(g.lse_cotangent)[..., None], 0.0)
        found = backward_weights(row.near, replace(c, backward_weights="recomputed"), row.w, cast=row.casts)
        own = weights.PA * row.around + term("the weights of dL", np.maximum(weights.PA, found.PA) * dL)
        P1A, eta = np.maximum(P1A, found.P1A), np.maximum(eta, found.eta)
        total, parts = row.around + dL, count("one more rounding with dL", 2)
    relative = growth(
        (work.u, term("both roundings of dA", count("one rounding of dA", 1) + parts)),
        (narrow, term("storing dA", parts)),
    )
    tiny = term(
        "underflow of dA",
        4 * times("underflow of dA of weights that are above their row sum", largest_quotient(row.near, c)) * work.eta,
    ) + term("underflow of storing dA", 2 * parts * stored.eta)
    tiny = times("underflow of dA, raised", x.largest_factor) * tiny
    if c.delta == "probabilities":  # P dP - P D may be formed from two stored products, and is rounded after them
        stores = (stored.u, count("the stores of P dP less P D", 1))
        each = growth((work.u, count("the sums of P dP less P D", 1)), stores)
        products = term("P dP less P D", each) * weights.most * (np.abs(g.dP) + np.abs(g.D) + EX)
        tiny = tiny + times("the rounding of P dP less P D", 1 + relative) * products
    dA = (
        term("the error of P in dA", own * times("roundings of P's error in dA", 1 + relative))
        + term("roundings of dA", relative * x.P * total)
        + term("the error of dP - D in dA", P1A * (1 + relative) * EX)
    )
    dA = dA + term("underflow of P in dA", eta * (total + EX) * (1 + relative)) + term("last underflow of dA", tiny)
    most = (
        term("a weight between its ends in the most of dA", _most_error(row, EX))
        + term("roundings of dA from the largest weight", relative * weights.most * (total + EX))
        + term("underflow of P in the most of dA", eta * (total + EX) * (1 + relative))
        + term("last underflow in the most of dA", tiny)
    )
    return np.where(x.visible, dA, 0.0), np.where(x.visible, most, 0.0)


def _most_error(row: Setting, EX: np.ndarray) -> np.ndarray:
    """The most that p (X + e) may lie from P X, for p between the ends of a weight and |e| <= EX, before roundings.

    |(p - P) X + p e| is largest at an end. Of dL each weight may be that of its own summand.
    """
    x, g, w = row.x, row.g, row.weights
    size, dL = row.size, np.zeros(x.s.shape)
    change = w.change
    if g.lse_cotangent is not None:
        found = backward_weights(row.near, replace(row.c, backward_weights="recomputed"), row.w, cast=row.casts)
        size, dL = row.around, np.where(x.visible, np.abs(g.lse_cotangent)[..., None], 0.0)
        change = np.maximum(change, found.change)
    evaluated = (row.w.widen - 1 + 2.0**-48) * x.P
    above = term("the largest weight less P in the most of dA", np.maximum(w.most - x.P, 0.0) * size) + term(
        "the largest weight with the error of dP - D in the most of dA", w.most * EX
    )
    below = term("the least weight less P in the most of dA", (x.P - w.least) * size) + term(
        "the least weight with the error of dP - D in the most of dA", w.least * EX
    )
    return (
        np.maximum(above, term("the least weight in the most of dA", below))
        + term("the evaluation of P in the most of dA", evaluated * size)
        + term("the most of the weights of dL", change * dL)
    )


def _through_softcap(x: Intermediates, g: GradientIntermediates, c: ResolvedContract, dA: np.ndarray) -> np.ndarray:
    """Error of dS = dA (1 - t^2), t = tanh(s/c): the factor's error is 2|t| e + e^2 for an error e of t."""
    cap = x.problem.softcap
    if cap is None:
        return dA
    stored, work = c.stages.stored_scores, c.stages.score_accumulation
    t = np.abs(x.capped) / cap
    e = term("the score in the slope", softcapped_error(x, c) / cap) + term("storing tanh in the slope", stored.u * t)
    factor = (
        term("the first order of the softcap's slope", 2 * t * e)
        + term("the second order of the softcap's slope", e * e)
        + count("roundings of the softcap's slope", 4) * stored.u
    )
    relative = growth(
        (stored.u, count("the store of dA times the softcap's slope", 1)),
        (work.u, count("the constant in dA times the softcap's slope", 1)),
    )
    exact = np.maximum(1 - t * t, 0.0)
    dS = term("the error of the softcap's slope with dA", np.abs(g.dA) * factor) + term(
        "dA's error after the slope", (exact + term("the slope's error with dA's", factor)) * dA
    )
    # dA may be multiplied by c, then divided.
    eta = times("underflow of the product with the slope, raised", x.largest_factor) * stored.eta * (1 + 2 / cap)
    return (
        dS
        + term("the product with the slope", relative * (np.abs(g.dS) + dS))
        + term("underflow of the product with the slope", eta)
    )


def _narrowed(x: Intermediates, g: GradientIntermediates, c: ResolvedContract, dS: np.ndarray) -> np.ndarray:
    """Error of dS after its cast; a scale may have multiplied it before, and the product was stored."""
    cast = c.stages.score_gradients.of(c.stages.stored_scores.format)
    stored = c.stages.stored_scores.of(c.stages.score_accumulation.format)
    tiny = term("underflow of dS's cast", c.stages.score_gradients.eta) + term(
        "underflow of dS's store", c.stages.stored_scores.eta
    )
    tiny = times("underflow of dS, raised", x.largest_factor) * tiny
    return np.where(
        x.visible,
        dS
        + growth((cast.u, count("the cast of dS", 1)), (stored.u, count("the store of dS", 1))) * (np.abs(g.dS) + dS)
        + term("underflow of dS", tiny),
        0.0,
    )


def _early_underflow(x: Intermediates, g: GradientIntermediates, c: ResolvedContract, dA: np.ndarray) -> np.ndarray:
    """Underflow of f dS times the last factor sigma / f, beyond that of dS times sigma; and of the slope f (1 - t^2).

    A kernel may multiply dS by f = sigma before its products, or by sigma / c (FlashAttention-2, under a softcap c).
    """
    stored, enters = c.stages.stored_scores, entry(c, c.stages.score_gradients.format)
    tiny = max(stored.eta, c.stages.score_gradients.eta) + enters.eta
    slope = 0.0 if x.problem.softcap is None else x.problem.softcap * stored.eta * (np.abs(g.dA) + dA)
    beyond = times("underflow of a dS that is scaled early, raised", x.largest_factor) * (
        last_factor(x) - abs(x.problem.scale_value)
    )
    return np.where(
        x.visible,
        term("underflow of dS times a scaled slope", beyond * tiny) + term("underflow of a scaled slope", slope),
        0.0,
    )

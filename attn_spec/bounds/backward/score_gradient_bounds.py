"""How far the gradients of the scores may lie from the truth: of X = dP - D + dL, of dA = P X and of dS.

With dO the cotangent of the output and dL that of the LSE,

    dP = dO v^T    D_i = sum_c dO_ic o_ic = sum_j P_ij dP_ij    dA = P X    dS = dA (1 - tanh^2) under a softcap

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). Two errors are common to a row: g, relative, of its weights
(their LSE or row sum), and that of D. They leave dS_j with g dS_j and -(1 + g) e_D P_j slope_j, whose sums with k
cancel as those of dS and P do; so they are kept apart from a key's own errors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attn_spec.bounds.backward.gradient_domain import score_gradients_fit
from attn_spec.bounds.backward.reference_gradients import left_of_references
from attn_spec.bounds.backward.weight_gradient_bounds import (
    divides_cotangent,
    division,
    division_underflow,
    largest_quotient,
    weight_gradient_error,
)
from attn_spec.bounds.forward import value_spread
from attn_spec.bounds.forward.bounds import exact_output_error
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.forward.output_bounds import OutputTerms, output_terms
from attn_spec.bounds.forward.row_sum_bounds import (
    WeightError,
    deviations,
    divided,
    lse_error,
    normalization_error,
    rounding_by_lse,
    row_sum_error,
    weight_error,
)
from attn_spec.bounds.forward.score_bounds import last_factor, narrows_scores, softcapped_error
from attn_spec.bounds.forward.weight_bounds import log_weight_error, weight_error_by_lse
from attn_spec.bounds.forward.weighted_means import mean_error, shares
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import value_error, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import entry, probability_cast
from attn_spec.contract.roundoff import growth
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.problem.handled import check_handled

#: Options whose roundings are in the theorems of softmax gradients, see ``problem.handled``.
HANDLES = ("scale", "softcap", "bias", "alibi_slopes", "dropout_keep", "dropout_p")


@dataclass(frozen=True)
class BackwardWeights:
    """Errors of the weights P of the backward pass; arrays are [B, Hq, Sq, Sk] or [B, Hq, Sq, 1]."""

    #: Bound on |log| of a weight's own error, and of the one that a row has in common.
    own: np.ndarray
    common: np.ndarray
    #: P A and P (1 + A) for both together.
    PA: np.ndarray
    P1A: np.ndarray
    #: A weight is its share of the sum of all but for ``off``, a bound on |log|: the least and the largest that it may
    #: be, and how far it may lie from P.
    off: np.ndarray
    least: np.ndarray
    most: np.ndarray
    change: np.ndarray
    #: Absolute error.
    eta: np.ndarray


@dataclass(frozen=True)
class ScoreGradientError:
    """Errors of a row of score gradients, and what they are made of; arrays are [B, Hq, Sq, Sk] or [B, Hq, Sq, 1]."""

    x: Intermediates
    #: Those of weights, which leave far keys out.
    near: Intermediates
    g: GradientIntermediates
    c: ResolvedContract
    #: The weights that make dV.
    weights: BackwardWeights
    #: All errors together: of X, of dA, of dS.
    X: np.ndarray
    dA: np.ndarray
    dS: np.ndarray
    #: Of dS, a key's own.
    own: np.ndarray
    #: Common to a row: the factor of dS, less 1; the error of D with it; and P slope, which that is multiplied by.
    G: np.ndarray
    D: np.ndarray
    P_slope: np.ndarray
    #: Of sigma dS, what underflows only where constants multiply dS before its products.
    early: np.ndarray
    #: Rows in the domain, bool [B, Hq, Sq]: none of all that overflows.
    inside: np.ndarray


@dataclass(frozen=True)
class _Setting:
    """What the theorems of a row share."""

    x: Intermediates
    #: Those of weights and outputs, which leave far keys out.
    near: Intermediates
    g: GradientIntermediates
    c: ResolvedContract
    w: WeightError
    #: The weights that make dS, and whether they are cast.
    weights: BackwardWeights
    casts: bool
    #: |X| and |dP - D| with the error of their own evaluation, [.., Sq, Sk], which is at most ``slack``.
    size: np.ndarray
    around: np.ndarray
    slack: np.ndarray | float

    @cached_property
    def of_output(self) -> OutputTerms:
        """The terms of the output's error."""
        return output_terms(self.near, self.c, self.w, self.near.O, 0.0)


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
    row = _Setting(x, near, g, c, w, scored, casts, np.abs(g.X) + slack, around, slack)
    edP = weight_gradient_error(x, near, g, c)
    eD = _delta_error(row, edP)
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
    return found if _is_stored(c) else found | {"lse": lse_error(x, c, w)}


def _is_stored(c: ResolvedContract) -> bool:
    """Whether the weights of the backward pass are those that the forward pass divided by their own sum."""
    return c.backward_weights == "stored" and c.normalize != "by_lse"


def _weighted_error(row: _Setting, EX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def _most_error(row: _Setting, EX: np.ndarray) -> np.ndarray:
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


def backward_weights(x: Intermediates, c: ResolvedContract, w: WeightError, *, cast: bool) -> BackwardWeights:
    """Errors of the weights, with or without the cast that precedes a product.

    Recomputed, exp(s - LSE) is not renormalized, so the error of the LSE does not cancel. Stored, the weight carries
    the relative error of the row sum it was divided by, and two roundings of the division. Whatever the errors of
    scores, no weight is more than all of them together: it is the share of one of the weights that the forward pass has
    added up, but for the roundings of the row sum and the division, or of the LSE and of a score computed again.
    """
    softmax, narrow = c.stages.softmax, probability_cast(c)
    if _is_stored(c):
        e = log_weight_error(x, c)
        own = term("a weight stored, its error", e.direct if c.normalize == "before_product" else e.rescaled)
        own = own - count("roundings of a stored weight's division", 2) * math.log1p(-softmax.u)
        common = term("the row sum of stored weights", row_sum_error(x, w)[..., None])
        eta = count("underflows of a stored weight's division", 4) * softmax.eta + term(
            "underflow of a stored weight", w.eta * np.fmin(w.inverse_sum, divided(x, c))
        )
        off = np.where(
            x.visible,
            term("the row sum beside the share of a stored weight", normalization_error(x, c, w))
            - count("roundings of a division beside the share of a stored weight", 2) * math.log1p(-softmax.u),
            0.0,
        )
    else:
        common = term("the LSE of recomputed weights", lse_error(x, c, w)[..., None])
        own = term("recomputed weights", weight_error_by_lse(x, c, common))
        eta = np.full(x.L.shape, count("underflows of recomputed weights", 4) * softmax.eta)
        again = c.backward_weights == "recomputed" or not narrows_scores(c)
        again = guard("scores that are computed again beside the share of a weight", again, False)
        off = term("roundings by the LSE beside the share of a weight", rounding_by_lse(x, c, w, again=again))
    if cast:
        moved = -math.log1p(-narrow.u)
        own = own + term("the cast of weights before the product with dO", moved)
        off = off + term("the cast beside the share of a weight", moved)
        eta = eta + term("underflow of the cast of weights before the product with dO", narrow.eta)
    own = np.where(x.visible, own, 0.0)
    together = own + term("own and common errors of P together", common)
    PA, P1A = deviations(
        x, np.where(term("what far weights have in common with others", x.seen, x.visible), together, 0.0)
    )
    least, most = shares(w.low, w.high)
    least = least * np.exp(term("roundings beside the least share of a weight", -off))
    most = most * np.exp(term("roundings beside the largest share of a weight", np.minimum(off, 700.0)))
    evaluated = (w.widen - 1 + 2.0**-48) * x.P
    change = np.fmin(
        PA,
        np.maximum(
            term("the largest share of a weight in its change", most - x.P),
            term("the least share of a weight in its change", x.P - least),
        )
        + term("the evaluation of P in the change of a weight", evaluated),
    )
    return BackwardWeights(
        own,
        common,
        PA,
        P1A,
        off,
        least,
        np.fmin(P1A, most + term("the evaluation of P beside the largest weight", evaluated)),
        change,
        eta,
    )


def _delta_error(row: _Setting, edP: np.ndarray) -> np.ndarray:
    """Error of D, less dL, [.., Sq, 1], which 1 - p may multiply; ``edP`` is that of dP."""
    x, g, work = row.x, row.g, row.c.stages.score_accumulation
    D = _delta_of_output(row) if row.c.delta == "output" else _delta_of_probabilities(row, edP)
    D = (
        D
        + term("the division of delta by l", growth(*division(row.near, row.c)) * (np.abs(g.D) + D))
        + term("underflow of delta's division by l", division_underflow(row.near, row.c))
    )
    if g.lse_cotangent is not None:
        D = (
            D
            + term("the sum with dL", work.u * (np.abs(g.D) + D + np.abs(g.lse_cotangent)[..., None]))
            + term(
                "underflow of the sum with dL",
                times("underflow of the sum with dL, raised", x.largest_factor) * work.eta,
            )
        )
    if late := late_roundings(x, row.c):
        dL = 0.0 if g.lse_cotangent is None else np.abs(g.lse_cotangent)[..., None]
        D = D + growth(*late) * (term("delta times 1 - p", np.abs(g.D) + D) + term("dL times 1 - p", dL))
    return D if x.c is None else D + term("underflow of delta times 1 - p", x.largest_factor * work.eta)


def _delta_of_output(row: _Setting) -> np.ndarray:
    """Error of rowsum(dO O): that of the stored output, and of the sum.

    Of the output's error the part sum_j P a_j (v_j - o) meets dO as sum_j P a_j (dP_j - D), whatever the columns; where
    values have errors f_j, o is sum P v^, and both differences are off by these.
    """
    x, c, work = row.near, row.c, row.c.stages.score_accumulation
    size, Dv = np.abs(row.g.cotangent), x.v.shape[-1]
    EO = exact_output_error(x, c)
    stored = (size * EO).sum(-1, keepdims=True)
    if c.normalize != "by_lse":
        off = value_spread.slack(x, c)
        around = term("errors of values around delta", value_spread.around(x, c, row.around, size), row.around)
        e = row.of_output
        last = (
            size
            * (
                term("the last roundings of the output in delta", e.finish * (np.abs(x.O) + EO))
                + term("the last underflow of the output in delta", e.tiny)
            )
        ).sum(-1, keepdims=True)
        through = (
            term("the weights' part of delta", (row.w.PA * around).sum(-1, keepdims=True))
            + term("the other terms of delta", (size * e.rest).sum(-1, keepdims=True))
        ) / e.kappa
        through = np.where(
            e.kappa > 0,
            through
            + term("errors of values in delta", (size * off).sum(-1, keepdims=True))
            + term("the last roundings of an output of equal values in delta", last),
            np.inf,
        )
        stored = np.fmin(
            stored,
            np.fmin(
                through,
                term("a mean of products in delta", _mean_of_products(row, e, size))
                + term("the last roundings of the output with a mean of products", last),
            ),
        )
    if (of_g := row.g.cotangent_error) is not None:
        off = of_g * (np.abs(x.O) + term("errors of cotangents and outputs in delta", EO))
        stored = stored + term("errors of cotangents in delta", off.sum(-1, keepdims=True))
        size = size + term("errors of cotangents in the size of delta", of_g)
    additions = min(Dv, c.summation_depth or Dv) - 1 + count("one rounding of delta's sum", 1)
    summed = growth((work.u, additions)) * (size * (np.abs(x.O) + EO)).sum(-1, keepdims=True)
    return (
        term("the output in delta", stored)
        + term("delta's sum", summed)
        + term("underflow of delta's sum", 2 * Dv * work.eta)
    )


def _mean_of_products(row: _Setting, e: OutputTerms, size: np.ndarray) -> np.ndarray:
    """How far a mean of the products dP_j of a row may lie from D, [.., Sq, 1].

    They are values of one column, as those of :func:`output_bounds.output_error`.
    """
    x, c = row.near, row.c
    of_values = x.dropped(size @ value_sizes(x, c).swapaxes(-1, -2))
    given = value_error(x, c)
    moved = 0.0 if given is None else x.dropped(size @ given.swapaxes(-1, -2))
    r = (
        term("values that are off in a mean of products", moved)
        + term("roundings of the numerator in a mean of products", e.B * of_values)
        + term("the row sum in a mean of products", e.C * (size * np.abs(x.O)).sum(-1, keepdims=True))
        + term("the evaluation of dP - D beside a mean of products", row.slack)
    )
    least = 1 - e.C.max(axis=-1, keepdims=True, initial=0.0)
    found = mean_error(row.w, row.g.dP - row.g.D, r) / times("the row sum of a mean of products", least)
    return np.where(least > 0.75, found, np.inf) + term(
        "underflow of a mean of products", (size * e.outside_hull).sum(-1, keepdims=True)
    )


def _delta_of_probabilities(row: _Setting, edP: np.ndarray) -> np.ndarray:
    """Error of rowsum(P dP), whose weights add up to 1 but for a defect N, with dP_j = D + (dP_j - D).

    sum P (1 + a)(1 + g)(dP + e) - D = N D + (1 + g)(sum P a (dP - D) + sum P (1 + a) e), since sum P (dP - D) = 0.
    The products may be those that P dP - P D is formed from, as they are stored.
    """
    x, g, c, w, weights = row.x, row.g, row.c, row.w, row.weights
    work, n = c.stages.score_accumulation, x.keys - 1.0 + count("roundings of delta's sum over keys", 2)
    PA, P1A = deviations(row.near, weights.own)
    G = np.expm1(np.minimum(weights.common, 700.0))
    if _is_stored(c):
        cast = probability_cast(c).u if c.score_gradients_of == "cast" else 0.0
        N = (
            1
            + growth(
                (c.stages.softmax.u, count("roundings of stored weights in delta", 2)),
                (cast, count("the cast of stored weights in delta", 1)),
            )
        ) * np.exp(term("a defect of stored weights", w.defect)) - 1
    else:
        N = (
            times("the LSE in the defect of recomputed weights", 1 + G)
            * times("the weights in their defect", 1 + PA.sum(-1, keepdims=True))
            - 1
        )
    N = N + term(
        "underflow in the defect of weights", x.keys * (weights.eta + np.fmin(w.inverse_sum, divided(x, c)) * w.eta_sum)
    )
    sizes = np.where(x.visible, np.abs(g.dP) + edP, 0.0)
    apart = term("the defect of weights in delta", N * np.abs(g.D)) + (1 + G) * (
        term("the weights in delta", (PA * row.around).sum(-1, keepdims=True))
        + term("dP in delta", (P1A * edP).sum(-1, keepdims=True))
    )
    together = (
        term("the change of weights in delta", weights.change * np.abs(g.dP))
        + term("dP with the largest weights in delta", weights.most * edP)
    ).sum(-1, keepdims=True)
    factor = np.exp(np.minimum(weights.off, 700.0))
    mean = mean_error(
        w,
        g.dP - g.D,
        term("roundings of weights in a mean of products", (factor - 1) * np.abs(g.dP))
        + term("dP in a mean of products", factor * edP)
        + term("the evaluation of dP - D beside a mean under stored weights", row.slack),
    )
    depth = np.minimum(n, c.summation_depth or np.inf)
    stored = c.stages.stored_scores.of(work.format)
    summed = (
        growth((work.u, depth), (stored.u, count("the stored products of delta", 1))) * weights.most
        + term("underflow of weights in delta's sum", weights.eta)
    ) * sizes
    tiny = (
        n
        * times("underflow of delta's sum over keys, raised", x.largest_factor)
        * (
            term("underflow of delta's sum over keys", 2 * work.eta)
            + term("underflow of the stored products of delta", c.stages.stored_scores.eta)
        )
    )
    return np.fmin(np.fmin(apart, together), mean) + term("delta's sum over keys", summed.sum(-1, keepdims=True)) + tiny


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

"""Bounds on the errors of the gradients of scores: of X = dP - D + dL, of dA = P X and of dS.

With dO the cotangent of the output and dL that of the LSE,

    dP = dO v^T    D_i = sum_c dO_ic o_ic = sum_j P_ij dP_ij    dA = P X    dS = dA slope of terms

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). Two errors are common to a row: g, relative, of its weights
(their LSE or row sum), and that of D. They leave dS_j with g dS_j and -(1 + g) e_D P_j slope_j, whose sums with k
cancel as those of dS and P do; so they are kept apart from a key's own errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.arithmetic import FLOATS
from attn_spec.attention.terms import BENDS, DESCALES, TERMS, divisor, slope_of_bends, used
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
from attn_spec.bounds.forward.score_bounds import BOUNDED, approximate_score, error_before, errors_after
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.running_error import RunningErrors
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import rounding_on_entry
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.problem.handled import check_handled, refuse

#: Options whose roundings are in the theorems of softmax gradients, see ``problem.handled``.
HANDLES = (*BOUNDED, "dropout_keep", "dropout_p", "sinks", "v_descale")


@dataclass(frozen=True)
class ScoreGradientError:
    """Errors of a row of score gradients, and what they are made of; arrays are [B, Hq, Sq, Sk] or [B, Hq, Sq, 1].

    As in ``Intermediates`` the last of Sk keys may be a sink.
    """

    forward: Intermediates
    #: Intermediates of weights, which leave far keys out.
    near: Intermediates
    grad: GradientIntermediates
    contract: ResolvedContract
    #: The weights that make dV.
    weights: BackwardWeights
    #: All errors together: of X, of dA, of dS.
    E_X: np.ndarray
    E_dA: np.ndarray
    E_dS: np.ndarray
    #: Error of dS that is a key's own.
    own: np.ndarray
    #: Common to a row: the factor of dS, less 1; the error of D with it; and P slope, which that is multiplied by.
    G: np.ndarray
    E_D: np.ndarray
    P_slope: np.ndarray
    #: Underflow of sigma dS, where constants multiply dS before its products.
    early: np.ndarray
    #: Rows in the domain, bool [B, Hq, Sq]: none of all that overflows.
    inside: np.ndarray

    @property
    def of_keys(self) -> ScoreGradientError:
        """Return these errors without the column of a sink, which has no part in the gradients of q, k, v and bias."""
        if not self.forward.has_sink:
            return self

        def keys(of: Any, *names: str) -> dict[str, np.ndarray]:
            return {name: getattr(of, name)[..., :-1] for name in names}

        grad = replace(self.grad, **keys(self.grad, "dP", "X", "dA", "dS"))
        of_weights = keys(self.weights, "own", "PA", "P1A", "off", "least", "most", "change")
        return replace(
            self,
            forward=self.forward.of_keys,
            grad=grad,
            weights=replace(self.weights, **of_weights),
            **keys(self, "E_X", "E_dA", "E_dS", "own", "P_slope", "early"),
        )


@np.errstate(all="ignore")
def score_gradient_error(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, slack: np.ndarray | float
) -> ScoreGradientError:
    """Errors of dS under a contract that leaves no reading open; ``slack`` bounds the error of ``grad.X``.

    With a, g the errors of P, e and e_D those of dP and D, and r of the two operations,

        dA_hat - P X = g P X - (1 + g) e_D P + (1 + g)(P X [(1 + a)(1 + r) - 1] + P (1 + a)(1 + r) e - ..) + underflow.

    The whole is never more than what |dA_hat| and |dA| are together, which says more where A is large.
    """
    check_handled(forward.problem, HANDLES, "the bound of gradients")
    if contract.descale_on == "operands":
        refuse(used(forward.problem, DESCALES), "the bound of gradients of operands that descales multiply")
    near, casts = without_far_keys(forward, contract), contract.score_gradients_of == "cast"
    forward_weights = weight_error(near, contract)
    scored = backward_weights(
        near, contract, forward_weights, cast=guard("the cast of weights that make dS", casts, False)
    )
    around = np.where(forward.visible, np.abs(grad.dP - grad.D) + slack, 0.0)
    row = Setting(forward, near, grad, contract, forward_weights, scored, casts, np.abs(grad.X) + slack, around, slack)
    E_dP = weight_gradient_error(forward, near, grad, contract)
    E_D = delta_error(row, E_dP)
    E_X = np.where(forward.visible, E_dP + E_D, 0.0)
    G = np.expm1(np.minimum(scored.common, 700.0))
    E_D_weighted = times("the row's weights with delta in dq", 1 + G) * E_D
    if grad.lse_cotangent is not None:  # P dL may have weights of its own: then no factor is common to all of dS
        G = np.zeros(G.shape)
    left = 0.0
    if divides_cotangent(contract):
        left = left_of_references(
            near, grad, contract, forward_weights, row.of_output, most=scored.most, E_dP=E_dP, E_D=E_D
        )
    E_dA, most = (error + term("what is left of references", left) for error in _weighted_error(row, E_X))
    slope = slope_of_bends(FLOATS, forward.problem, forward.after, forward.numbers_of_terms())
    P_slope = np.where(forward.visible, forward.P * np.maximum(1.0 if slope is None else slope, 0.0), 0.0)
    full = _narrowed(forward, grad, contract, _before_bends(forward, grad, contract, E_dA))
    E_dA = np.minimum(E_dA, most * (1.0 if stands("the most of dA is below its error") else 0.5))
    return ScoreGradientError(
        forward=forward,
        near=near,
        grad=grad,
        contract=contract,
        weights=backward_weights(near, contract, forward_weights, cast=True),
        E_X=E_X,
        E_dA=E_dA,
        E_dS=_narrowed(forward, grad, contract, _before_bends(forward, grad, contract, E_dA)),
        own=term("the row's weights in dS", np.maximum(full - P_slope * (G * row.size + E_D_weighted), 0.0)),
        G=G,
        E_D=E_D_weighted,
        P_slope=P_slope,
        early=_early_underflow(forward, grad, contract, E_dA),
        inside=score_gradients_fit(
            forward, near, grad, contract, E_X=E_X, E_dA=E_dA, used=_used(near, contract, forward_weights)
        ),
    )


def _used(forward: Intermediates, contract: ResolvedContract, forward_weights: WeightError) -> dict[str, np.ndarray]:
    """Errors of what of the forward pass the backward pass reads, by name."""
    found = {"output": exact_output_error(forward, contract)} if contract.delta == "output" else {}
    return found if is_stored(contract) else found | {"lse": lse_error(forward, contract, forward_weights)}


def _weighted_error(row: Setting, E_X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Error of dA = P X for an error E_X of X, and the most that it can be, whatever scores are off by; 0 where hidden.

    dL may be added to dP - D, or P dL to P (dP - D) with weights found again as exp(s - LSE): an LSE of its own
    (``torch.logsumexp``) is differentiated so. Then each summand has the error of its own weights.
    """
    forward, grad, contract, weights, total = row.forward, row.grad, row.contract, row.weights, row.size
    work, stored = contract.stages.score_accumulation, contract.stages.stored_scores
    narrow, parts = stored.of(work.format).u, 1
    own, P1A, eta = weights.PA * total, weights.P1A, weights.eta
    if grad.lse_cotangent is not None:
        dL = np.where(forward.visible, np.abs(grad.lse_cotangent)[..., None], 0.0)
        found = backward_weights(
            row.near, replace(contract, backward_weights="recomputed"), row.forward_weights, cast=row.casts
        )
        own = weights.PA * row.around + term("the weights of dL", np.maximum(weights.PA, found.PA) * dL)
        P1A, eta = np.maximum(P1A, found.P1A), np.maximum(eta, found.eta)
        total, parts = row.around + dL, count("one more rounding with dL", 2)
    relative = gamma(
        (work.u, term("both roundings of dA", count("one rounding of dA", 1) + parts)),
        (narrow, term("storing dA", parts)),
    )
    tiny = term(
        "underflow of dA",
        4
        * times("underflow of dA of weights that are above their row sum", largest_quotient(row.near, contract))
        * work.eta,
    ) + term("underflow of storing dA", 2 * parts * stored.eta)
    tiny = times("underflow of dA, raised", forward.largest_factor) * tiny
    # P dP - P D may be formed from two stored products, and is rounded after them.
    if contract.delta == "probabilities":
        stores = (stored.u, count("the stores of P dP less P D", 1))
        each = gamma((work.u, count("the sums of P dP less P D", 1)), stores)
        largest = weights.most + term("underflow of P in dA", weights.eta)
        products = term("P dP less P D", each) * largest * (np.abs(grad.dP) + np.abs(grad.D) + E_X)
        tiny = tiny + times("the rounding of P dP less P D", 1 + relative) * products
    E_dA = (
        term("the error of P in dA", own * times("roundings of P's error in dA", 1 + relative))
        + term("roundings of dA", relative * forward.P * total)
        + term("the error of dP - D in dA", P1A * (1 + relative) * E_X)
    )
    E_dA = (
        E_dA + term("underflow of P in dA", eta * (total + E_X) * (1 + relative)) + term("last underflow of dA", tiny)
    )
    most = (
        term("a weight between its ends in the most of dA", _most_error(row, E_X))
        + term("roundings of dA from the largest weight", relative * weights.most * (total + E_X))
        + term("underflow of P in the most of dA", eta * (total + E_X) * (1 + relative))
        + term("last underflow in the most of dA", tiny)
    )
    return np.where(forward.visible, E_dA, 0.0), np.where(forward.visible, most, 0.0)


def _most_error(row: Setting, E_X: np.ndarray) -> np.ndarray:
    """Return the largest |p (X + e) - P X| for a weight p between its ends and |e| <= E_X, before roundings.

    |(p - P) X + p e| is largest at an end. Of dL each weight may be that of its own summand.
    """
    forward, grad, weights = row.forward, row.grad, row.weights
    size, dL = row.size, np.zeros(forward.s.shape)
    change = weights.change
    if grad.lse_cotangent is not None:
        found = backward_weights(
            row.near, replace(row.contract, backward_weights="recomputed"), row.forward_weights, cast=row.casts
        )
        size, dL = row.around, np.where(forward.visible, np.abs(grad.lse_cotangent)[..., None], 0.0)
        change = np.maximum(change, found.change)
    evaluated = (row.forward_weights.widen - 1 + 2.0**-48) * forward.P
    above = term(
        "the largest weight less P in the most of dA", np.maximum(weights.most - forward.P, 0.0) * size
    ) + term("the largest weight with the error of dP - D in the most of dA", weights.most * E_X)
    below = term("the least weight less P in the most of dA", (forward.P - weights.least) * size) + term(
        "the least weight with the error of dP - D in the most of dA", weights.least * E_X
    )
    return (
        np.maximum(above, term("the least weight in the most of dA", below))
        + term("the evaluation of P in the most of dA", evaluated * size)
        + term("the most of the weights of dL", change * dL)
    )


def _before_bends(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, E: np.ndarray
) -> np.ndarray:
    """Error of dS, for an error E of dA: by the theorem of each term that bends the score, or its slope's formula."""
    of_term = grad.dA
    for name, row in reversed(used(forward.problem, BENDS).items()):
        assert row.slope is not None
        slope = row.slope(FLOATS, forward.before(name), forward.after[name], forward.numbers_of_terms())
        before = of_term * slope
        if name == "softcap":
            E = _through_softcap(forward, contract, of_term, before, E)
        else:
            E = _through_slope(forward, contract, name, of_term, E)
        of_term = before
    return E


def _through_slope(
    forward: Intermediates, contract: ResolvedContract, name: str, dA: np.ndarray, E_dA: np.ndarray
) -> np.ndarray:
    """Error of dA times the slope of a term, whose formula a kernel evaluates operation by operation.

    Dropout may raise the weights last, and dA and its underflow with them.
    """
    A, row, raised = RunningErrors(contract), TERMS[name], forward.largest_factor
    assert row.slope is not None
    s = approximate_score(contract, forward.before(name), error_before(forward, contract, name))
    y = approximate_score(contract, forward.after[name], errors_after(forward, contract)[name])
    p = {option: A.given(x) for option, x in forward.numbers_of_terms().items()}
    return (approximate_score(contract, dA / raised, E_dA / raised) * row.slope(A, s, y, p)).error * raised


def _through_softcap(
    forward: Intermediates, contract: ResolvedContract, dA: np.ndarray, dS: np.ndarray, E_dA: np.ndarray
) -> np.ndarray:
    """Error of dS = dA (1 - t^2), t = tanh(s/c): the factor's error is 2|t| e + e^2 for an error e of t."""
    stored, work, cap = contract.stages.stored_scores, contract.stages.score_accumulation, forward.problem.softcap
    assert cap is not None
    t = np.abs(forward.after["softcap"]) / cap
    e = term("the score in the slope", errors_after(forward, contract)["softcap"] / cap) + term(
        "storing tanh in the slope", stored.u * t
    )
    factor = (
        term("the first order of the softcap's slope", 2 * t * e)
        + term("the second order of the softcap's slope", e * e)
        + count("roundings of the softcap's slope", 4) * stored.u
    )
    relative = gamma(
        (stored.u, count("the store of dA times the softcap's slope", 1)),
        (work.u, count("the constant in dA times the softcap's slope", 1)),
    )
    exact = np.maximum(1 - t * t, 0.0)
    E_dS = term("the error of the softcap's slope with dA", np.abs(dA) * factor) + term(
        "dA's error after the slope", (exact + term("the slope's error with dA's", factor)) * E_dA
    )
    # dA may be multiplied by c, then divided.
    eta = times("underflow of the product with the slope, raised", forward.largest_factor) * stored.eta * (1 + 2 / cap)
    return (
        E_dS
        + term("the product with the slope", relative * (np.abs(dS) + E_dS))
        + term("underflow of the product with the slope", eta)
    )


def _narrowed(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, E_dS: np.ndarray
) -> np.ndarray:
    """Error of dS after its cast; a scale may have multiplied it before, and the product was stored."""
    cast = contract.stages.score_gradients.of(contract.stages.stored_scores.format)
    stored = contract.stages.stored_scores.of(contract.stages.score_accumulation.format)
    tiny = term("underflow of dS's cast", contract.stages.score_gradients.eta) + term(
        "underflow of dS's store", contract.stages.stored_scores.eta
    )
    tiny = times("underflow of dS, raised", forward.largest_factor) * tiny
    return np.where(
        forward.visible,
        E_dS
        + gamma((cast.u, count("the cast of dS", 1)), (stored.u, count("the store of dS", 1)))
        * (np.abs(grad.dS) + E_dS)
        + term("underflow of dS", tiny),
        0.0,
    )


def _early_underflow(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, E_dA: np.ndarray
) -> np.ndarray:
    """Underflow of f dS times the last factor sigma / f, beyond that of dS times sigma; and of the slope f (1 - t^2).

    A kernel may multiply dS by f = sigma before its products, or by sigma / c (FlashAttention-2, under a divisor c).
    """
    stored, enters = contract.stages.stored_scores, rounding_on_entry(contract, contract.stages.score_gradients.format)
    tiny = max(stored.eta, contract.stages.score_gradients.eta) + enters.eta
    slope = (divisor(forward.problem) or 0.0) * stored.eta * (np.abs(grad.dA) + E_dA)
    beyond = times("underflow of a dS that is scaled early, raised", forward.largest_factor) * (
        last_factor(forward) - abs(forward.problem.scale_value)
    )
    return np.where(
        forward.visible,
        term("underflow of dS times a scaled slope", beyond * tiny) + term("underflow of a scaled slope", slope),
        0.0,
    )

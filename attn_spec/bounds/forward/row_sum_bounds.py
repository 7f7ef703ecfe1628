"""Bounds on the errors of a row's weights, of their sum, and of the sum's logarithm under a contract.

Symbols: P = exp(s - L) weights, n visible keys of a row, A = e^alpha - 1. The formulas are evaluated in float64 on
rounded intermediates. All summands are non-negative, so their rounding is covered by the factor INFLATION; the error
of P itself enters as exp(2 alpha64) on every deviation, where alpha64 is the same theorem under the float64 contract.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.bounds.forward.cast_bounds import largest_cast_weight, saturation
from attn_spec.bounds.forward.far_keys import NEGLIGIBLE
from attn_spec.bounds.forward.score_bounds import repeated_score_error, row_shift, shift_error
from attn_spec.bounds.forward.sink_bounds import above_maximum, below_maximum, tiles_of
from attn_spec.bounds.forward.weight_bounds import (
    exponent_by_lse_error,
    log_weight_error,
    reference_rounding,
    row_sum_difference,
)
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.presets import FP64
from attn_spec.contract.products import (
    Factors,
    casts_row_sum,
    on_matrix_unit,
    probability_cast,
    roundings_of_sum,
    row_sum_entry,
)
from attn_spec.contract.roundoff import elementary_error, gamma, row_sum_store
from attn_spec.contract.terms import count, guard, term, times

#: Covers the float64 evaluation of a bound: relative error below 4 (n + d + 40) 2^-53.
INFLATION = 1.0 + 2.0**-30

#: The arithmetic of ``intermediates`` itself: NumPy float64, natural exponentials, one tile.
EVALUATION: ResolvedContract = replace(FP64, exponent="natural", kv_tile=None, sink_reference="maximum").at("float64")


@dataclass(frozen=True, eq=False)
class WeightError:
    """Errors of the weights of each row, as the output and the LSE need them; P's evaluation error is included."""

    #: P A and P (1 + A), [.., Sq, Sk].
    PA: np.ndarray
    P1A: np.ndarray
    #: The least and the largest that a weight may be, relative to one number of each row, [.., Sq, Sk].
    low: np.ndarray
    high: np.ndarray
    #: The part of alpha, A = e^alpha - 1, that is no error of a score, [.., Sq, Sk].
    beside_scores: np.ndarray
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
    #: Bound on the distance of the reference m, as the exponents have it, from M, [.., Sq, 1].
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


def evaluation_alpha(forward: Intermediates) -> np.ndarray:
    """Largest alpha of each row under the float64 contract, [.., Sq]: the error of P's own evaluation."""
    return log_weight_error(forward, EVALUATION).rescaled.max(axis=-1, initial=0.0)


@of_forward_pass
@np.errstate(all="ignore")
def weight_error(forward: Intermediates, contract: ResolvedContract) -> WeightError:
    """alpha, row-sum roundings and underflow of every weight, with the error of P's own evaluation."""
    log_errors = log_weight_error(forward, contract)
    # Weights that are normalized before they meet v are computed from the last reference; then a row sum that was not
    # differs by ``apart``.
    alpha, R = (
        (log_errors.direct, np.zeros(log_errors.R.shape))
        if contract.normalize == "before_product"
        else (log_errors.rescaled, log_errors.R)
    )
    cast, softmax = probability_cast(contract), contract.stages.softmax
    saturated = 0.0
    if casts_row_sum(contract):
        saturated = -np.log1p(-saturation(contract, largest_cast_weight(forward, contract)[..., None]))
        own = term("the cast of a weight in the row sum", -math.log1p(-cast.u)) + saturated
        alpha = np.where(forward.visible, alpha + own, 0.0)
    alpha = np.where(
        forward.visible, alpha + term("row sums of merges by a difference", merged_row_sum_error(contract)), 0.0
    )
    row_sum, entry, store = contract.stages.row_sum, row_sum_entry(contract), row_sum_store(contract)
    summed = _sums(forward, contract, log_errors.R)
    apart = row_sum_difference(forward, contract, log_errors)
    evaluated = 2 * evaluation_alpha(forward)[..., None]
    widen = np.exp(np.minimum(evaluated, 700.0))
    PA, P1A = deviations(forward, alpha)
    low, high = intervals(forward, alpha + term("the evaluation of intervals of weights", evaluated))
    shrunk = np.maximum.reduce([np.asarray(sum(-n * math.log1p(-u) for u, n in factors)) for factors in summed])
    defect = (
        term("the row sum's own weights, where it falls", apart)
        + term("the row sum's additions, where it falls", shrunk)
        - term("the entry to the row sum, where it falls", math.log1p(-entry.u))
        - term("the store of the row sum, where it falls", math.log1p(-store))
    )
    fall = -np.expm1(term("a fall of the weight", -alpha) - term("a fall of the row sum", defect))
    top = (
        term("the maximum's error in the reference", log_errors.delta.max(axis=-1, keepdims=True, initial=0.0))
        + term("the reference's distance", contract.reference_distance)
        + term("the reference's rounding", reference_rounding(forward, contract))
        + above_maximum(forward, contract)
    )
    inverse_sum = np.exp(
        np.minimum(
            forward.M
            - np.where(np.isfinite(forward.L), forward.L, 0.0)
            + term("the reference's error in the inverse of a row sum", top),
            700.0,
        )
    ) * times("the weights' evaluation in float64", widen)
    entered = (entry.u, count("the entry to the row sum, where it rises", 1))
    kept_sum = (store, count("the store of the row sum, where it rises", 1))
    additions = (term("the row sum's additions, where it rises", factors, ()) for factors in summed)
    grown = np.maximum.reduce([gamma(*factors, entered, kept_sum) for factors in additions])
    C = (1 + grown) * times("the row sum's own weights, where it rises", np.exp(np.minimum(apart, 700.0))) - 1
    # A lazy reference lets rescale factors exceed 1, and with them what underflowed before.
    most = log_errors.R.max(axis=-1, keepdims=True, initial=0.0)
    steps = (
        count("several underflows of one weight", 4)
        * (
            1
            + term("underflow at every rescaling", 2 * most)
            + term("underflow at every merge", 2 * contract.lse_merges)
        )
        * times(
            "a lazy reference magnifies underflow",
            np.exp(contract.reference_slack if contract.reference == "maximum" else 0.0),
        )
    )
    eta = steps * term("underflow of a weight", softmax.eta)
    of_sum = max(softmax.eta, term("underflow of the row sum itself", row_sum.eta))
    eta_sum = steps * term("underflow of a weight in the row sum", of_sum)
    return WeightError(
        PA=PA * widen,
        P1A=P1A * widen,
        beside_scores=np.where(
            forward.visible, term("roundings that are no errors of scores", alpha - log_errors.delta), 0.0
        ),
        low=low,
        high=high,
        fall=forward.P * fall * widen,
        C=C,
        defect=defect.max(axis=-1, keepdims=True, initial=0.0)
        - term("the cast where the row sum falls", math.log1p(-cast.u) if casts_row_sum(contract) else 0.0)
        + saturated,
        R=R,
        inverse_sum=inverse_sum,
        eta=eta,
        eta_sum=(eta_sum + term("underflow of the cast in the row sum", cast.eta if casts_row_sum(contract) else 0.0))
        * times("roundings make the row sum's underflow grow", 1 + C.max(axis=-1, keepdims=True, initial=0.0)),
        top=top + term("the reference below a sink", below_maximum(forward, contract)),
        widen=widen,
    )


def _sums(forward: Intermediates, contract: ResolvedContract, R: np.ndarray) -> list[Factors]:
    """Factors of one weight on its way through the row sum, for each way in which that may be added up.

    One by one; or, if it adds what the cast has changed, as the product with ones on a matrix unit. Rescalings and
    weighted merges round once each, and merges once more for their sum.
    """
    row_sum, merges = contract.stages.row_sum, count("merges of the row sum", 2) * contract.lse_merges
    moved = term("rescalings of the row sum", R) + (merges if contract.merging == "weighted" else 0)
    each = np.maximum(forward.keys - 2 + count("one addition of the row sum", 1), 0)
    additions = term("additions of the row sum", np.minimum(each, contract.summation_depth or np.inf))
    ways: list[Factors] = [((row_sum.u, additions + moved),)]
    if guard("a row sum of cast weights on a matrix unit", casts_row_sum(contract) and on_matrix_unit(contract), False):
        length = forward.problem.key_length
        blocks = math.ceil(length / contract.matrix_block) + tiles_of(forward, contract) + forward.has_sink
        ways.append(((row_sum.u, moved), *roundings_of_sum(contract, "row_sum", forward.keys, blocks=blocks)))
    return ways


def merged_row_sum_error(contract: ResolvedContract) -> float:
    """|log| of the factor that the row sums of merges by a difference put before the weights of a part.

    A weighted merge divides by the row sum whose logarithm it stores, so those roundings are the row sum's alone. A
    difference never divides: what L is off from log(e^L_1 + e^L_2) by stays in all weights that it stands for. Each
    merge rounds a rescaled row sum, their sum, and what the logarithm is taken of.
    """
    if contract.merging == "weighted":
        return 0.0
    return -contract.lse_merges * (
        count("roundings of row sums that are merged by a difference", 2) * math.log1p(-contract.stages.row_sum.u)
        + term("the store of a row sum that is merged by a difference", math.log1p(-row_sum_store(contract)))
    )


def deviations(forward: Intermediates, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """P A and P (1 + A) for A = e^alpha - 1, in the log domain where alpha is large, [.., Sq, Sk].

    Both are e^NEGLIGIBLE e^alpha for keys that were left out as far ones, where alpha is what a row has in common.
    """
    raised = np.where(forward.visible, np.exp(np.minimum(forward.log_P + alpha, 700.0)), 0.0)
    PA = np.where(alpha < 1, forward.P * np.expm1(np.minimum(alpha, 1.0)), raised)
    if forward.visible is not forward.seen:
        far = np.where(forward.seen & ~forward.visible, np.exp(np.minimum(NEGLIGIBLE + alpha, 700.0)), 0.0)
        PA, raised = PA + far, raised + far
    return PA, raised


#: An error of the logarithm of a weight beyond which nothing is known of it beside others.
WILD = 300.0


def intervals(forward: Intermediates, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of P e^-alpha .. P e^alpha, relative to the largest upper one of each row, [.., Sq, Sk].

    Far keys have the weight e^NEGLIGIBLE at most. One with an alpha above WILD is anything from 0 to e^WILD.
    """
    wild = forward.visible & guard("weights of which nothing is known", ~(alpha <= WILD), alpha < 0)
    log_high = np.where(
        forward.visible & ~wild, forward.log_P + term("the largest that a weight may be", alpha), -np.inf
    )
    log_high = term("far keys in a mean", np.where(forward.seen & ~forward.visible, NEGLIGIBLE, log_high), log_high)
    largest = log_high.max(axis=-1, keepdims=True, initial=-np.inf)
    largest = np.where(np.isneginf(largest), 0.0, largest)
    low = np.where(
        forward.visible & ~wild, np.exp(forward.log_P - term("the least that a weight may be", alpha) - largest), 0.0
    )
    return low, np.where(wild, math.exp(WILD), np.exp(log_high - largest))


@np.errstate(all="ignore")
def row_sum_error(forward: Intermediates, weights: WeightError) -> np.ndarray:
    """|log(l_hat / l)| of the row sum relative to the kernel's own reference, [.., Sq]."""
    absolute = term(
        "underflow of the row sum",
        (weights.inverse_sum * times("as many underflows as keys", forward.keys) * weights.eta_sum)[..., 0],
    )
    rise = np.log1p(
        (term("weights that rise", weights.PA) + term("a row sum that rises", weights.P1A * weights.C)).sum(-1)
        + term("underflow in row sums that rise", absolute)
    )
    fall = weights.fall.sum(-1) + term("underflow in row sums that fall", absolute)
    E_l = np.maximum(rise, term("a row sum that falls", np.where(fall < 1, -np.log1p(-np.minimum(fall, 1.0)), np.inf)))
    return np.where(np.isnan(E_l), term("a NaN error of a row sum is infinite", np.inf), E_l)


def divided(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound the factor that an absolute error gets when the row sum divides it, whatever scores err by, [.., Sq, 1].

    The row sum is at least about its largest term, exp(0) but for the rounding of the reference. Where the reference is
    no maximum of the scores as they are computed, their errors are added to its distance.
    """
    distance = term("a row sum as small as its reference allows", contract.reference_distance) + term(
        "the reference's rounding in what divides an error", reference_rounding(forward, contract)
    )
    distance = distance + above_maximum(forward, contract)
    if contract.reference != "maximum":
        distance = distance + term(
            "errors of scores in the least row sum",
            log_weight_error(forward, contract).delta.max(axis=-1, keepdims=True, initial=0.0),
        )
    return count("room of a row sum that divides an error", 4) * np.exp(np.minimum(distance, 700.0))


def row_sum_growth(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """C, with what underflows in the row sum alone, relative to it, [.., Sq, Sk]."""
    return term("roundings of the row sum alone, whatever scores are", weights.C) + term(
        "what underflows in the row sum alone, in the hull", divided(forward, contract) * forward.keys * weights.eta_sum
    )


@np.errstate(all="ignore")
def normalization_error(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """|log| of the sum of the computed weights over their row sum, [.., Sq, 1]: nothing that moves weights moves it."""
    lost = divided(forward, contract) * forward.keys * weights.eta_sum
    return np.where(
        lost < 0.5,
        term("the row sum over the sum of weights", weights.defect)
        - term("underflow of the row sum in the LSE of weights", np.log1p(-np.minimum(lost, 0.5))),
        np.inf,
    )


@np.errstate(all="ignore")
def rounding_by_lse(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, *, again: bool
) -> np.ndarray:
    """|log| of a computed exp(s - LSE) over the share of its weight in the sum of all, [.., Sq, Sk].

    The share is that of the weights in the row sum, which have the errors of scores; beside those each has its own,
    once in the row sum and once here. ``again``: scores are computed again.
    """
    E_L = lse_error(forward, contract, weights)[..., None]
    own = (
        term("a weight's own roundings in the row sum", weights.beside_scores)
        + term("a weight's own roundings in exp(s - LSE)", exponent_by_lse_error(forward, contract, E_L))
        + term("roundings of the LSE that weights share", lse_rounding(forward, contract, weights))
    )
    return np.where(
        forward.visible,
        own + term("scores that are computed again", repeated_score_error(forward, contract) if again else 0.0),
        0.0,
    )


@np.errstate(all="ignore")
def lse_rounding(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """|LSE_hat - log of the sum of the computed weights|, [.., Sq, 1]: :func:`lse_error` but for the weights."""
    E_L = lse_error(forward, contract, weights)
    after = np.maximum(E_L - row_sum_error(forward, weights), 0.0) + term(
        "the evaluation of an LSE beside its row sum", 2.0**-48 * E_L
    )
    return term("roundings of the row sum in the LSE", normalization_error(forward, contract, weights)) + term(
        "roundings of the LSE after the row sum", np.where(np.isnan(after), np.inf, after)[..., None]
    )


@of_forward_pass
@np.errstate(all="ignore")
def lse_error(forward: Intermediates, contract: ResolvedContract, weights: WeightError) -> np.ndarray:
    """|LSE_hat - L|, [.., Sq]: error of the row sum, then of the logarithm and the last additions.

    An offset in the exponents moves the reference as far, and is subtracted.
    """
    softmax, final = contract.stages.softmax, contract.stages.lse.of(contract.stages.softmax.format)
    b = contract.exponent_offset
    last = gamma((softmax.u, count("roundings of the LSE", 3 if b else 2)), (final.u, count("the LSE's store", 1)))
    L = np.where(np.isfinite(forward.L), forward.L, 0.0)[..., 0]
    E_L = row_sum_error(forward, weights)
    log_sum = np.abs(L - forward.M[..., 0]) + term("the reference in the logarithm", weights.top[..., 0] + b)
    E_L = (
        E_L
        + term("the error of log", elementary_error(contract, "log_error") * (1 + log_sum + E_L))
        + term("the rounding of the logarithm", softmax.u * (log_sum + E_L))
    )
    shift = row_shift(forward, contract)[..., 0]
    E_L = E_L + last * (np.abs(L) + term("the LSE before it is moved", shift + b) + E_L)
    if contract.base2:  # m and log2 of the row sum are both multiplied by a rounded ln 2
        moved = term("the reference that is moved, in the LSE of base 2", shift) + b
        reference = term("the reference in the LSE of base 2", np.abs(forward.M[..., 0]) + moved + weights.top[..., 0])
        size = reference + term("the row sum in the LSE of base 2", log_sum) + E_L
        E_L = E_L + gamma((contract.stages.score_accumulation.u, count("ln 2 in the LSE", 4))) * size
    E_L = E_L + term("the error of moving a log-sum-exp", shift_error(forward, contract, E_L[..., None])[..., 0])
    return (
        np.where(np.isnan(E_L), np.inf, E_L)
        + term("underflow of the LSE's steps", 3 * softmax.eta)
        + term("underflow of the LSE's store", final.eta)
    ) * times("the evaluation of the LSE in float64", INFLATION)

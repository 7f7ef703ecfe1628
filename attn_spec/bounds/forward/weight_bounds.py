"""Bounds on the error of a softmax weight under a contract: one function per theorem.

Symbols: s scores, M row maximum, Delta error of a score, alpha error of the logarithm of a weight, R rescalings one
weight can see. All arrays are [B, Hq, Sq, Sk] and 0 where a key is hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.attention.terms import BENDS, used
from attn_spec.bounds.forward.product_bounds import lowest_bits
from attn_spec.bounds.forward.score_bounds import row_shift, score_error, shift_error
from attn_spec.bounds.forward.sink_bounds import above_maximum, below_maximum, tiles_of
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import of_forward_pass
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import elementary_error, gamma, is_power_of
from attn_spec.contract.terms import count, guard, term, times

#: Distance of the largest weight's exponent from 0 by the rounding of a reference, natural units: whatever is
#: divided by the row sum is then far above what underflows.
FARTHEST_REFERENCE = 16.0


@dataclass(frozen=True, eq=False)
class LogWeightError:
    """Bounds on |log(w_hat / w)| of a weight w = exp(s - m), and what they were made of."""

    #: Bound on |log(w_hat / w)| of a weight that is rescaled whenever the reference moves.
    rescaled: np.ndarray
    #: Bound on |log(w_hat / w)| of a weight that is computed once, from the row's last reference.
    direct: np.ndarray
    #: Rescalings.
    R: np.ndarray
    #: Error of the score.
    delta: np.ndarray


def rescalings(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """R: how often one weight can be multiplied by a rescale factor other than exp(0).

    A weight is rescaled when the running maximum rises strictly. Each rise is owed to another key whose computed
    score exceeds the weight's own, so R is at most the number of such keys, for any order, tiling or tree of
    merges; and at most one less than the number of tiles. A reference that is no maximum does not move.
    """
    tiles = tiles_of(forward, contract) if contract.reference == "maximum" else 1
    if tiles == 1 or guard("rescale factors of 1", not contract.exp_of_zero_is_one, False):
        return np.full(forward.s.shape, float(tiles - 1))
    upper = np.where(
        forward.visible, forward.s + term("computed scores that rise where true ones do not", delta), -np.inf
    )
    lower = np.where(
        forward.visible, forward.s - term("computed scores that fall below the weight's own", delta), np.inf
    )
    others = _count_above(upper, lower) - (forward.visible & (upper > lower))
    return np.minimum(term("all rescalings", others), tiles - 1).astype(np.float64)


def _count_above(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """For each entry of ``lower``, how many entries of ``upper`` in its row exceed it."""
    n = upper.shape[-1]
    order = np.argsort(np.concatenate([upper, lower], axis=-1), axis=-1, kind="stable")
    not_above = np.empty(order.shape, dtype=np.int64)
    np.put_along_axis(not_above, order, np.cumsum(order < n, axis=-1), axis=-1)
    return n - not_above[..., n:]


@of_forward_pass
@np.errstate(all="ignore")
def log_weight_error(forward: Intermediates, contract: ResolvedContract) -> LogWeightError:
    """alpha with |log(w_hat / w)| <= alpha for every weight w = exp(s - m), m the kernel's own reference.

    The exponents of a weight and of its rescale factors are non-positive and sum to s - M, so rounding all those
    arguments together costs no more than rounding the one argument x = M - s (they telescope), whatever the tiling.
    With base 2 the arguments are products s c of scores with a rounded c, log2(e) or with the scale in it. c is one
    number, so its error scales x; the products' own, and those of differences that are multiplied last, cost
    6u x + u |s| + u max|s| with it: s c is rounded, and so is m_t c, of the reference m_t at which the weight is made.
    An offset b in the exponent, the logarithm of a scale of probabilities, makes the argument larger by b. It is added
    to the difference, which is rounded before, or to -m_t c, which is rounded once more and with it: u b and the larger
    of u x and u (max|s| + b).

    Merging normalized parts, o = sum_t e^(L_t - L) o_t, is merging (m_t, l_t, acc_t) with a factor common to all
    weights of part t: the error of its rounded L_t, and that of the exponential.
    """
    delta = score_error(forward, contract)
    softmax, work = contract.stages.softmax, contract.stages.score_accumulation
    distance = _distance(forward, contract, delta)
    alpha = (
        term("the score's error in a weight", delta)
        + np.where(
            _exact_differences(forward, contract, delta), 0.0, term("the difference of score and maximum", softmax.u)
        )
        * distance
    )
    if contract.base2:
        size = np.where(
            forward.visible,
            np.abs(forward.s) + term("base 2 of scores that are moved", row_shift(forward, contract)) + delta,
            0.0,
        )
        alpha = alpha + work.u * (
            count("base 2 at a distance", 6) * distance
            + term("base 2 of the score", size)
            + term("the base-2 maximum", size.max(axis=-1, keepdims=True, initial=0.0))
        )
        alpha = alpha + term("underflow of base 2", 2 * work.eta)
        if b := contract.exponent_offset:
            reference = work.u * (size.max(axis=-1, keepdims=True, initial=0.0) + b)
            moved = np.maximum(softmax.u * distance, reference) + softmax.u * b
            alpha = alpha + term("a scale of probabilities in the exponent", moved)
    if contract.lse_merges:
        alpha = alpha + times("further merges", contract.lse_merges) * (
            term("the log-sum-exps of parts", partial_lse_error(forward, contract))
            + term("the weights of parts", merge_weight_error(forward, contract))
        )
    R = rescalings(forward, contract, delta)
    one = exponential_error(contract)
    return LogWeightError(
        np.where(
            forward.visible,
            alpha + times("rescalings of a weight", count("a rescaled weight's own exponential", 1) + R) * one,
            0.0,
        ),
        np.where(forward.visible, alpha + term("the exponential of a weight that is computed once", one), 0.0),
        R,
        delta,
    )


@of_forward_pass
@np.errstate(all="ignore")
def reference_rounding(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound the distance of the largest weight's exponent from 0, or from the reference's own distance, [.., Sq, 1].

    With base 2 it may be one s c - fl(m c), of the same c: the rounding of m c stays. Unless the contract says that it
    may overflow, a kernel keeps it within FARTHEST_REFERENCE, as those do that round s c too. An offset b may be added
    to fl(m c) and round it once more.
    """
    if not contract.base2:
        return np.zeros((*forward.s.shape[:-1], 1))
    b = contract.exponent_offset
    rounded = term(
        "the reference's rounding in base 2",
        gamma((contract.stages.score_accumulation.u, 2 if b else 1)) * (_largest_score(forward, contract) + b),
    )
    may_overflow = guard("a rounded reference that may overflow", contract.exponent == "base2_fused", False)
    return rounded if may_overflow else np.minimum(rounded, FARTHEST_REFERENCE)


def exponential_error(contract: ResolvedContract) -> float:
    """Largest error of the logarithm of one exponential: its own, and its rounding."""
    softmax = contract.stages.softmax
    return (
        term("underflow of an exponential", count("underflows of an exponential", 2) * softmax.eta)
        - term("the error of exp", math.log1p(-elementary_error(contract, "exp_error")))
        - term("the rounding of an exponential", math.log1p(-softmax.u))
    )


@np.errstate(all="ignore")
def row_sum_difference(forward: Intermediates, contract: ResolvedContract, log_errors: LogWeightError) -> np.ndarray:
    """|log| of a weight as the row sum has it over the same weight as the product has it, [.., Sq, Sk].

    They are one number, unless the row sum is found tile by tile and the weights are computed again from the last
    reference, of the same scores: then they share Delta alone. The second pass may be compiled another way, so that
    not even one reference for all tiles makes them equal.
    """
    if contract.normalize != "before_product" or (
        guard("weights computed again from one reference", contract.kv_tile is None, not log_errors.R.any())
    ):
        return np.zeros(forward.s.shape)
    return np.where(
        forward.visible,
        term(
            "row sum and weights computed apart",
            term("the row sum's weights, computed apart", log_errors.rescaled - log_errors.delta)
            + term("the output's weights, computed apart", log_errors.direct - log_errors.delta),
        ),
        0.0,
    )


@np.errstate(all="ignore")
def weight_error_by_lse(forward: Intermediates, contract: ResolvedContract, E_L: np.ndarray) -> np.ndarray:
    """|log| of a computed exp(s - LSE) over e^(s - L) e^(L - LSE): all errors but that of the LSE, [.., Sq, Sk].

    ``E_L`` [.., Sq, 1] bounds that.
    """
    return term("the score in exp(s - LSE)", score_error(forward, contract)) + exponent_by_lse_error(
        forward, contract, E_L
    )


@np.errstate(all="ignore")
def exponent_by_lse_error(forward: Intermediates, contract: ResolvedContract, E_L: np.ndarray) -> np.ndarray:
    """|log| of a computed exp(s - LSE) over that of the computed s and LSE, which is off by ``E_L``, [.., Sq, Sk]."""
    delta, softmax, work = score_error(forward, contract), contract.stages.softmax, contract.stages.score_accumulation
    L, shift = np.where(np.isfinite(forward.L), forward.L, 0.0), row_shift(forward, contract)
    alpha = term(
        "the difference of score and LSE",
        softmax.u
        * (
            np.abs(forward.s - L)
            + term("the score's error in the difference of score and LSE", delta)
            + term("the LSE's error in the difference of score and LSE", E_L)
        ),
    ) + term("the exponential of exp(s - LSE)", exponential_error(contract))
    if contract.base2:
        alpha = (
            alpha
            + count("base 2 of the backward weights", 8)
            * work.u
            * (
                term("base 2 of the score in the backward weights", np.abs(forward.s) + delta)
                + term("base 2 of the LSE in the backward weights", np.abs(L))
                + term(
                    "base 2 of the LSE in the backward weights",
                    term("base 2 of scores and LSE that are moved", 2 * shift),
                )
                + term("base 2 of the LSE in the backward weights", E_L)
            )
            + term("underflow of base 2 in the backward weights", 2 * work.eta)
        )
    alpha = alpha + term("an LSE that is moved back", shift_error(forward, contract, E_L))
    return np.where(forward.visible, alpha, 0.0)


@of_forward_pass
@np.errstate(all="ignore")
def partial_lse_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of the log-sum-exp L_t of any part of a row, given its row sum l_t and reference m_t, [.., Sq, 1].

    e^-off <= l_t < n e^(slack + off + 1) whatever the part, so |log l_t| < log n + slack + off + 1 and |L_t| is at most
    that much more than the largest score; off is :func:`reference_rounding`. A reference that is no maximum of the part
    may be farther from it, by two scores at most.
    One logarithm, one sum, one store; with base 2 their sum or both are multiplied by ln 2. An offset in the exponents
    moves the reference as far, and is subtracted.
    """
    largest = _largest_score(forward, contract)
    log_sum = (
        np.log(np.maximum(forward.keys, 1))
        + _off_maximum(forward, contract)
        + term("a reference far from the maximum of a part", contract.reference_distance + contract.exponent_offset)
        + term("the reference's rounding in a part's row sum", reference_rounding(forward, contract))
        + 1
    )
    if contract.reference != "maximum":
        log_sum = log_sum + term("a reference that is no maximum of a part", 2 * largest)
    size = term("the largest score in a part's log-sum-exp", largest) + term(
        "the row sum in a part's log-sum-exp", log_sum
    )
    work, softmax = contract.stages.score_accumulation, contract.stages.softmax
    relative = gamma(
        (softmax.u, count("roundings of a part's log-sum-exp", 3 if contract.exponent_offset else 2)),
        (contract.stages.lse.of(softmax.format).u, count("storing a part's log-sum-exp", 1)),
        (work.u, count("base 2 of a part's log-sum-exp", 4) if contract.base2 else 0),
    )
    # A product with ln 2 in a coarser format than that of scores takes one of those two roundings.
    coarser = contract.base2 and softmax.u > work.u
    logarithm = term("the rounding of a part's logarithm in base 2", softmax.u * log_sum) if coarser else 0.0
    return (
        term("the logarithm of a part's row sum", elementary_error(contract, "log_error") * (1 + log_sum))
        + logarithm
        + relative * size
    )


@of_forward_pass
@np.errstate(all="ignore")
def merge_weight_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Error of the logarithm of one computed e^(L_t - L), given L_t and L, for the part t of each key.

    L is the largest L_t, or their own log-sum-exp, so the argument is at most M - s + 2 log n in size. As computed it
    is off by the errors of both.
    """
    delta = score_error(forward, contract)
    argument = (
        _distance(forward, contract, delta)
        + term("the number of keys in a part's argument", 2 * np.log(np.maximum(forward.keys, 1)))
        + count("the number of keys in a part's argument", 1)
        + term("errors of log-sum-exps in a part's argument", 2 * partial_lse_error(forward, contract))
    )
    error = term("the argument of a part's weight", contract.stages.softmax.u * argument) + term(
        "the exponential of a part's weight", exponential_error(contract)
    )
    if contract.base2:  # a difference of natural logarithms is multiplied by a rounded log2(e)
        error = error + count("base 2 of a part's weight", 2) * contract.stages.score_accumulation.u * argument
    return np.where(forward.visible, error, 0.0)


def _distance(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """Largest size of the arguments that make up one weight: M - s as computed, and how far the reference is off."""
    beside = np.zeros(forward.s.shape)
    if forward.has_sink:
        beside[..., -1:] = _off_maximum(forward, contract)
    off = (
        count("the slack in a distance", 2) * contract.reference_slack
        if contract.reference == "maximum"
        else term("the range in a distance", contract.reference_range)
    )
    return (
        forward.M
        - forward.s
        + term("the error of a score in its distance", delta)
        + term("the error of the maximum in a distance", delta.max(axis=-1, keepdims=True, initial=0.0))
        + beside
        + off
    )


def _off_maximum(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Bound the distance of a reference to the keys alone from the maximum with the sink, [.., Sq, 1]."""
    below, above = below_maximum(forward, contract), above_maximum(forward, contract)
    return term("a reference that leaves out the sink", np.maximum(below, above))


def _largest_score(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Largest |s| + Delta of each row, [.., Sq, 1]."""
    size = np.where(
        forward.visible, np.abs(forward.s) + term("the largest score that is moved", row_shift(forward, contract)), 0.0
    ) + term("the error of the largest score", score_error(forward, contract))
    return size.max(axis=-1, keepdims=True, initial=0.0)


def _exact_differences(forward: Intermediates, contract: ResolvedContract, delta: np.ndarray) -> np.ndarray:
    """Rows whose scores are exact and whose differences s - M fit the softmax's format on the scores' grid."""
    sigma = abs(forward.problem.scale_value)
    plain = (
        guard("exact differences have no bias", not forward.problem.has_addends, True)
        and guard("exact differences have no sink", not forward.has_sink, True)
        and guard("exact differences have no softcap", not used(forward.problem, BENDS), True)
        and guard("exact differences are to the maximum", contract.reference_distance == 0, True)
        # Multiplied by log2(e), scores leave their grid.
        and guard("exact differences are natural", not contract.base2, True)
        and guard("exact differences have a scale of a power of 2", is_power_of(2, sigma), True)
    )
    if not plain or not forward.s.size:
        return np.zeros((*forward.s.shape[:-1], 1), dtype=bool)
    low_q, low_k = lowest_bits(forward)
    low = low_q[..., None] + math.log2(sigma) + low_k.min(-1)[..., None, None]
    reach = np.where(forward.visible, forward.M - forward.s, 0.0).max(axis=-1, keepdims=True)
    fits = np.log2(reach) <= contract.stages.softmax.format.precision + np.minimum(low, 4000.0) - 1e-9
    return guard("exact differences fit the format", fits, True) & guard(
        "exact differences are of exact scores", delta.max(axis=-1, keepdims=True) == 0, True
    )

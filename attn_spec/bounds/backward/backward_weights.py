"""Bounds on the errors of the weights that the backward pass computes or reads, under a contract."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.forward.row_sum_bounds import (
    WeightError,
    deviations,
    divided,
    lse_error,
    normalization_error,
    rounding_by_lse,
    row_sum_error,
)
from attn_spec.bounds.forward.score_bounds import narrows_scores
from attn_spec.bounds.forward.weight_bounds import log_weight_error, weight_error_by_lse
from attn_spec.bounds.forward.weighted_means import shares
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import probability_cast
from attn_spec.contract.terms import count, guard, term


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


def is_stored(contract: ResolvedContract) -> bool:
    """Return whether the backward pass reads the weights that the forward pass stored, divided by their row sum."""
    return contract.backward_weights == "stored" and contract.normalize != "by_lse"


def backward_weights(
    forward: Intermediates, contract: ResolvedContract, weights: WeightError, *, cast: bool
) -> BackwardWeights:
    """Errors of the weights, with or without the cast that precedes a product.

    Recomputed, exp(s - LSE) is not renormalized, so the error of the LSE does not cancel. Stored, the weight carries
    the relative error of the row sum it was divided by, and two roundings of the division. Whatever the errors of
    scores, no weight is more than all of them together: it is the share of one of the weights that the forward pass has
    added up, but for the roundings of the row sum and the division, or of the LSE and of a score computed again.
    """
    softmax, narrow = contract.stages.softmax, probability_cast(contract)
    if is_stored(contract):
        log_errors = log_weight_error(forward, contract)
        own = term(
            "a weight stored, its error",
            log_errors.direct if contract.normalize == "before_product" else log_errors.rescaled,
        )
        own = own - count("roundings of a stored weight's division", 2) * math.log1p(-softmax.u)
        common = term("the row sum of stored weights", row_sum_error(forward, weights)[..., None])
        eta = count("underflows of a stored weight's division", 4) * softmax.eta + term(
            "underflow of a stored weight", weights.eta * np.fmin(weights.inverse_sum, divided(forward, contract))
        )
        off = np.where(
            forward.visible,
            term("the row sum beside the share of a stored weight", normalization_error(forward, contract, weights))
            - count("roundings of a division beside the share of a stored weight", 2) * math.log1p(-softmax.u),
            0.0,
        )
    else:
        common = term("the LSE of recomputed weights", lse_error(forward, contract, weights)[..., None])
        own = term("recomputed weights", weight_error_by_lse(forward, contract, common))
        eta = np.full(forward.L.shape, count("underflows of recomputed weights", 4) * softmax.eta)
        again = contract.backward_weights == "recomputed" or not narrows_scores(contract)
        again = guard("scores that are computed again beside the share of a weight", again, False)
        off = term(
            "roundings by the LSE beside the share of a weight",
            rounding_by_lse(forward, contract, weights, again=again),
        )
    if cast:
        moved = -math.log1p(-narrow.u)
        own = own + term("the cast of weights before the product with dO", moved)
        off = off + term("the cast beside the share of a weight", moved)
        eta = eta + term("underflow of the cast of weights before the product with dO", narrow.eta)
    own = np.where(forward.visible, own, 0.0)
    together = own + term("own and common errors of P together", common)
    PA, P1A = deviations(
        forward,
        np.where(term("what far weights have in common with others", forward.seen, forward.visible), together, 0.0),
    )
    least, most = shares(weights.low, weights.high)
    least = least * np.exp(term("roundings beside the least share of a weight", -off))
    most = most * np.exp(term("roundings beside the largest share of a weight", np.minimum(off, 700.0)))
    evaluated = (weights.widen - 1 + 2.0**-48) * forward.P
    change = np.fmin(
        PA,
        np.maximum(
            term("the largest share of a weight in its change", most - forward.P),
            term("the least share of a weight in its change", forward.P - least),
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

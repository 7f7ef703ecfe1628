"""Bounds on the error of delta under a contract: D = rowsum(dO O), or rowsum(P dP), less dL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_spec.bounds.backward.backward_weights import BackwardWeights, is_stored
from attn_spec.bounds.backward.weight_gradient_bounds import (
    division,
    division_underflow,
)
from attn_spec.bounds.forward import value_spread
from attn_spec.bounds.forward.bounds import exact_output_error
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.forward.output_terms import OutputTerms, output_terms
from attn_spec.bounds.forward.row_sum_bounds import (
    WeightError,
    deviations,
    divided,
)
from attn_spec.bounds.forward.weighted_means import mean_error
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import value_error, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import probability_cast
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import count, term, times


@dataclass(frozen=True)
class Setting:
    """Inputs that all theorems about a row of score gradients share."""

    forward: Intermediates
    #: Intermediates of weights and outputs, which leave far keys out.
    near: Intermediates
    grad: GradientIntermediates
    contract: ResolvedContract
    forward_weights: WeightError
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
        return output_terms(self.near, self.contract, self.forward_weights, self.near.O, 0.0)


def delta_error(row: Setting, E_dP: np.ndarray) -> np.ndarray:
    """Error of D, less dL, [.., Sq, 1], which 1 - p may multiply; ``E_dP`` is that of dP."""
    forward, grad, work = row.forward, row.grad, row.contract.stages.score_accumulation
    E_D = _delta_of_output(row) if row.contract.delta == "output" else _delta_of_probabilities(row, E_dP)
    E_D = (
        E_D
        + term("the division of delta by l", gamma(*division(row.near, row.contract)) * (np.abs(grad.D) + E_D))
        + term("underflow of delta's division by l", division_underflow(row.near, row.contract))
    )
    if grad.lse_cotangent is not None:
        E_D = (
            E_D
            + term("the sum with dL", work.u * (np.abs(grad.D) + E_D + np.abs(grad.lse_cotangent)[..., None]))
            + term(
                "underflow of the sum with dL",
                times("underflow of the sum with dL, raised", forward.largest_factor) * work.eta,
            )
        )
    if late := late_roundings(forward, row.contract):
        dL = 0.0 if grad.lse_cotangent is None else np.abs(grad.lse_cotangent)[..., None]
        E_D = E_D + gamma(*late) * (term("delta times 1 - p", np.abs(grad.D) + E_D) + term("dL times 1 - p", dL))
    return E_D if forward.c is None else E_D + term("underflow of delta times 1 - p", forward.largest_factor * work.eta)


def _delta_of_output(row: Setting) -> np.ndarray:
    """Error of rowsum(dO O): that of the stored output, and of the sum.

    Of the output's error the part sum_j P a_j (v_j - o) meets dO as sum_j P a_j (dP_j - D), whatever the columns; where
    values have errors f_j, o is sum P v^, and both differences are off by these.
    """
    near, contract, work = row.near, row.contract, row.contract.stages.score_accumulation
    size, Dv = np.abs(row.grad.cotangent), near.v.shape[-1]
    E_O = exact_output_error(near, contract)
    stored = (size * E_O).sum(-1, keepdims=True)
    if contract.normalize != "by_lse":
        off = value_spread.slack(near, contract)
        around = term(
            "errors of values around delta", value_spread.around(near, contract, row.around, size), row.around
        )
        of_output = row.of_output
        last = (
            size
            * (
                term("the last roundings of the output in delta", of_output.finish * (np.abs(near.O) + E_O))
                + term("the last underflow of the output in delta", of_output.tiny)
            )
        ).sum(-1, keepdims=True)
        through = (
            term("the weights' part of delta", (row.forward_weights.PA * around).sum(-1, keepdims=True))
            + term("the other terms of delta", (size * of_output.rest).sum(-1, keepdims=True))
        ) / of_output.kappa
        through = np.where(
            of_output.kappa > 0,
            through
            + term("errors of values in delta", (size * off).sum(-1, keepdims=True))
            + term("the last roundings of an output of equal values in delta", last),
            np.inf,
        )
        stored = np.fmin(
            stored,
            np.fmin(
                through,
                term("a mean of products in delta", _mean_of_products(row, of_output, size))
                + term("the last roundings of the output with a mean of products", last),
            ),
        )
    if (of_g := row.grad.cotangent_error) is not None:
        off = of_g * (np.abs(near.O) + term("errors of cotangents and outputs in delta", E_O))
        stored = stored + term("errors of cotangents in delta", off.sum(-1, keepdims=True))
        size = size + term("errors of cotangents in the size of delta", of_g)
    additions = min(Dv, contract.summation_depth or Dv) - 1 + count("one rounding of delta's sum", 1)
    summed = gamma((work.u, additions)) * (size * (np.abs(near.O) + E_O)).sum(-1, keepdims=True)
    return (
        term("the output in delta", stored)
        + term("delta's sum", summed)
        + term("underflow of delta's sum", 2 * Dv * work.eta)
    )


def _mean_of_products(row: Setting, of_output: OutputTerms, size: np.ndarray) -> np.ndarray:
    """Return a bound on the distance of any weighted mean of a row's dP_j from D, [.., Sq, 1].

    They are values of one column, as those of :func:`output_bounds.output_error`.
    """
    near, contract = row.near, row.contract
    of_values = near.dropped(size @ value_sizes(near, contract).swapaxes(-1, -2))
    given = value_error(near, contract)
    moved = 0.0 if given is None else near.dropped(size @ given.swapaxes(-1, -2))
    r = (
        term("values that are off in a mean of products", moved)
        + term("roundings of the numerator in a mean of products", of_output.B * of_values)
        + term("the row sum in a mean of products", of_output.C * (size * np.abs(near.O)).sum(-1, keepdims=True))
        + term("the evaluation of dP - D beside a mean of products", row.slack)
    )
    least = 1 - of_output.C.max(axis=-1, keepdims=True, initial=0.0)
    found = mean_error(row.forward_weights, row.grad.dP - row.grad.D, r) / times(
        "the row sum of a mean of products", least
    )
    return np.where(least > 0.75, found, np.inf) + term(
        "underflow of a mean of products", (size * of_output.outside_hull).sum(-1, keepdims=True)
    )


def _delta_of_probabilities(row: Setting, E_dP: np.ndarray) -> np.ndarray:
    """Error of rowsum(P dP), whose weights add up to 1 but for a defect N, with dP_j = D + (dP_j - D).

    sum P (1 + a)(1 + g)(dP + e) - D = N D + (1 + g)(sum P a (dP - D) + sum P (1 + a) e), since sum P (dP - D) = 0.
    The products may be those that P dP - P D is formed from, as they are stored.
    """
    forward, grad, contract, forward_weights, weights = (
        row.forward,
        row.grad,
        row.contract,
        row.forward_weights,
        row.weights,
    )
    work, n = contract.stages.score_accumulation, forward.keys - 1.0 + count("roundings of delta's sum over keys", 2)
    PA, P1A = deviations(row.near, weights.own)
    G = np.expm1(np.minimum(weights.common, 700.0))
    if is_stored(contract):
        cast = probability_cast(contract).u if contract.score_gradients_of == "cast" else 0.0
        N = (
            1
            + gamma(
                (contract.stages.softmax.u, count("roundings of stored weights in delta", 2)),
                (cast, count("the cast of stored weights in delta", 1)),
            )
        ) * np.exp(term("a defect of stored weights", forward_weights.defect)) - 1
    else:
        N = (
            times("the LSE in the defect of recomputed weights", 1 + G)
            * times("the weights in their defect", 1 + PA.sum(-1, keepdims=True))
            - 1
        )
    N = N + term(
        "underflow in the defect of weights",
        forward.keys
        * (weights.eta + np.fmin(forward_weights.inverse_sum, divided(forward, contract)) * forward_weights.eta_sum),
    )
    sizes = np.where(forward.visible, np.abs(grad.dP) + E_dP, 0.0)
    apart = term("the defect of weights in delta", N * np.abs(grad.D)) + (1 + G) * (
        term("the weights in delta", (PA * row.around).sum(-1, keepdims=True))
        + term("dP in delta", (P1A * E_dP).sum(-1, keepdims=True))
    )
    together = (
        term("the change of weights in delta", weights.change * np.abs(grad.dP))
        + term("dP with the largest weights in delta", weights.most * E_dP)
    ).sum(-1, keepdims=True)
    factor = np.exp(np.minimum(weights.off, 700.0))
    mean = mean_error(
        forward_weights,
        grad.dP - grad.D,
        term("roundings of weights in a mean of products", (factor - 1) * np.abs(grad.dP))
        + term("dP in a mean of products", factor * E_dP)
        + term("the evaluation of dP - D beside a mean under stored weights", row.slack),
    )
    depth = np.minimum(n, contract.summation_depth or np.inf)
    stored = contract.stages.stored_scores.of(work.format)
    summed = (
        gamma((work.u, depth), (stored.u, count("the stored products of delta", 1))) * weights.most
        + term("underflow of weights in delta's sum", weights.eta)
    ) * sizes
    tiny = (
        n
        * times("underflow of delta's sum over keys, raised", forward.largest_factor)
        * (
            term("underflow of delta's sum over keys", 2 * work.eta)
            + term("underflow of the stored products of delta", contract.stages.stored_scores.eta)
        )
    )
    return np.fmin(np.fmin(apart, together), mean) + term("delta's sum over keys", summed.sum(-1, keepdims=True)) + tiny

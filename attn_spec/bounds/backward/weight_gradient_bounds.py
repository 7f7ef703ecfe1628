"""Bounds on the error of dP = dO v^T, the gradient of the weights, and the rounding of dO where it enters products.

A framework that differentiates p.to(dtype) @ v leaves dP in that dtype. Where weights are divided by their row sum l
after that product, out = (p v) / l, it multiplies v^T and p^T by dO / l, which is rounded to the dtype as well. What is
said of dO here is said of l times that.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attn_spec.bounds.forward.dropout_bounds import factor_roundings, factor_underflow
from attn_spec.bounds.forward.row_sum_bounds import weight_error
from attn_spec.bounds.forward.sink_bounds import above_maximum, below_maximum
from attn_spec.bounds.forward.weight_bounds import exponential_error, log_weight_error, reference_rounding
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import product_of_operands_error, value_format, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    Factors,
    number_of_products,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.stages import Rounding, contains
from attn_spec.contract.terms import count, standing, term, times
from attn_spec.numbers.formats import DTYPES, Format


def divides_cotangent(contract: ResolvedContract) -> bool:
    """Return whether products read dO / l in the format of dP, as a framework that differentiates makes them.

    It keeps dP in the format of the weights that met v, which is told by a narrow dP, or where these weights are
    stored. tf32 is no format that weights are stored in.
    """
    if contract.normalize not in ("after_product", "every_tile"):
        return False
    dP = contract.stages.weight_gradients.format
    in_one = contract.probabilities not in DTYPES or contains(contract.stages.probabilities.format, dP)
    return not contains(dP, contract.stages.gradient_accumulation.format) or (
        contract.backward_weights == "stored" and in_one
    )


def cotangent_format(contract: ResolvedContract) -> Format:
    """Return the format of dO, or dO / l, when it enters its products."""
    return (contract.stages.weight_gradients if divides_cotangent(contract) else contract.stages.output).format


def cotangent_entry(contract: ResolvedContract) -> Rounding:
    """Return the rounding of dO, or dO / l, on entry; :func:`cotangent_entering` covers the underflow of dO / l."""
    found = rounding_on_entry(contract, cotangent_format(contract))
    return replace(found, eta=0.0) if divides_cotangent(contract) else found


@np.errstate(all="ignore")
def division(forward: Intermediates, contract: ResolvedContract) -> Factors:
    """Return the roundings of dO / l, or D / l, before its cast: l, the quotient, rescale factors, merge weights."""
    if not divides_cotangent(contract):
        return ()
    R = log_weight_error(forward, contract).R.max(axis=-1, keepdims=True, initial=0.0)
    return (
        (
            contract.stages.softmax.u,
            count("roundings of the quotient dO / l", 2)
            + term("rescale factors in dO / l", R)
            + term("merges in dO / l", 4 * contract.lse_merges),
        ),
    )


@np.errstate(all="ignore")
def cotangent_entering(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract
) -> tuple[np.ndarray, np.ndarray | None]:
    """|dO| of a head where it meets v and the weights, [.., Sq, Dv], at most, and its error there; None: it has none.

    ``forward`` leaves far keys out. What underflows in dO / l is multiplied by weights that are l times as large.
    """
    size, error = np.abs(grad.cotangent), grad.cotangent_error
    if error is not None:
        size = size + term("errors of cotangents in their sizes", error)
    if divides_cotangent(contract):
        cast, enters = (
            contract.stages.weight_gradients.of(contract.stages.softmax.format),
            rounding_on_entry(contract, cotangent_format(contract)),
        )
        lost = term("underflow of dO / l", division_underflow(forward, contract)) + _largest_row_sum(
            forward, contract
        ) * (term("underflow of the cast of dO / l", cast.eta) + term("underflow of dO / l on entry", enters.eta))
        own = (
            gamma(
                *term("roundings of dO / l", division(forward, contract), ()), (cast.u, count("the cast of dO / l", 1))
            )
            * size
            + lost
        )
        size, error = size + term("roundings of dO / l in its size", own), own if error is None else error + own
    return size, error


def division_underflow(forward: Intermediates, contract: ResolvedContract) -> np.ndarray | float:
    """Return the underflow of dO / l, or of D / l, times l, [.., Sq, 1]."""
    return term(
        "underflow of D / l",
        times("underflow of D / l, raised", forward.largest_factor)
        * times("what underflows in dO / l, times l", _largest_row_sum(forward, contract))
        * count("underflows of dO / l", 2)
        * contract.stages.softmax.eta
        if divides_cotangent(contract)
        else 0.0,
    )


def _largest_row_sum(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest row sum relative to the kernel's own reference, [.., Sq, 1]."""
    top = contract.reference_distance + reference_rounding(forward, contract)
    top = top + term("a sink above the reference in the largest row sum", below_maximum(forward, contract))
    delta = log_weight_error(forward, contract).delta.max(axis=-1, keepdims=True, initial=0.0)
    of_sum = np.where(np.isfinite(forward.L), forward.L - forward.M, 0.0) + term(
        "errors of scores in the largest row sum", 2 * delta
    )
    errors = weight_error(forward, contract)
    rounded = errors.beside_scores.max(axis=-1, keepdims=True, initial=0.0)
    return (
        times("additions in the largest row sum", 1 + errors.C.max(axis=-1, keepdims=True, initial=0.0))
        * times("roundings of weights in the largest row sum", np.exp(np.minimum(rounded, 700.0)))
        * times(
            "what underflows in dO / l meets weights that are l times as large",
            np.minimum(forward.keys, np.exp(np.minimum(of_sum, 700.0))),
        )
        * times("the reference in the largest row sum", np.exp(np.minimum(top, 700.0)))
    )


def largest_quotient(forward: Intermediates, contract: ResolvedContract) -> np.ndarray | float:
    """1 / l at most, [.., Sq, 1]: l is at least its largest term. 1 where the products have dO itself."""
    return largest_weight(forward, contract) if divides_cotangent(contract) else 1.0


def largest_weight(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """Return the largest weight before it is divided by l, [.., Sq, 1]."""
    above = np.exp(
        contract.reference_distance
        + reference_rounding(forward, contract)
        + above_maximum(forward, contract)
        + 2 * exponential_error(contract)
    )
    return times("a weight that is above its row sum", above)


@np.errstate(all="ignore")
def weight_gradient_error(
    forward: Intermediates, near: Intermediates, grad: GradientIntermediates, contract: ResolvedContract
) -> np.ndarray:
    """Error of dP = c dO v^T, [.., Sq, Sk]; ``near`` leaves far keys out."""
    form, Dv = (
        term("the format of values in dP", value_format(forward, contract), contract.stages.multiplicands.format),
        forward.v.shape[-1],
    )
    of_g, of_v = cotangent_entry(contract), rounding_on_entry(contract, form)
    stored = contract.stages.weight_gradients.of(contract.stages.gradient_accumulation.format)
    size_g, given_g = cotangent_entering(near, grad, contract)
    size_v = term("errors of values in their sizes in dP", value_sizes(forward, contract), forward.v_size)
    stages = standing(
        ("1 / (1 - p) of dP in the format of the softmax", "softmax"),
        ("1 / (1 - p) of dP in the format of stored scores", "stored_scores"),
        ("1 / (1 - p) in the format of dP", "weight_gradients"),
    )
    factor = factor_roundings(forward, contract, *stages)
    roundings = (
        *roundings_of_sum(contract, "gradient_accumulation", Dv, blocks=math.ceil(Dv / contract.matrix_block)),
        *term("the product of dP with 1 / (1 - p)", factor, ()),
    )
    relative = gamma(
        (of_g.u, count("entry of cotangents to dP", 1)),
        (of_v.u, count("entry of values to dP", 1)),
        (skipped_pieces(contract, cotangent_format(contract), form), count("pieces left out of dP", 1)),
        *term("sums of dP", roundings, ()),
    )
    off_v = of_v.eta + term(
        "underflow of values times 1 / (1 - p) in dP", factor_underflow(forward, contract, "softmax")
    )
    entering = term("cotangents that meet underflowing values", off_v * size_g.sum(-1)[..., :, None]) + term(
        "values that meet underflowing cotangents", of_g.eta * size_v.sum(-1)[..., None, :]
    )
    raised = _largest_row_sum(near, contract) if divides_cotangent(contract) else 1.0
    underflow = term(
        "underflow of dP's sums",
        count("underflow of both products and sums of dP", 2)
        * times("underflow of dP's sums times l", raised)
        * number_of_products(contract, Dv)
        * sum_underflow(contract, "gradient_accumulation"),
    ) + term("underflow on entry to dP", entering)
    underflow = underflow + term("both factors of dP underflow", Dv * of_g.eta * off_v)
    given = product_of_operands_error(forward, grad, contract, given_g)
    E_dP = forward.dropped(
        term("errors of the factors of dP", given) + relative * (size_g @ size_v.swapaxes(-1, -2))
    ) + forward.raised(times("roundings make dP's underflow grow", 1 + relative) * underflow)
    lost = term(
        "underflow of storing dP, raised",
        times("underflow of dP that is multiplied by l, raised", forward.largest_factor)
        * times("underflow of dP that l multiplies", raised),
    ) + term("underflow of dP times 1 / (1 - p)", 1 if factor else 0)
    return (
        E_dP
        + term("storing dP", stored.u * (np.abs(grad.dP) + E_dP))
        + term("underflow of storing dP", stored.eta * lost)
    )

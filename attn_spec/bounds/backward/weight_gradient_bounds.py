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
from attn_spec.bounds.forward.weight_bounds import exponential_error, log_weight_error, reference_rounding
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.operand_bounds import product_of_operands_error, value_format, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    Factors,
    entry,
    left_out,
    sum_underflow,
    sums,
    terms,
)
from attn_spec.contract.roundoff import growth
from attn_spec.contract.stages import Rounding, contains
from attn_spec.contract.terms import count, standing, term, times
from attn_spec.numbers.formats import DTYPES, Format


def divides_cotangent(c: ResolvedContract) -> bool:
    """Return whether products read dO / l in the format of dP, as a framework that differentiates makes them.

    It keeps dP in the format of the weights that met v, which is told by a narrow dP, or where these weights are
    stored. tf32 is no format that weights are stored in.
    """
    if c.normalize not in ("after_product", "every_tile"):
        return False
    dP = c.stages.weight_gradients.format
    in_one = c.probabilities not in DTYPES or contains(c.stages.probabilities.format, dP)
    return not contains(dP, c.stages.gradient_accumulation.format) or (c.backward_weights == "stored" and in_one)


def cotangent_format(c: ResolvedContract) -> Format:
    """The format in which dO, or dO / l, comes to its products."""
    return (c.stages.weight_gradients if divides_cotangent(c) else c.stages.output).format


def cotangent_entry(c: ResolvedContract) -> Rounding:
    """Rounding of that on entry; what underflows in dO / l there is told by :func:`cotangent_entering`."""
    found = entry(c, cotangent_format(c))
    return replace(found, eta=0.0) if divides_cotangent(c) else found


@np.errstate(all="ignore")
def division(x: Intermediates, c: ResolvedContract) -> Factors:
    """Roundings of dO / l, or of D / l, before its cast: of l, the quotient, rescale factors and weights of merges."""
    if not divides_cotangent(c):
        return ()
    R = log_weight_error(x, c).R.max(axis=-1, keepdims=True, initial=0.0)
    return (
        (
            c.stages.softmax.u,
            count("roundings of the quotient dO / l", 2)
            + term("rescale factors in dO / l", R)
            + term("merges in dO / l", 4 * c.lse_merges),
        ),
    )


@np.errstate(all="ignore")
def cotangent_entering(
    x: Intermediates, g: GradientIntermediates, c: ResolvedContract
) -> tuple[np.ndarray, np.ndarray | None]:
    """|dO| of a head where it meets v and the weights, [.., Sq, Dv], at most, and its error there; None: it has none.

    ``x`` leaves far keys out. What underflows in dO / l is multiplied by weights that are l times as large.
    """
    size, error = np.abs(g.cotangent), g.cotangent_error
    if error is not None:
        size = size + term("errors of cotangents in their sizes", error)
    if divides_cotangent(c):
        cast, enters = c.stages.weight_gradients.of(c.stages.softmax.format), entry(c, cotangent_format(c))
        lost = term("underflow of dO / l", division_underflow(x, c)) + _largest_row_sum(x, c) * (
            term("underflow of the cast of dO / l", cast.eta) + term("underflow of dO / l on entry", enters.eta)
        )
        own = (
            growth(*term("roundings of dO / l", division(x, c), ()), (cast.u, count("the cast of dO / l", 1))) * size
            + lost
        )
        size, error = size + term("roundings of dO / l in its size", own), own if error is None else error + own
    return size, error


def division_underflow(x: Intermediates, c: ResolvedContract) -> np.ndarray | float:
    """Return the underflow of dO / l, or of D / l, times l, [.., Sq, 1]."""
    return term(
        "underflow of D / l",
        times("underflow of D / l, raised", x.largest_factor)
        * times("what underflows in dO / l, times l", _largest_row_sum(x, c))
        * count("underflows of dO / l", 2)
        * c.stages.softmax.eta
        if divides_cotangent(c)
        else 0.0,
    )


def _largest_row_sum(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """The largest row sum, relative to the kernel's own reference, [.., Sq, 1]: no weight is above the largest."""
    top = c.reference_distance + reference_rounding(x, c)
    delta = log_weight_error(x, c).delta.max(axis=-1, keepdims=True, initial=0.0)
    of_sum = np.where(np.isfinite(x.L), x.L - x.M, 0.0) + term("errors of scores in the largest row sum", 2 * delta)
    return (
        count("the factor 2 of the largest row sum", 2)
        * times(
            "what underflows in dO / l meets weights that are l times as large",
            np.minimum(x.keys, np.exp(np.minimum(of_sum, 700.0))),
        )
        * times("the reference in the largest row sum", np.exp(top))
    )


def largest_quotient(x: Intermediates, c: ResolvedContract) -> np.ndarray | float:
    """1 / l at most, [.., Sq, 1]: l is at least its largest term. 1 where the products have dO itself."""
    return largest_weight(x, c) if divides_cotangent(c) else 1.0


def largest_weight(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """The largest weight before it is divided by l, [.., Sq, 1]."""
    above = np.exp(c.reference_distance + reference_rounding(x, c) + 2 * exponential_error(c))
    return times("a weight that is above its row sum", above)


@np.errstate(all="ignore")
def weight_gradient_error(
    x: Intermediates, near: Intermediates, g: GradientIntermediates, c: ResolvedContract
) -> np.ndarray:
    """Error of dP = c dO v^T, [.., Sq, Sk]; ``near`` leaves far keys out."""
    form, Dv = term("the format of values in dP", value_format(x, c), c.stages.multiplicands.format), x.v.shape[-1]
    of_g, of_v = cotangent_entry(c), entry(c, form)
    stored = c.stages.weight_gradients.of(c.stages.gradient_accumulation.format)
    size_g, given_g = cotangent_entering(near, g, c)
    size_v = term("errors of values in their sizes in dP", value_sizes(x, c), x.v_size)
    stages = standing(
        ("1 / (1 - p) of dP in the format of the softmax", "softmax"),
        ("1 / (1 - p) of dP in the format of stored scores", "stored_scores"),
        ("1 / (1 - p) in the format of dP", "weight_gradients"),
    )
    factor = factor_roundings(x, c, *stages)
    roundings = (
        *sums(c, "gradient_accumulation", Dv, blocks=math.ceil(Dv / c.matrix_block)),
        *term("the product of dP with 1 / (1 - p)", factor, ()),
    )
    relative = growth(
        (of_g.u, count("entry of cotangents to dP", 1)),
        (of_v.u, count("entry of values to dP", 1)),
        (left_out(c, cotangent_format(c), form), count("pieces left out of dP", 1)),
        *term("sums of dP", roundings, ()),
    )
    off_v = of_v.eta + term("underflow of values times 1 / (1 - p) in dP", factor_underflow(x, c, "softmax"))
    entering = term("cotangents that meet underflowing values", off_v * size_g.sum(-1)[..., :, None]) + term(
        "values that meet underflowing cotangents", of_g.eta * size_v.sum(-1)[..., None, :]
    )
    raised = _largest_row_sum(near, c) if divides_cotangent(c) else 1.0
    underflow = term(
        "underflow of dP's sums",
        count("underflow of both products and sums of dP", 2)
        * times("underflow of dP's sums times l", raised)
        * terms(c, Dv)
        * sum_underflow(c, "gradient_accumulation"),
    ) + term("underflow on entry to dP", entering)
    underflow = underflow + term("both factors of dP underflow", Dv * of_g.eta * off_v)
    given = product_of_operands_error(x, g, c, given_g)
    dP = x.dropped(
        term("errors of the factors of dP", given)
        + relative * (size_g @ size_v.swapaxes(-1, -2))
        + times("roundings make dP's underflow grow", 1 + relative) * underflow
    )
    lost = term(
        "underflow of storing dP, raised",
        times("underflow of dP that is multiplied by l, raised", x.largest_factor)
        * times("underflow of dP that l multiplies", raised),
    ) + term("underflow of dP times 1 / (1 - p)", 1 if factor else 0)
    return dP + term("storing dP", stored.u * (np.abs(g.dP) + dP)) + term("underflow of storing dP", stored.eta * lost)

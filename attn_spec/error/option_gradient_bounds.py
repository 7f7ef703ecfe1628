"""How far the gradients of options may lie from the truth: of a bias, and of the parameters of a score."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.dropout_bounds import late_roundings
from attn_spec.error.gradient_key_sums import BiasSums
from attn_spec.error.gradient_sums import added_up, stored_sums, where_sums_fit
from attn_spec.error.intermediates import Intermediates
from attn_spec.error.roundoff import conversion, growth, rounding
from attn_spec.error.running_error import Approximation
from attn_spec.error.score_gradient_bounds import ScoreGradientError


def bias_error(x: Intermediates, c: ResolvedContract, sums: BiasSums, raised: float) -> np.ndarray:
    """dA summed over the broadcast axes of the bias, in any order; dropout raises a weight by ``raised`` at most."""
    accumulator, stored, n = rounding(c, "gradient_accumulation"), rounding(c, "stored_scores"), sums.n
    cast = conversion(c, "score_gradients", c.format("stored_scores"))
    stores, partial = stored_sums(c, n)
    narrow = conversion(c, "stored_scores", c.format("score_accumulation"))
    stored_as = ((cast.u, 1), (narrow.u, 1), *late_roundings(x, c))
    G = growth((accumulator.u, np.minimum(n, c.summation_depth or np.inf)), (partial.u, stores), *stored_as)
    tiny = n * (rounding(c, "score_gradients").eta + stored.eta + accumulator.eta + partial.eta) + stores * partial.eta
    return where_sums_fit(c, sums.total, sums.own + G * sums.total + 2 * tiny * raised)


def parameter_errors(b: ScoreGradientError, gradients: dict[str, Approximation]) -> dict[str, np.ndarray]:
    """Errors of the gradients of the score's parameters: summed over rows, and over the axes they were broadcast along.

    ``gradients`` are theirs per query head. The sums of all heads may be one, in any order. Where the score is no
    product of operands, each term may be that of a pair of them.
    """
    problem, lengths = b.x.problem, b.x.s.shape
    rows, errors = math.prod(lengths[2:]) if b.x.score.pairs else max(lengths[2:]), {}
    for name, of in gradients.items():
        axes = tuple(axis for axis in problem.broadcast_axes(name) if axis < 2)
        summed = of.changed(lambda part, axes=axes: part.sum(axis=axes, keepdims=True))
        terms = rows * math.prod(of.value.shape[axis] for axis in axes)
        errors[f"d{name}"] = added_up(summed, b.c, terms).error
    return errors

"""Bounds on what the scale of an output, and the cast to the dtype of the output, add to its error.

A kernel has the output y, off by E_o. It stores x = fl_f(clamp(y / d)) for the scale d, where f is the dtype of the
output, and x stands for d x. The quotient, or the product with a rounded 1 / d, is rounded in the arithmetic of the
last step: relative (1 + u)^2 - 1, absolute eta. For a power of 2 the quotient is exact but for underflow. With u_f and
eta_f of the cast,

    |d x - y| <= ((1 + u)^2 (1 + u_f) - 1) |y| + d ((1 + u_f) eta + eta_f)      while |y / d| is at most the largest X.

A cast that saturates is that of clamp(y / d), the nearest number of [-X, X]. No two numbers are farther apart after a
clamp than before it. So d clamp(y / d) is as near to d clamp(o / d) as y is to the true output o, and d clamp(o / d) is
max(|o| - d X, 0) from o. Numbers of [-X, X] are rounded to numbers of [-X, X].

Source of the formula: FP8 output of vLLM ``unified_attention``: acc / output_scale, clamped to the finite numbers.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.intermediates import Intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import is_power_of
from attn_spec.contract.stages import Rounding
from attn_spec.contract.terms import count, guard, term
from attn_spec.numbers.formats import FORMATS

#: Covers the float64 evaluation of what is subtracted from a bound.
DEFLATION = 1.0 - 2.0**-30
#: Precision of a scale, which is a number of float32, and of the float64 in which a stored output is multiplied by it.
SCALE, READING = FORMATS["float32"].precision, FORMATS["float64"]


def scaling(forward: Intermediates, contract: ResolvedContract) -> tuple[float, float]:
    """Return the factor for ``gamma`` of dividing an output by its scale, perhaps by a rounded reciprocal."""
    exact = is_power_of(2, forward.problem.output_unit)
    return _last_step(contract).u, count("the division by the scale of the output", 0 if exact else 2)


def reading(forward: Intermediates, contract: ResolvedContract) -> tuple[float, float]:
    """Return the factor for ``gamma`` of the judge's own product of a stored output with its scale, in float64.

    A stored number of p bits and a scale of 24 have a product of p + 24 bits.
    """
    exact = forward.problem.o_scale is None or contract.stages.output.format.precision + SCALE <= READING.precision
    return READING.unit_roundoff, count("the product of a stored output with its scale", 0 if exact else 1)


def scaled_underflow(forward: Intermediates, contract: ResolvedContract, cast: Rounding) -> float:
    """Return the absolute error of an output that its cast, and the division by its scale before it, make."""
    lost = term("underflow of the output divided by its scale", (1 + cast.u) * _last_step(contract).eta)
    divided = 0.0 if forward.problem.o_scale is None else lost
    return forward.problem.output_unit * (divided + term("underflow of the output's cast", cast.eta))


def saturation(forward: Intermediates, contract: ResolvedContract, size: np.ndarray) -> np.ndarray | float:
    """Return how far saturation takes true outputs of at most that ``size``, [.., Sq, Dv]; 0 without it."""
    if contract.output_overflow != "saturates":
        return 0.0
    most = forward.problem.output_unit * contract.stages.output.format.largest
    return term("saturation of the output", np.maximum(size - most, 0.0))


def output_fits(
    forward: Intermediates, contract: ResolvedContract, size: np.ndarray, allowed: np.ndarray, cast: Rounding
) -> np.ndarray:
    """Return the rows [.., Sq] whose outputs fit the formats that hold them, divided by the scale too.

    True outputs have that ``size``, and computed ones are ``allowed`` from them at most, [.., Sq, Dv]. Of that error
    the ``cast`` makes at least u_f |o|. It comes after the number that must not exceed the end of those that round to
    the largest: an output of amax / o_scale = 448 exactly is finite.
    """
    d = forward.problem.output_unit
    widest = (size + allowed).max(axis=-1, initial=0.0)
    before_cast = (size + allowed - cast.u * DEFLATION * size).max(axis=-1, initial=0.0)
    inside = widest <= contract.largest("softmax")
    if forward.problem.o_scale is not None:
        divides = contract.formats("softmax", "output_accumulation")
        inside &= guard(
            "outputs divided by their scale that overflow",
            widest <= d * contract.largest("softmax", "output_accumulation"),
            True,
        )
        inside &= guard(
            "a scale of the output, or its inverse, that is no normal number",
            all(
                2 * one.smallest_normal <= x < one.largest / 2 for one in divides for x in _constants(forward, contract)
            ),
            True,
        )
    if contract.output_overflow == "saturates":
        return inside
    return inside & (before_cast < d * contract.stages.output.format.rounds_to_largest)


def _constants(forward: Intermediates, contract: ResolvedContract) -> list[float]:
    """Return the ends of the constants that an output may be multiplied by: its scale, and quotients with it.

    A kernel may fold the inverse of the scale with a descale of values, or with that of the scale of probabilities.
    """
    d, c, of_values = forward.problem.output_unit, contract.probability_scale, forward.problem.v_descale
    found = [d, 1 / d, 1 / (c * d)]
    if of_values is not None:
        found += [x / (c * d) for x in (of_values.min(initial=1.0), of_values.max(initial=1.0))]
    return found


def _last_step(contract: ResolvedContract) -> Rounding:
    """Return the rounding of the division by the scale, of an output in the softmax's format or its accumulator's."""
    stages = contract.stages.softmax, contract.stages.output_accumulation
    return Rounding(max(one.u for one in stages), max(one.eta for one in stages))

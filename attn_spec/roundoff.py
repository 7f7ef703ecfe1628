"""Rounding of the stages of a contract: fl(x) = x(1 + e) + f with |e| <= u, |f| <= eta.

The standard model with underflow (Higham, *Accuracy and Stability of Numerical Algorithms*, section 2.2 and
problem 2.19). ``growth`` replaces gamma_n = nu/(1 - nu) by the exact product, so that no n u < 1 is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.contract import Contract
from attn_spec.formats import FORMATS, Format


@dataclass(frozen=True)
class Rounding:
    """Relative and absolute error of one rounding."""

    u: float
    eta: float


EXACT = Rounding(0.0, 0.0)


def growth(*factors: tuple[float, float | np.ndarray]) -> np.ndarray:
    """prod (1 + u)^n - 1 over pairs (u, n): n successive roundings of relative size u."""
    return np.expm1(sum((n * math.log1p(u) for u, n in factors if u), np.float64(0.0)))


def rounding(c: Contract, stage: str) -> Rounding:
    """The rounding of one result of a stage."""
    form = c.format(stage)
    directed = 2.0 if c.rounding == "toward_zero" else 1.0
    # Half of float64's smallest subnormal is not a float64; the whole of it is a bound as well.
    tiny = form.smallest_normal if _flushes(c, form) else form.smallest_subnormal / 2 or form.smallest_subnormal
    return Rounding(directed * form.unit_roundoff, directed * tiny)


def holds(form: Format, source: Format) -> bool:
    """Whether ``form`` has every number of ``source`` that does not overflow: as many bits, and as small ones."""
    return form.precision >= source.precision and form.emin <= source.emin


def conversion(c: Contract, stage: str, source: Format) -> Rounding:
    """The rounding of a number of format ``source`` to a stage's format: exact, but for flushing, if that is wider."""
    form = c.format(stage)
    if holds(form, source):
        return Rounding(0.0, form.smallest_normal if _flushes(c, form) else 0.0)
    return rounding(c, stage)


def elementary_error(c: Contract, name: str) -> float:
    """Error of an elementary function: ``exp_error``, ``log_error`` or ``tanh_error``, as a real number."""
    work = "float64" if c.format("score_accumulation").precision == FORMATS["float64"].precision else "float32"
    return getattr(c, name) * FORMATS[work].unit_roundoff


def multiplicand(c: Contract, dtype: str) -> Rounding:
    """Rounding of q, k and v on entry to a product."""
    return conversion(c, "multiplicands", FORMATS[dtype])


def probability_cast(c: Contract) -> Rounding:
    """Rounding of the probabilities from the softmax's format to their own, and on to the product's."""
    to_own = EXACT if holds(c.format("probabilities"), c.format("softmax")) else rounding(c, "probabilities")
    entry = conversion(c, "multiplicands", c.format("probabilities"))
    return Rounding(to_own.u + entry.u + to_own.u * entry.u, to_own.eta + entry.eta)


def casts_row_sum(c: Contract) -> bool:
    """Whether the row sum adds probabilities that the cast has changed."""
    return c.row_sum_of == "cast" and c.normalize == "after_product" and probability_cast(c).u > 0


def readings(c: Contract) -> tuple[Contract, ...]:
    """The definite contracts that ``row_sum_of="either"`` stands for; a kernel keeps to one of them."""
    if c.row_sum_of != "either":
        return (c,)
    choices = ("uncast", "cast") if probability_cast(c).u > 0 and c.normalize == "after_product" else ("uncast",)
    return tuple(replace(c, row_sum_of=choice) for choice in choices)


def gradient_readings(c: Contract) -> tuple[Contract, ...]:
    """The same for the backward pass, where ``backward_weights="either"`` leaves a choice as well.

    A kernel that may recompute its weights keeps the LSE for that in the format that accumulates scores.
    """
    if c.backward_weights != "either":
        return readings(c)
    stored, recomputed = ({"backward_weights": word} for word in ("stored", "recomputed"))
    recomputed["lse"] = c.score_accumulation
    return tuple(replace(reading, **choice) for reading in readings(c) for choice in (stored, recomputed))


def row_sum_entry(c: Contract) -> Rounding:
    """Rounding of one weight to the row sum's format: exact, but for flushing, unless that is narrower."""
    stages = ("softmax", "probabilities", "multiplicands") if casts_row_sum(c) else ("softmax",)
    return conversion(c, "row_sum", min((c.format(stage) for stage in stages), key=lambda form: form.precision))


def row_sum_store(c: Contract) -> float:
    """Relative error of keeping the finished row sum in the softmax's format."""
    return rounding(c, "softmax").u if c.format("softmax").precision < c.format("row_sum").precision else 0.0


def is_power_of(base: int, x: float) -> bool:
    """Whether x is an integer power of 2 or of 4."""
    significand, exponent = math.frexp(x)
    return significand == 0.5 and (exponent - 1) % {2: 1, 4: 2}[base] == 0


def _flushes(c: Contract, form: Format) -> bool:
    return c.subnormals == "flushed" and form.emin == FORMATS["float32"].emin

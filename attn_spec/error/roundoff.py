"""Rounding of the stages of a contract: fl(x) = x(1 + e) + f with |e| <= u, |f| <= eta.

The standard model with underflow (Higham, *Accuracy and Stability of Numerical Algorithms*, section 2.2 and
problem 2.19). ``growth`` replaces gamma_n = nu/(1 - nu) by the exact product, so that no n u < 1 is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.terms import guard, term, times
from attn_spec.numbers.formats import FORMATS, Format


@dataclass(frozen=True)
class Rounding:
    """Relative and absolute error of one rounding."""

    u: float
    eta: float


EXACT = Rounding(0.0, 0.0)


def growth(*factors: tuple[float, float | np.ndarray]) -> np.ndarray:
    """prod (1 + u)^n - 1 over pairs (u, n): n successive roundings of relative size u."""
    return np.expm1(sum((n * math.log1p(u) for u, n in factors if u), np.float64(0.0)))


def rounding(c: ResolvedContract, stage: str) -> Rounding:
    """The rounding of one result of a stage."""
    entering = stage == "multiplicands"
    form = c.format(stage)
    return _of_format(form, direction(c, stage), flushes=flushes(c, form, entering=entering))


def _of_format(form: Format, direction: str, *, flushes: bool) -> Rounding:
    """The rounding of a result to a format."""
    cuts = 2.0 if direction == "toward_zero" else 1.0
    # Half of float64's smallest subnormal is not a float64; the whole of it is a bound as well.
    flushed = guard("results that are flushed", flushes, False)
    tiny = form.smallest_normal if flushed else form.smallest_subnormal / 2 or form.smallest_subnormal
    return Rounding(
        times("bits that are cut, not rounded", cuts) * form.unit_roundoff,
        times("underflow of results that are cut", cuts) * term("all underflow", tiny),
    )


def direction(c: ResolvedContract, stage: str) -> str:
    """How a result of a stage is rounded, "nearest" or "toward_zero"; sums in matrix units are left to ``products``."""
    return term(
        "cutting on entry to a product",
        c.entry_rounding or c.rounding if stage == "multiplicands" else c.rounding,
        c.rounding,
    )


def flushes(c: ResolvedContract, form: Format, *, entering: bool = False) -> bool:
    """Whether a result below the smallest normal number of a format may become 0, also ``entering`` a product."""
    if form.name == "float16":
        return c.float16_subnormals == "flushed" or guard(
            "flushing on entry to a product", entering and c.float16_subnormals == "flushed_on_entry", False
        )
    return guard(
        "flushing of formats of float32's range",
        c.subnormals == "flushed" and form.emin == FORMATS["float32"].emin,
        False,
    )


def contains(form: Format, source: Format) -> bool:
    """Whether ``form`` has every number of ``source`` that does not overflow: as many bits, and as small ones."""
    return guard("formats of the same range and fewer bits", form.precision >= source.precision, True) and guard(
        "formats of as many bits and a smaller range", form.emin <= source.emin, True
    )


def conversion(c: ResolvedContract, stage: str, source: Format) -> Rounding:
    """The rounding of a number of format ``source`` to a stage's format: exact, but for flushing, if that is wider."""
    form = c.format(stage)
    if contains(form, source):
        return Rounding(
            0.0,
            term(
                "flushing on an exact conversion",
                form.smallest_normal if flushes(c, form, entering=stage == "multiplicands") else 0.0,
            ),
        )
    return rounding(c, stage)


def elementary_error(c: ResolvedContract, name: str) -> float:
    """Error of an elementary function, ``exp_error`` or another field of its kind, as a real number."""
    double = c.format("score_accumulation").precision == FORMATS["float64"].precision
    work = "float64" if guard("elementary functions of float32", double, True) else "float32"
    return getattr(c, name) * FORMATS[work].unit_roundoff


def row_sum_store(c: ResolvedContract) -> float:
    """Relative error of keeping the finished row sum in the softmax's format."""
    return term("the store of the row sum", conversion(c, "softmax", c.format("row_sum")).u)


def is_power_of(base: int, x: float) -> bool:
    """Whether x is an integer power of 2 or of 4."""
    significand, exponent = math.frexp(x)
    return significand == 0.5 and (exponent - 1) % {2: 1, 4: 2}[base] == 0

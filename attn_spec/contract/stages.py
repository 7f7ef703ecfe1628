"""The stages of a resolved contract: the format of the results of each, and how they are rounded to it.

The standard model with underflow: fl(x) = x(1 + e) + f with |e| <= u, |f| <= eta (Higham, *Accuracy and Stability of
Numerical Algorithms*, section 2.2 and problem 2.19).
"""

from __future__ import annotations

from dataclasses import dataclass

from attn_spec.contract.terms import guard, term, times
from attn_spec.numbers.formats import Format


@dataclass(frozen=True)
class Rounding:
    """Relative and absolute error of one rounding."""

    u: float
    eta: float


EXACT = Rounding(0.0, 0.0)


@dataclass(frozen=True)
class Stage(Rounding):
    """The rounding of one result of a stage, and the format that it is rounded to."""

    format: Format
    #: True if a result below the smallest normal number may become 0.
    flushes: bool

    def of(self, source: Format) -> Rounding:
        """Return the rounding of a number of format ``source``: exact, but for flushing, where this one is wider."""
        if not contains(self.format, source):
            return self
        return Rounding(0.0, term("flushing on an exact conversion", self.format.smallest_normal * self.flushes))


def stage(form: Format, direction: str, *, flushes: bool) -> Stage:
    """Return the stage whose results are rounded to ``form``, "nearest" or "toward_zero", and may be flushed."""
    cuts = 2.0 if direction == "toward_zero" else 1.0
    # Half of float64's smallest subnormal is not a float64; the whole of it is a bound as well.
    flushed = guard("results that are flushed", flushes, False)
    tiny = form.smallest_normal if flushed else form.smallest_subnormal / 2 or form.smallest_subnormal
    return Stage(
        times("bits that are cut, not rounded", cuts) * form.unit_roundoff,
        times("underflow of results that are cut", cuts) * term("all underflow", tiny),
        form,
        flushes,
    )


def contains(form: Format, source: Format) -> bool:
    """Return whether ``form`` has every number of ``source`` that does not overflow: as many bits, as small ones."""
    return guard("formats of the same range and fewer bits", form.precision >= source.precision, True) and guard(
        "formats of as many bits and a smaller range", form.smallest_subnormal <= source.smallest_subnormal, True
    )


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One for each stage of ``contract.STAGES``; that of products, and an inner accumulator, may be absent."""

    multiplicands: Stage
    products: Stage | None
    inner_accumulation: Stage | None
    score_accumulation: Stage
    stored_scores: Stage
    operands: Stage
    alibi_terms: Stage
    rotary_tables: Stage
    softmax: Stage
    row_sum: Stage
    probabilities: Stage
    output_accumulation: Stage
    output: Stage
    lse: Stage
    partial_outputs: Stage
    weight_gradients: Stage
    score_gradients: Stage
    gradient_accumulation: Stage
    partial_gradients: Stage
    gradients: Stage

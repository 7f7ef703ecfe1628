"""Weights in 8 bits: their format, and the factor that multiplies them before their cast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FLOATS_OF_8_BITS, FORMATS

from .instrument import Finding, outputs

#: Differences of two scores, exact in few bits, so far that light weights are subnormal numbers under each factor.
DIFFERENCES = np.arange(1, 97) / 4.0
#: True weights, relative to the largest.
EXACT = np.exp(-DIFFERENCES)
#: Size of the values, so large that the share of a light weight does not underflow, and the least share that counts.
LARGE, LEAST = 2.0**15, 2.0**-39
#: Factors in use, beside the largest number of each format: none, offsets of exponents, and the largest halved.
FACTORS = (1.0, 2.0**4, 2.0**7, 2.0**8, 224.0, 240.0, 448.0)
#: Largest number of weights so near to the middle of two numbers that the exponential decides their rounding.
MISSED = 2


def weights_in_eight_bits(subject: Subject) -> Finding | None:
    """Return the 8-bit format of weights, and their factor; None if no such cast explains most outputs.

    One key has the score 0 and the value 0, the other the score -d and a large value. The output is the share of the
    second, w / (1 + w): of weights that a cast has rounded, with the row sum before it or after. It is compared with
    each format and factor. What exceeds a format is not asked: no weight of these problems does.
    """
    n = len(DIFFERENCES)
    q, k, v = np.ones((n, 1, 1)), np.zeros((n, 2, 1)), np.zeros((n, 2, 1))
    k[:, 1, 0], v[:, 1, 0] = -DIFFERENCES, LARGE
    found = outputs(subject, q, k, v)[:, 0, 0] / LARGE
    room = 2.0**-7 * np.abs(found) + LEAST
    fitting = {
        (form, factor): max(int((np.abs(share - found) <= room).sum()) for share in _shares(form, factor))
        for form in FLOATS_OF_8_BITS
        for factor in dict.fromkeys((*FACTORS, FORMATS[form].largest))
        if factor <= FORMATS[form].largest
    }
    most = max(fitting.values())
    if most < n - MISSED:
        return None
    best = {
        f"{form} times {factor:g}": _grid(form, factor) for (form, factor), count in fitting.items() if count == most
    }
    evidence = f"{most} of {n} weights are as if so rounded: {', '.join(best)}"
    return Finding("weights in 8 bits", next(iter(best)) if len(set(best.values())) == 1 else None, evidence)


def _grid(form: str, factor: float) -> tuple[int, float]:
    """Return the number of bits, and the least weight, by which casts round weights alike, whatever their names are."""
    return FORMATS[form].precision, FORMATS[form].smallest_subnormal / factor


def _shares(form: str, factor: float) -> Iterator[np.ndarray]:
    """Yield the outputs of weights that are cast with a factor: not normalized, with either row sum, or normalized."""

    def cast(p: np.ndarray) -> np.ndarray:
        return bits.nearest(np.minimum(factor * p, FORMATS[form].largest), form) / factor

    w, first = cast(EXACT), cast(np.ones(1))
    yield w / (1 + EXACT)
    yield w / (first + w)
    yield cast(EXACT / (1 + EXACT))

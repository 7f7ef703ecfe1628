"""Precision of the weights in p.v, and their rounding: an experiment with a product that nearly cancels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

from .instrument import Finding, outputs

#: Differences of two scores, exact in few bits: the weights cover whole binades.
DIFFERENCES = np.arange(1, 49) / 16.0
#: True weights, relative to the largest.
EXACT = np.exp(-DIFFERENCES)
#: Numbers p of bfloat16 that weights are compared with: every product represents them, whatever its format.
COMPARED = bits.nearest(EXACT, "bfloat16")
#: Size of the values, so large that the remainder of the product is no subnormal number.
LARGE = 2.0**8
#: Formats, and the relative error of a weight above which it has that format at most. Below the last error, the format
#: is float64. The errors leave room for two roundings and the exponential.
FORMATS = (("bfloat16", 2.0**-10), ("float16 or tf32", 2.0**-14), ("float32", 2.0**-34))
#: Significant bits of formats so narrow that the error of an exponential does not matter.
NARROW = {"bfloat16": 8, "tf32": 11}
#: Ways of rounding in words, and their names in an emulation.
ROUNDINGS = {"rounded to nearest": "nearest", "truncated": "toward_zero"}
#: Largest number of weights so near to the middle of two numbers that the exponential decides their rounding.
MISSED = 2


def weight_format(subject: Subject) -> Finding:
    """Return the narrowest format that weights pass: of the weights, of the softmax or of p.v.

    One key has the score 0 and the value -p v, the other the score -d and the value v, with p near e^-d. The output is
    (w - p) v / (1 + e^-d) for the weight w that was multiplied. The largest relative error of w is near the unit
    roundoff of its format.
    """
    w = _weights(subject)
    error = float(np.max(np.abs(w - EXACT) / EXACT))
    off = f"off by up to 2^{np.log2(error):.1f} of themselves, by the exponential, rounding and what normalizes"
    evidence = f"{len(w)} weights are {off if error else 'exact'}"
    if not np.isfinite(error) or error > 2.0**-5:
        return Finding("weights", None, evidence)
    value = next((name for name, least in FORMATS if error > least), "float64")
    return Finding("weights", value, evidence)


def weight_rounding(subject: Subject, weights: str | None) -> Finding | None:
    """Return how weights are rounded to their format: to nearest or truncated; None unless that format is narrow.

    The remainder of the product is compared with those of weights rounded in either way: weights relative to the
    maximum, or normalized.
    """
    narrow = {"bfloat16": "bfloat16", "float16 or tf32": "tf32"}.get(weights or "")
    if narrow is None:
        return None
    found = _weights(subject)
    room = 2.0 ** -(6 + NARROW[narrow]) * (1 + EXACT) + 2.0**-7 * np.abs(found - COMPARED)
    fitting = {
        words: max(int(np.sum(np.abs(w - found) <= room)) for w in _rounded_weights(narrow, way))
        for words, way in ROUNDINGS.items()
    }
    enough = [words for words, count in fitting.items() if count >= len(found) - MISSED]
    evidence = ", ".join(f"{count} of {len(found)} weights are as if {words}" for words, count in fitting.items())
    return Finding("rounding of weights", enough[0] if len(enough) == 1 else None, evidence)


def _weights(subject: Subject) -> np.ndarray:
    """Return the weights that the kernel multiplied for ``DIFFERENCES`` of scores, inferred from its outputs."""
    n = len(DIFFERENCES)
    q, k, v = np.ones((n, 1, 1)), np.zeros((n, 2, 1)), np.full((n, 2, 1), LARGE)
    k[:, 1, 0], v[:, 0, 0] = -DIFFERENCES, -COMPARED * LARGE
    return outputs(subject, q, k, v)[:, 0, 0] * (1 + EXACT) / LARGE + COMPARED


def _rounded_weights(narrow: str, way: str) -> Iterator[np.ndarray]:
    """Yield the results that :func:`_weights` may have for rounded weights.

    The weights are relative to a maximum of 1, with either row sum, or normalized.
    """
    w, p, N = rounded(EXACT, narrow, way), COMPARED, 1 + EXACT
    first, second = rounded(1 / N, narrow, way), rounded(EXACT / N, narrow, way)
    yield w
    yield (w - p) * N / (1 + w) + p
    yield (second - p * first) * N + p

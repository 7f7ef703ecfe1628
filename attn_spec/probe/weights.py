"""In how many bits weights enter p.v, and how they are rounded: a product nearly cancelled shows what is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

from .instrument import Finding, outputs

#: Differences of two scores, which few bits hold: weights that fill all of a binade.
DIFFERENCES = np.arange(1, 49) / 16.0
#: The weights.
EXACT = np.exp(-DIFFERENCES)
#: The numbers p of bfloat16 that weights are compared with: no product rounds them, whatever it multiplies.
COMPARED = bits.nearest(EXACT, "bfloat16")
#: Values are as large as this, so that what is left of the product is no subnormal number.
LARGE = 2.0**8
#: The largest relative error of a weight for each format, with room for two roundings, and for the exponential.
FORMATS = (("bfloat16", 2.0**-10), ("float16 or tf32", 2.0**-14), ("float32", 2.0**-34))
#: Bits of formats narrow enough for the error of an exponential not to matter.
NARROW = {"bfloat16": 8, "tf32": 11}
#: Ways of rounding in words, and as an emulation names them.
ROUNDINGS = {"rounded to nearest": "nearest", "cut": "toward_zero"}
#: Weights so near to the middle of two numbers that the exponential decides, at most.
MISSED = 2


def weight_format(subject: Subject) -> Finding:
    """The narrowest format that weights pass, their own, that of the softmax or that of p.v.

    Of two keys one has the score 0 and the value -p v, the other the score -d and the value v, p being near e^-d: the
    output is (w - p) v / (1 + e^-d) for the weight w that was multiplied. The largest relative error of w is near the
    unit roundoff of its format.
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
    """How weights are rounded to their format, if it is narrower than the exponential's: to nearest, or cut; else None.

    What is left of the product tells apart weights of rows of length 1 and of the maximum, rounded in either way.
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
    """The weights that the kernel multiplied where those of ``DIFFERENCES`` were due, as its outputs tell."""
    n = len(DIFFERENCES)
    q, k, v = np.ones((n, 1, 1)), np.zeros((n, 2, 1)), np.full((n, 2, 1), LARGE)
    k[:, 1, 0], v[:, 0, 0] = -DIFFERENCES, -COMPARED * LARGE
    return outputs(subject, q, k, v)[:, 0, 0] * (1 + EXACT) / LARGE + COMPARED


def _rounded_weights(narrow: str, way: str) -> Iterator[np.ndarray]:
    """What :func:`_weights` would find: weights rounded beside a maximum of 1, with either row sum; and normalized."""
    w, p, N = rounded(EXACT, narrow, way), COMPARED, 1 + EXACT
    first, second = rounded(1 / N, narrow, way), rounded(EXACT / N, narrow, way)
    yield w
    yield (w - p) * N / (1 + w) + p
    yield (second - p * first) * N + p

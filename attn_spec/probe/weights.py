"""In how many bits weights enter p.v: a product that is nearly cancelled shows what is left of them."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

from .instrument import Finding, outputs

#: Differences of two scores, which few bits hold: weights that fill all of a binade.
DIFFERENCES = np.arange(1, 49) / 16.0
#: Values are as large as this, so that what is left of the product is no subnormal number.
LARGE = 2.0**8
#: The largest relative error of a weight for each format, with room for two roundings, and for the exponential.
FORMATS = (("bfloat16", 2.0**-10), ("float16 or tf32", 2.0**-14), ("float32", 2.0**-34))


def weight_format(subject: Subject) -> Finding:
    """The narrowest format that weights pass, their own, that of the softmax or that of p.v.

    Of two keys one has the score 0 and the value -p v, the other the score -d and the value v, p the number of the
    dtype nearest to e^-d: the output is (w - p) v / (1 + e^-d) for the weight w that was multiplied. The largest
    relative error of w is near the unit roundoff of its format.
    """
    n = len(DIFFERENCES)
    exact = np.exp(-DIFFERENCES)
    p = bits.nearest(exact, subject.dtype)
    q, k, v = np.ones((n, 1, 1)), np.zeros((n, 2, 1)), np.full((n, 2, 1), LARGE)
    k[:, 1, 0], v[:, 0, 0] = -DIFFERENCES, -p * LARGE
    w = outputs(subject, q, k, v)[:, 0, 0] * (1 + exact) / LARGE + p
    error = float(np.max(np.abs(w - exact) / exact))
    evidence = f"{n} weights are off by up to 2^{np.log2(error):.1f} of themselves" if error else "weights are exact"
    if not np.isfinite(error) or error > 2.0**-5:
        return Finding("weights", None, evidence)
    value = next((name for name, least in FORMATS if error > least), "float64")
    return Finding("weights", value, evidence)

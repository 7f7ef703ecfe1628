"""Precision of the row sum: an experiment with more equal weights than a narrow format can count."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS

from .instrument import Finding, means

#: Number of keys, as a multiple of the largest number up to which a format counts by ones.
TIMES = 2
#: Formats that count to so few that a problem of more keys is small.
NARROW = ("float16", "bfloat16")


def row_sum_format(subject: Subject) -> Finding | None:
    """Return the narrow format in which ones are added to a row sum; None where there is none to be seen.

    All scores are 0 and all values 1, so that the output is 1. A sum of p bits that adds one weight after the other
    stays at 2^p, where 2^p + 1 is rounded to 2^p. Then the output is as many times larger as there are more keys,
    unless the sum of p.v stays there too. Sums in pairs lose nothing here, so that nothing is said of them.
    """
    if subject.dtype not in NARROW or subject.kernel.slowness > 1:
        return None
    precision = FORMATS[subject.dtype].precision
    keys = TIMES * 2**precision
    ((got,),) = means(subject, np.ones((1, keys, 1)))
    if not got > 0.75 * TIMES:
        return None
    evidence = f"{keys} equal weights have the sum {keys / got:.4g}"
    return Finding("row sum", subject.dtype, evidence)

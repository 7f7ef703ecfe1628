"""Precision of the p.v accumulator: an experiment with small values between a large value and its negative."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

from .instrument import WIDTH, Finding, format_of, largest_power, means, prefix

KEYS = 32
#: Places of the large values: several, because the order of summation is not known.
PLACES = ((0, KEYS - 1), (0, 1), (1, KEYS - 2), (3, 7), (0, KEYS // 2))


def output_accumulator(subject: Subject) -> Finding:
    """Return the format of the accumulator: all scores are 0, values are M, -M and otherwise units of M / (1.5 2^b).

    M = 1.5 2^t keeps M plus units inside one binade. If the accumulator has b + 1 bits, all units survive at every
    place of M.
    """
    columns = list(range(6, 6 + 3 * WIDTH))
    held = min(prefix(_survived(subject, columns, places)) for places in PLACES)
    if held in (0, len(columns)):
        return Finding("accumulator of p.v", None, f"{held} of {len(columns)} sums are exact")
    last = columns[held - 1]
    evidence = f"units of 2^-{last} of the largest value are added, of 2^-{last + 1} some are lost"
    return Finding("accumulator of p.v", format_of(last + 1), evidence)


def _survived(subject: Subject, columns: list[int], places: tuple[int, int]) -> np.ndarray:
    """Return, for each number of bits, whether all units are in the output; False if the dtype cannot hold them."""
    found = []
    for start in range(0, len(columns), WIDTH):
        part = np.array(columns[start : start + WIDTH])
        top = np.minimum(part // 2 + 4, largest_power(subject) - 1)
        unit = 2.0 ** (top - part)
        v = np.broadcast_to(unit, (KEYS, len(part))).copy()
        v[places[0]], v[places[1]] = 1.5 * 2.0**top, -1.5 * 2.0**top
        able = bits.nearest(unit / KEYS, subject.dtype) == unit / KEYS
        (got,) = means(subject, bits.nearest(v, subject.dtype)[None])
        found.append(able & (np.abs(got * KEYS / unit - (KEYS - 2)) < 0.25))
    return np.concatenate(found)

"""Order in which p.v is summed: the length and direction of tiles of keys, and the rounding of each sum.

A large value M and its negative absorb what is added between them, and before the first of them. Of small values at all
other keys the rest survives. Source: Xie, Gao, Wang and Xue, *Revealing floating-point accumulation orders in
software/hardware implementations*, USENIX ATC 2025, who find the whole tree of a sum in this way.
"""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS

from .instrument import Finding, means

KEYS = 512
#: Tile lengths that are distinguished; length 1 means key by key.
TILES = (1, 16, 32, 64, 128)
#: Pairs of keys at the edges of tiles of these lengths.
PAIRS = np.array(
    [(0, j) for j in (15, 16, 31, 32, 63, 64, 127, 128, 191, 192, 255, 256, 383, 384, KEYS - 1)]
    + [(KEYS // 2, j) for j in (271, 272, 287, 288, 319, 320, 383, 384, KEYS - 1)]
)
#: Significant bits of the accumulators for which the order is measured.
PRECISIONS = {"float32": 24, "float16 or tf32": 11, "bfloat16": 8}
#: M is 1.5 times this number, which every dtype holds.
TOP = 2.0**13
#: Largest small value, relative to the last place of M: the sum of a tile of them is lost beside M.
SMALL = 2.0**-12
#: Largest accepted difference, in units, between a sum and its expected value.
NEAR = 0.3


def order(subject: Subject, accumulator: str | None) -> Finding | None:
    """Return the length of tiles and their direction; None if the accumulator's format is not known.

    M is at the first key or the last, -M at another key. If tiles of T keys are added from the first, the values that
    survive are those of tiles after the later of the two.
    """
    precision = PRECISIONS.get(accumulator or "")
    if precision is None:
        return None
    unit = 1.5 * TOP * 2.0**-precision * SMALL
    if unit / KEYS < 2 * FORMATS[subject.dtype].smallest_normal:
        return Finding("order of keys", None, f"{subject.dtype} has no values small enough")
    for mirrored, side in ((False, "first"), (True, "last")):
        found = _survivors(subject, unit, mirrored=mirrored)
        for tile in TILES:
            if _fit(found, tile):
                step = "key by key" if tile == 1 else f"tiles of {tile} keys"
                evidence = f"of {KEYS} values those survive that come after both of each pair of tiles"
                return Finding("order of keys", f"{step}, from the {side}", evidence)
    return Finding("order of keys", None, f"the {KEYS} values that survive fit no tiles of {TILES[1]} to {TILES[-1]}")


def accumulator_rounding(subject: Subject, accumulator: str | None) -> Finding | None:
    """Return whether sums are rounded to nearest or truncated; None if the accumulator's format is not known.

    3/4 and 1/4 of a unit in the last place of M are added to M and to -M. Rounded to nearest they become 1 and 0.
    Truncated they become 0 and 0, or 1 and 1 if -M comes first. In a wider sum they stay.
    """
    precision = PRECISIONS.get(accumulator or "")
    if precision is None:
        return None
    unit = TOP * 2.0 ** (1 - precision)
    v = np.zeros((4, KEYS, 1))
    for row, (sign, part) in enumerate(((1, 0.75), (1, 0.25), (-1, 0.75), (-1, 0.25))):
        v[row, 0], v[row, KEYS // 2], v[row, -1] = sign * 1.5 * TOP, part * unit, -sign * 1.5 * TOP
    found = means(subject, v)[:, 0] * KEYS / unit
    pairs = {"rounded to nearest": ((1, 0), (1, 0)), "truncated": ((0, 0), (1, 1))}
    evidence = f"3/4 and 1/4 of a unit in the last place become {found[0]:.3g} and {found[1]:.3g}"
    for words, (one, other) in pairs.items():
        for expected in ((*one, *other), (*other, *one)):
            if np.all(np.abs(found - expected) < 2.0**-6):
                return Finding("rounding of sums", words, evidence)
    return Finding("rounding of sums", None, evidence)


def _fit(found: np.ndarray, tile: int) -> bool:
    """Return whether the survivors of all pairs in two tiles are the values after both tiles."""
    first, second = (PAIRS // tile).T
    after = KEYS - (second + 1) * tile
    return bool(np.all((first == second) | (np.abs(found - after) <= NEAR + after * 2.0**-8)))


def _survivors(subject: Subject, unit: float, *, mirrored: bool) -> np.ndarray:
    """Return how many small values survive for each of ``PAIRS``; counted from the last key if ``mirrored``."""
    n = len(PAIRS)
    v = np.full((n, KEYS, 1), unit)
    v[np.arange(n), PAIRS[:, 0]], v[np.arange(n), PAIRS[:, 1]] = 1.5 * TOP, -1.5 * TOP
    return means(subject, bits.nearest(v[:, ::-1] if mirrored else v, subject.dtype))[:, 0] * KEYS / unit

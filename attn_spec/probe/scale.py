"""Operands that the scale multiplies: an operand that is scaled and rounded again is changed measurably."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS

from .instrument import Finding, unscaled

#: Width of heads, whose square root is no power of 2.
WIDTH = 32
#: Number of pairs of neighbouring numbers that are compared.
PAIRS = 24
#: Largest accepted distance of an output from its expected value: scores are rounded, and the output is.
NEAR = 2.0**-4


def scale_place(subject: Subject) -> Finding | None:
    """Return whether q, k or both are rounded after scaling by the scale or its root; None if the dtype is wide.

    One operand is x in one column and the neighbour of x in the other. The other operand is 2^(p + 2), for p bits, in
    one column or the other. Scores differ by 8 / sqrt(WIDTH), or by what rounding makes of it. Values are 1 and -1.
    """
    p = FORMATS[subject.dtype].precision
    if p > 11:
        return None
    x = bits.nearest(1.0 + np.arange(PAIRS) * 2.0 ** (1 - p) * 4, subject.dtype)
    above = x + 2.0 ** (1 - p)
    large = np.full(PAIRS, 2.0 ** (p + 2))
    ways = {
        "q, in the dtype": lambda q, k, s: _dot(_cast(q * s, subject), k),
        "k, in the dtype": lambda q, k, s: _dot(q, _cast(k * s, subject)),
        "q and k, by its root": lambda q, k, s: _dot(_cast(q * s**0.5, subject), _cast(k * s**0.5, subject)),
        "scores, or an operand unrounded": lambda q, k, s: _dot(q, k) * s,
    }
    fitting = set(ways)
    for swapped in (False, True):
        q, k = np.zeros((PAIRS, 1, 2)), np.zeros((PAIRS, 2, 2))
        if swapped:
            q[:, 0], k[:, 0, 0], k[:, 1, 0] = np.stack([large, 0 * large], -1), x, above
        else:
            q[:, 0], k[:, 0, 0], k[:, 1, 1] = np.stack([x, above], -1), large, large
        v = np.broadcast_to([[1.0], [-1.0]], (PAIRS, 2, 1))
        found = unscaled(subject, q, k, v, WIDTH)[:, 0, 0]
        for words in sorted(fitting):
            s = ways[words](q, k, WIDTH**-0.5)
            if np.max(np.abs(np.tanh((s[:, 0] - s[:, 1]) / 2) - found)) > NEAR:
                fitting.discard(words)
    evidence = f"{2 * PAIRS} pairs of neighbours fit {' and '.join(sorted(fitting)) or 'none of these'}"
    return Finding("scale", next(iter(fitting)) if len(fitting) == 1 else None, evidence)


def _cast(x: np.ndarray, subject: Subject) -> np.ndarray:
    return bits.nearest(x, subject.dtype)


def _dot(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return (q @ k.swapaxes(-1, -2))[:, 0]

"""Vectors that a kernel rotates before it quantises them: the interval that each of their numbers lies in.

Theorem. Let y = H (s x) / sqrt(n) for n numbers x, signs s, and Sylvester's H of n rows, n a power of 2. Each number
that a kernel has of y is off by at most

    gamma(u, n + 2; 2^-50, n) sum |x| / sqrt(n) + (2 n + 2) eta.

Proof. A sum of n products with 1 or -1 passes at most n - 1 roundings in any order, and one as it is entered. Of the
factor 1 / sqrt(n) there are two: of itself, and of its product. A butterfly has log2(n) steps of one rounding each; if
each step is multiplied by a rounded 1 / sqrt(2), those are 3 log2(n), at most n + 2. Float64 evaluates y with n
roundings of 2^-53.

Each sum and each product loses at most eta to underflow. A matrix of 1 / sqrt(n) and its negative has n products and
n - 1 sums. In a butterfly, a loss of one step becomes sqrt(2) times as large in the next. Two losses in each step are
2 (sqrt(n) - 1) / (sqrt(2) - 1) at the end, at most 2 n + 2.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.codes import FLOAT64
from attn_spec.contract.quantisers import Quantiser
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import term
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS


def width_of(head_dim: int) -> int:
    """Return the number of columns that are rotated together: the largest power of 2 that divides ``head_dim``."""
    return head_dim & -head_dim


def signs_of(quantiser: Quantiser, head_dim: int) -> np.ndarray:
    """Return the sign of each column, [D]."""
    return np.resize(np.array(quantiser.signs or (1,), dtype=np.float64), head_dim)


def sylvester(n: int) -> np.ndarray:
    """Return Sylvester's matrix of n rows, a power of 2: H of n rows has H, H over H, -H of half as many."""
    H = np.ones((1, 1))
    while len(H) < n:
        H = np.block([[H, H], [H, -H]])
    return H


@np.errstate(all="ignore")
def rotated(quantiser: Quantiser, low: np.ndarray, high: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the most of rotated vectors, [B, H, S, D], for numbers from ``low`` to ``high``.

    ``dtype`` is that of the tensor, in which they are stored if the quantiser says "input".
    """
    D = low.shape[-1]
    n, form = width_of(D), dtype if quantiser.rotated_dtype == "input" else quantiser.rotated_dtype
    arithmetic, signs = FORMATS[quantiser.arithmetic], signs_of(quantiser, D)
    if n == 1:  # signs alone, which round nothing
        ends = [bits.nearest(x * signs, form) for x in (low, high)]
        return (ends[0], ends[0]) if low is high else (np.minimum(*ends), np.maximum(*ends))
    blocks = (*low.shape[:-1], D // n, n)
    middle, half = ((x / 2).reshape(blocks) for x in ((low + high) * signs, high - low))
    sizes = np.maximum(np.abs(low), np.abs(high)).reshape(blocks).sum(axis=-1, keepdims=True) / np.sqrt(n)
    y = middle @ sylvester(n) / np.sqrt(n)
    relative = gamma((arithmetic.unit_roundoff, n + 2), (FLOAT64, n))
    off = term("roundings of a rotation", relative * sizes) + term(
        "underflow of a rotation", (2 * n + 2) * arithmetic.smallest_normal
    )
    off = off + half.sum(axis=-1, keepdims=True) / np.sqrt(n) * (1 + n * FLOAT64)
    ends = [bits.nearest(bits.nearest((y + sign * off).reshape(low.shape), arithmetic.name), form) for sign in (-1, 1)]
    return ends[0], ends[1]

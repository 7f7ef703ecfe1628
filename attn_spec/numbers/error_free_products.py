"""Matrix products without rounding errors from float64 matrix products: errors about 2^-100 of the largest terms.

Source: K. Ozaki, T. Ogita, S. Oishi, S. Rump, "Error-free transformations of matrix multiplication by using fast
routines of matrix multiplication and its applications", Numer. Algorithms 59 (2012). Both factors are split into four
slices

    x = x_0 + x_1 + x_2 + x_3,    x_i = c_i 2^g 2^-(b + i (b + 1)),  c_i an integer, |c_i| <= 2^b (1 + 2^-7),  i < 3

where 2^g bounds each row of the first factor, and each column of the second. Slice x_i is x minus the slices before it,
rounded to the grid of x_i, so that |x_3| <= 2^(g - 3 (b + 1)).

All products of slices of level l = i + j lie on one grid, in units of 2^-(2b + l (b + 1)) times both bounds. For level
l <= 2, the sum of K products of each pair of slices is an integer of at most 3.05 K 4^b units. Function ``bits``
chooses b so that 3.05 K 4^b <= 2^53. Float64 then represents the sum and all partial sums exactly, in any order and
with or without fused multiply-adds. The remainder,

    x_0 y_3 + x_1 (y_2 + y_3) + x_2 (y_1 + y_2 + y_3) + x_3 y,

has 4 K terms of at most 1.01 * 2^-3(b + 1) times both bounds. In float64 its error is at most 4 K u times their sum, in
any order (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1): 16.4 K^2 u 2^-3(b + 1).

Where x or y is a double-double, x_3, y_3 and both sums are rounded, and y in the last product is its hi. These are five
errors of 1.1 K u 2^-3(b + 1) each. All errors together are less than 22 K^2 u 2^-3(b + 1). Bounds stay above 2^-300, so
no unit is lost to underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attn_spec.numbers.double_double import TINIEST, DoubleDouble, two_sum

#: Largest number of terms of one exact sum; longer sums are split and added in double-double.
LONGEST = 512
SLICES = 4
#: Elements per block of rows: with fewer, calls of NumPy dominate the time, with more, memory traffic does.
_CACHED = 2**15
_LEAST_BOUND = -300


@dataclass(frozen=True, eq=False)
class Left:
    """The first factor [M, K]: its slices side by side, [M, 4 K], and the bound of each row, [M, 1]."""

    slices: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True, eq=False)
class Right:
    """The second factor [K, N], prepared for :func:`product`.

    ``slices`` [3 K, N] are slices 2, 1 and 0. ``rests`` [4 K, N] are y_3, y_2 + y_3, y_1 + y_2 + y_3 and hi, the
    factors of slices 0, 1, 2 and 3 of the first factor. ``bound`` is [1, N].
    """

    slices: np.ndarray
    rests: np.ndarray
    bound: np.ndarray


def bits(terms: int) -> int:
    """Return b for sums of this many products: the largest with 3.05 K 4^b <= 2^53, and at most 22."""
    return min(int(53 - math.log2(3.05 * max(terms, 1))) // 2, 22)


def bounds(x: np.ndarray, axis: int) -> np.ndarray:
    """Return powers of 2 larger than every |x| along an axis, which stays with length 1; at least 2^-300."""
    largest = np.maximum(x.max(axis, keepdims=True, initial=0.0), -x.min(axis, keepdims=True, initial=0.0))
    exponent = np.where(largest > 0, np.frexp(largest)[1], _LEAST_BOUND)
    return np.ldexp(1.0, np.maximum(exponent, _LEAST_BOUND))


def cut(hi: np.ndarray, lo: np.ndarray | None, bound: np.ndarray | float, b: int) -> Iterator[np.ndarray]:
    """Yield the four slices of hi + lo, |lo| <= u |hi|, for numbers of at most ``bound``.

    Adding and subtracting 1.5 2^52 units rounds to a multiple of the unit. Differences are exact: both numbers are
    multiples of the smaller of the unit and the ulp of hi, and at most 2^53 such multiples.
    """
    grid = np.asarray(bound) * (1.5 * 2.0 ** (52 - b))
    for _ in range(2):
        x = hi + grid
        x -= grid
        yield x
        hi = hi - x
        grid = grid * 2.0 ** -(b + 1)
    x = hi + grid if lo is None else (hi + lo) + grid
    x -= grid
    yield x
    yield hi - x if lo is None else (hi - x) + lo


def left(hi: np.ndarray, lo: np.ndarray | None = None, *, bound: np.ndarray | float | None = None) -> list[Left]:
    """Return the first factor hi + lo [M, K] in parts of at most ``LONGEST`` columns.

    ``bound`` [M, 1] is an upper bound of each row if one is known.
    """
    found = []
    for at in parts(hi.shape[1]):
        h, l = hi[:, at], None if lo is None else lo[:, at]
        of = np.broadcast_to(bounds(h, 1) if bound is None else bound, (len(h), 1))
        slices = np.empty((len(h), SLICES, h.shape[1]))
        for i, x in enumerate(cut(h, l, of, bits(h.shape[1]))):
            slices[:, i] = x
        found.append(Left(slices.reshape(len(h), SLICES * h.shape[1]), of))
    return found


def left_of_transposed(hi: np.ndarray, lo: np.ndarray | None = None) -> list[Left]:
    """Return the transpose of hi + lo [K, M] as a first factor; no transposed copy of hi or lo is made."""
    found = []
    for at in parts(len(hi)):
        h, l = hi[at], None if lo is None else lo[at]
        of = bounds(h, 0)
        slices = np.stack(list(cut(h, l, of, bits(len(h)))))
        found.append(Left(slices.reshape(-1, hi.shape[1]).T, of.T))
    return found


def right(hi: np.ndarray, lo: np.ndarray | None = None) -> list[Right]:
    """Return the second factor hi + lo [K, N] in parts of at most ``LONGEST`` rows."""
    found = []
    for at in parts(len(hi)):
        h, l = hi[at], None if lo is None else lo[at]
        of = bounds(h, 0)
        x0, x1, x2, x3 = cut(h, l, of, bits(len(h)))
        after_1 = x2 + x3
        found.append(Right(np.concatenate([x2, x1, x0]), np.concatenate([x3, after_1, x1 + after_1, h]), of))
    return found


def parts(length: int) -> list[slice]:
    """Return slices that divide an axis into equal parts of at most ``LONGEST``, one part at least."""
    count = max(-(-length // LONGEST), 1)
    edges = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def product(x: Sequence[Left], y: Sequence[Right], *, by_row: bool = False) -> DoubleDouble:
    """Return the matrix product of two prepared factors, with a radius for each element.

    ``by_row`` gives one radius for each row, [M, 1].
    """
    found = None
    for one, other in zip(x, y, strict=True):
        of_part = _part(one, other, _largest_of_row if by_row else _each)
        found = of_part if found is None else found + of_part
    assert found is not None
    return found


def _largest_of_row(x: np.ndarray) -> np.ndarray:
    return np.maximum(x.max(1, keepdims=True, initial=0.0), -x.min(1, keepdims=True, initial=0.0))


def _each(x: np.ndarray) -> np.ndarray:
    return np.abs(x)


def _part(x: Left, y: Right, magnitude: Callable[[np.ndarray], np.ndarray]) -> DoubleDouble:
    """Return the product of one pair of parts.

    Levels 0 and 1 are added by TwoSum, h + e. Level 2 and the remainder are added in float64, m = fl(..), l = fl(e +
    m). The roundings of m and l are at most u (|m| + |l|) <= u (2 |l| + |e|) (1 + 2u) <= 2.1 u |l| + 1.1 u^2 |h|, and
    |h| is at most 1.01 K times both bounds.
    """
    K = len(y.slices) // 3
    high, low, m = (x.slices[:, : (l + 1) * K] @ y.slices[(2 - l) * K :] for l in range(3))
    rest, rounded = x.slices @ y.rests, []
    for at in row_blocks(high.shape):
        h, e = two_sum(high[at], low[at])
        e += m[at] + rest[at]
        rounded.append(2.1 * 2.0**-53 * magnitude(e))
        # Where levels cancel, |h| may be smaller than |e|, so FastTwoSum would not be exact.
        high[at], low[at] = two_sum(h, e)
    bound = y.bound if magnitude is _each else y.bound.max(initial=0.0)
    of_rest = 22 * max(K, 1) ** 2 * 2.0 ** -(53 + 3 * (bits(K) + 1)) + 1.2 * max(K, 1) * 2.0**-106
    return DoubleDouble(high, low, np.concatenate(rounded) + of_rest * (x.bound * bound) + TINIEST)


def row_blocks(shape: tuple[int, ...]) -> list[slice]:
    """Return blocks of rows whose intermediates stay in the cache of a core, one block at least."""
    rows, n = max(_CACHED // max(shape[1], 1), 1), shape[0]
    return [slice(start, start + rows) for start in range(0, max(n, 1), rows)]


def keep_freed_memory() -> None:
    """Free 30 MiB once, so that glibc keeps memory that is freed later.

    Returning pages to the system would otherwise take a third of the time.
    """
    np.empty(30 * 2**17)

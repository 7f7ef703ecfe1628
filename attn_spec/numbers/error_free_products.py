"""Matrix products without rounding errors, out of float64 ones that have none: about 2^-100 of the largest terms.

K. Ozaki, T. Ogita, S. Oishi, S. Rump, "Error-free transformations of matrix multiplication by using fast routines of
matrix multiplication and its applications", Numer. Algorithms 59 (2012). Both factors are cut into four slices

    x = x_0 + x_1 + x_2 + x_3,    x_i = c_i 2^g 2^-(b + i (b + 1)),  c_i an integer, |c_i| <= 2^b (1 + 2^-7),  i < 3

where 2^g bounds each row of the first factor, and each column of the second. x_i is x less the slices before it,
rounded to its grid, so that |x_3| <= 2^(g - 3 (b + 1)). Of level l = i + j all products of slices lie on one grid, of
units 2^-(2b + l (b + 1)) times both bounds. A sum of K products of each pair of slices of level l <= 2 is an integer of
at most 3.05 K 4^b units: with ``bits`` below, 3.05 K 4^b <= 2^53, float64 has it, and all partial sums, exactly, in any
order and with or without fused multiply-adds. What is left,

    x_0 y_3 + x_1 (y_2 + y_3) + x_2 (y_1 + y_2 + y_3) + x_3 y,

has 4 K terms of at most 1.01 * 2^-3(b + 1) times both bounds. In float64 its error is 4 K u times their sum at most, in
any order (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1): 16.4 K^2 u 2^-3(b + 1).
Where x or y is a double-double, x_3, y_3 and both sums are rounded, and y there is its hi: five errors of 1.1 K u
2^-3(b + 1). All together less than 22 K^2 u 2^-3(b + 1). Bounds stay above 2^-300: no unit is lost to underflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from attn_spec.numbers.double_double import TINIEST, DoubleDouble, two_sum

#: Terms of one exact sum, at most; longer ones are added up in double-double.
LONGEST = 512
SLICES = 4
#: Numbers of an array at a time: with fewer, calls of NumPy take the time, with more, memory does.
_CACHED = 2**15
_LEAST_BOUND = -300


@dataclass(frozen=True, eq=False)
class Left:
    """The first factor [M, K]: its slices side by side, [M, 4 K], and the bound of each row, [M, 1]."""

    slices: np.ndarray
    bound: np.ndarray


@dataclass(frozen=True, eq=False)
class Right:
    """The second factor [K, N]: slices 2, 1, 0, [3 K, N]; slice 3, and what is left after 2, 1 and 0; [1, N]."""

    slices: np.ndarray
    rests: np.ndarray
    bound: np.ndarray


def bits(terms: int) -> int:
    """b for sums of so many products: the largest with 3.05 K 4^b <= 2^53, and at most 22."""
    return min(int(53 - math.log2(3.05 * max(terms, 1))) // 2, 22)


def bounds(x: np.ndarray, axis: int) -> np.ndarray:
    """Powers of 2 that are larger than all |x| along an axis, which stays."""
    largest = np.maximum(x.max(axis, keepdims=True, initial=0.0), -x.min(axis, keepdims=True, initial=0.0))
    exponent = np.where(largest > 0, np.frexp(largest)[1], _LEAST_BOUND)
    return np.ldexp(1.0, np.maximum(exponent, _LEAST_BOUND))


def cut(hi: np.ndarray, lo: np.ndarray | None, bound: np.ndarray | float, b: int) -> Iterator[np.ndarray]:
    """The four slices of hi + lo, |lo| <= u |hi|, for numbers of at most ``bound``.

    Adding and subtracting 1.5 2^52 units rounds to a multiple of the unit. Differences are exact: both numbers are
    multiples of the smaller of a unit and the ulp of hi, and of at most 2^53 of these.
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
    """The first factor hi + lo [M, K] in parts of at most ``LONGEST`` columns; ``bound`` [M, 1] if one is known."""
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
    """The same of the transpose of hi + lo [K, M], which is nowhere made."""
    found = []
    for at in parts(len(hi)):
        h, l = hi[at], None if lo is None else lo[at]
        of = bounds(h, 0)
        slices = np.stack(list(cut(h, l, of, bits(len(h)))))
        found.append(Left(slices.reshape(-1, hi.shape[1]).T, of.T))
    return found


def right(hi: np.ndarray, lo: np.ndarray | None = None) -> list[Right]:
    """The second factor hi + lo [K, N] in parts of at most ``LONGEST`` rows."""
    found = []
    for at in parts(len(hi)):
        h, l = hi[at], None if lo is None else lo[at]
        of = bounds(h, 0)
        x0, x1, x2, x3 = cut(h, l, of, bits(len(h)))
        after_1 = x2 + x3
        found.append(Right(np.concatenate([x2, x1, x0]), np.concatenate([x3, after_1, x1 + after_1, h]), of))
    return found


def parts(length: int) -> list[slice]:
    """An axis in equal parts of at most ``LONGEST``, one at least."""
    count = max(-(-length // LONGEST), 1)
    edges = [length * i // count for i in range(count + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def product(x: Sequence[Left], y: Sequence[Right], *, by_row: bool = False) -> DoubleDouble:
    """The matrix product of two factors as cut, with a radius for each element, or ``by_row`` for each row, [M, 1]."""
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
    """Levels 0 and 1 as TwoSum gives them, h + e; level 2 and the rest in float64, m = fl(..), l = fl(e + m).

    The roundings of m and l are u (|m| + |l|) <= u (2 |l| + |e|) (1 + 2u) <= 2.1 u |l| + 1.1 u^2 |h| at most, and
    |h| is at most 1.01 K times both bounds.
    """
    K = len(y.slices) // 3
    high, low, m = (x.slices[:, : (l + 1) * K] @ y.slices[(2 - l) * K :] for l in range(3))
    rest, rounded = x.slices @ y.rests, []
    for at in row_blocks(high.shape):
        h, e = two_sum(high[at], low[at])
        e += m[at] + rest[at]
        rounded.append(2.1 * 2.0**-53 * magnitude(e))
        # |h| may be the smaller of the two where levels cancel.
        high[at], low[at] = two_sum(h, e)
    bound = y.bound if magnitude is _each else y.bound.max(initial=0.0)
    of_rest = 22 * max(K, 1) ** 2 * 2.0 ** -(53 + 3 * (bits(K) + 1)) + 1.2 * max(K, 1) * 2.0**-106
    return DoubleDouble(high, low, np.concatenate(rounded) + of_rest * (x.bound * bound) + TINIEST)


def row_blocks(shape: tuple[int, ...]) -> list[slice]:
    """Rows of a matrix in blocks whose intermediates stay in the cache of a core, at least one block."""
    rows, n = max(_CACHED // max(shape[1], 1), 1), shape[0]
    return [slice(start, start + rows) for start in range(0, max(n, 1), rows)]


def keep_freed_memory() -> None:
    """Free 30 MiB: glibc keeps what is freed after that, else a third of the time is spent on returning pages."""
    np.empty(30 * 2**17)

"""Double-double numbers with proved radii: unevaluated sums of two float64 arrays, each within its radius of the truth.

u = 2^-53. The sum and the product of two float64 are themselves double-doubles, exactly. The algorithms are Knuth's
TwoSum, and Dekker's FastTwoSum and TwoProduct. Sources: T. J. Dekker, "A floating-point technique for extending the
available precision", Numer. Math. 18, 1971; S. Rump, T. Ogita, S. Oishi, "Accurate floating-point summation I", SIAM J.
Sci. Comput. 31, 2008.

TwoSum and FastTwoSum are exact even where numbers underflow. The error term of TwoProduct is exact only if the product
is above 2^-968, so every radius of a product includes ``TINIEST``. A number that overflows becomes NaN or infinite, and
``as_floats`` gives it an infinite radius.

Radii are float64 sums and products of positive numbers, each rounded by a factor 1 + u at most. The constants below are
rounded up, and :func:`as_floats` widens every radius by 2^-20, which covers 2^32 such factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Upper bound on the error of a product that underflows, with a wide margin.
TINIEST = 2.0**-1000
#: Relative error of a sum (to the sizes of its terms), and of a product: derived at the operators.
SUM_ERROR, PRODUCT_ERROR = 2.0**-104, 2.0**-103
#: Factor 2^27 + 1 of Dekker's splitting: a float64 becomes two halves of 26 bits.
_HALVES = 2.0**27 + 1


@dataclass(frozen=True, eq=False)
class DoubleDouble:
    """Real numbers that lie within ``radius`` of ``hi + lo``, where |lo| <= u |hi|; ``radius`` broadcasts to them."""

    hi: np.ndarray
    lo: np.ndarray
    radius: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    def __add__(self, other: DoubleDouble) -> DoubleDouble:
        """Return the sum.

        TwoSum gives h and e with |e| <= u |h|. Then l = e + (lo + lo') has an error of at most u |lo + lo'| + u |l|.
        Each lo is below u times its hi, so the error is below 2 u^2 (|hi| + |hi'|) + u |e| (1 + u) < 4 u^2 (|hi| +
        |hi'|).
        """
        h, e = two_sum(self.hi, other.hi)
        h, l = fast_two_sum(h, e + (self.lo + other.lo))
        return DoubleDouble(
            h, l, self.radius + other.radius + SUM_ERROR * (np.abs(self.hi) + np.abs(other.hi)) + TINIEST
        )

    def __mul__(self, other: DoubleDouble) -> DoubleDouble:
        """Return the product.

        Its error in units of u^2 |hi hi'|, less than 8.1 with all higher powers of u:

        - the skipped product lo lo': 1
        - the roundings of hi lo' and hi' lo: 1 each
        - the rounding of the sum of these two: 2
        - the rounding of that sum plus e: 3

        The factors' radii r and r' add |x| r' + |x'| r + r r'.
        """
        h, e = two_product(self.hi, other.hi)
        h, l = fast_two_sum(h, e + (self.hi * other.lo + self.lo * other.hi))
        x, y = np.abs(self.hi), np.abs(other.hi)
        return DoubleDouble(
            h,
            l,
            (1 + 2.0**-50) * (x * other.radius + y * self.radius)
            + self.radius * other.radius
            + 1.02 * PRODUCT_ERROR * (x * y)
            + TINIEST,
        )

    def __truediv__(self, other: DoubleDouble) -> DoubleDouble:
        """Return the quotient z, whose radius follows from the residual x - z y: at most (|x - z y| + radii) / |y|.

        Underflow in this quotient and in z adds at most TINIEST. The radius is infinite where y may be 0.
        """
        first = self.hi / other.hi
        left = self - other * number(first)
        h, l = fast_two_sum(first, left.hi / other.hi)
        z = DoubleDouble(h, l, np.zeros(h.shape))
        least = np.abs(other.hi) * (1 - 2.0**-50) - other.radius
        return DoubleDouble(h, l, np.where(least > 0, (self - z * other).size / least + TINIEST, np.inf))

    def __neg__(self) -> DoubleDouble:
        return DoubleDouble(-self.hi, -self.lo, self.radius)

    def __sub__(self, other: DoubleDouble) -> DoubleDouble:
        return self + -other

    def __getitem__(self, at: object) -> DoubleDouble:
        radius = np.broadcast_to(self.radius, self.shape)
        return DoubleDouble(self.hi[at], self.lo[at], radius[at])  # type: ignore[index]

    @property
    def size(self) -> np.ndarray:
        """An upper bound on the magnitude of each number."""
        return np.abs(self.hi) * (1 + 2.0**-50) + self.radius

    def widened(self, radius: np.ndarray | float) -> DoubleDouble:
        """Return these numbers with radii enlarged by ``radius``."""
        return DoubleDouble(self.hi, self.lo, self.radius + radius)

    def where(self, keep: np.ndarray) -> DoubleDouble:
        """Return these numbers where ``keep`` is true, and exactly 0 elsewhere."""
        return DoubleDouble(*(np.where(keep, x, 0.0) for x in (self.hi, self.lo, self.radius)))

    def total(self, axis: int) -> DoubleDouble:
        """Return the sum along an axis, added pair by pair; the axis stays with length 1."""
        x = DoubleDouble(
            *(np.moveaxis(a, axis, 0) for a in (self.hi, self.lo, np.broadcast_to(self.radius, self.shape)))
        )
        if not x.shape[0]:
            return number(np.zeros(np.moveaxis(np.zeros((1, *x.shape[1:])), 0, axis).shape))
        while (n := x.shape[0]) > 1:
            half = n // 2
            pairs = x[:half] + x[half : 2 * half]
            x = pairs if n % 2 == 0 else concatenated(pairs, x[-1:])
        return DoubleDouble(*(np.moveaxis(a, 0, axis) for a in (x.hi, x.lo, x.radius)))


def two_sum(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return s = fl(x + y) and x + y - s, exactly, for any x and y whose sum does not overflow."""
    s = x + y
    t = s - x
    return s, (x - (s - t)) + (y - t)


def fast_two_sum(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return s = fl(x + y) and x + y - s, exactly, where x = 0 or |x| >= |y|."""
    s = x + y
    return s, y - (s - x)


def two_product(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p = fl(x y) and x y - p, exact unless it underflows, for factors below 2^996."""
    p = x * y
    (a, b), (c, d) = halves(x), halves(y)
    return p, ((a * c - p) + (a * d + b * c)) + b * d


def halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two float64 of 26 bits, the second with a sign, whose sum is x, for x below 2^996."""
    t = _HALVES * x
    a = t - (t - x)
    return a, x - a


def number(x: np.ndarray | float) -> DoubleDouble:
    """Return float64 numbers as double-doubles of radius 0."""
    x = np.asarray(x, dtype=np.float64)
    return DoubleDouble(x, np.zeros(x.shape), np.zeros(x.shape))


def concatenated(*parts: DoubleDouble) -> DoubleDouble:
    """Return these arrays of numbers joined along the first axis."""
    fields = ([getattr(part, name) for part in parts] for name in ("hi", "lo", "radius"))
    return DoubleDouble(*(np.concatenate(of) for of in fields))


def as_floats(x: DoubleDouble) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return value, low part and radius, all of one shape.

    Where a number is not finite because something overflowed, value and low part are 0 and the radius is infinite.
    """
    radius = np.broadcast_to(x.radius, x.shape) * (1 + 2.0**-20)
    known = np.isfinite(x.hi) & np.isfinite(x.lo) & np.isfinite(radius)
    return np.where(known, x.hi, 0.0), np.where(known, x.lo, 0.0), np.where(known, radius, np.inf)

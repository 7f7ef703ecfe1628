"""Powers 2^t and the natural logarithm in double-double, with proved radii.

With an integer K, t = K / 2^14 + r, |r| <= 2^-15. Then 2^t is the product of 2^(K div 2^14), an element of a table, and
a short series. Source: P. Tang, "Table-driven implementation of the exponential function in IEEE floating-point
arithmetic", ACM Trans. Math. Softw. 15 (1989). Here an element of the table has two float64.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from flint import arb, ctx

from attn_spec.numbers.double_double import DoubleDouble, fast_two_sum, number

#: Relative error of :func:`power`.
POWER_ERROR = 2.0**-90
#: Exponent below which 2^(t - n) counts as 2^-1000, and the largest distance of that from the truth.
LEAST_EXPONENT, UNDERFLOW = -1000, 2.0**-990
#: Largest radius of t that is propagated; a larger one makes the result's radius infinite.
LARGEST_RADIUS = 2.0**-30

_INDEX = 14
#: Addends of 1.5 2^52 units: adding and subtracting one rounds to a multiple of its unit, 2^-14, 2^-41 or 2^-26.
_TO_INDEX, _TO_41, _TO_26 = (1.5 * 2.0 ** (52 - n) for n in (_INDEX, 41, 26))


@cache
def constants() -> dict[str, DoubleDouble]:
    """Return ln 2 and log2 e, each with relative error at most 2^-105."""
    with ctx.workprec(200):
        exact = {"ln 2": arb(2).log(), "log2 e": 1 / arb(2).log()}
        return {name: _double_double(x) for name, x in exact.items()}


def inverse_root(n: int) -> DoubleDouble:
    """Return 1 / sqrt(n) for n >= 1."""
    with ctx.workprec(200):
        return _double_double(arb(n).rsqrt())


def _double_double(x: arb) -> DoubleDouble:
    hi = float(x)
    lo = float(x - hi)
    return DoubleDouble(np.array(hi), np.array(lo), np.array(2.0**-105 * abs(hi) if x != hi else 0.0))


@cache
def _table() -> tuple[np.ndarray, np.ndarray]:
    """Return 2^(j / 2^14) for j < 2^14 as double-doubles: within 2^-106 of the truth, which lies in [1, 2)."""
    with ctx.workprec(200):
        step = (arb(2).log() / 2**_INDEX).exp()
        exact, power_ = [], arb(1)
        for _ in range(2**_INDEX):
            exact.append(power_)
            power_ *= step
        hi = [float(x) for x in exact]
        return np.array(hi), np.array([float(x - h) for x, h in zip(exact, hi, strict=True)])


@cache
def _ln2() -> tuple[float, float]:
    """Return ln 2 as a number of 26 bits and the float64 nearest the rest, which is below 2^-27: within 2^-81."""
    with ctx.workprec(200):
        first = round(float(arb(2).log()) * 2**26) / 2**26
        return first, float(arb(2).log() - first)


def power(h: np.ndarray, l: np.ndarray, n: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return 2^(h + l - n) as a double-double, for integers n, h from n - 1000 to n + 1, and |h| <= 2^11, |l| <= 2^-42.

    The relative error is at most ``POWER_ERROR``; underflow adds ``UNDERFLOW``. Errors are counted in 2^-96: absolute
    for x, relative for the result T e^x, 1 <= T < 2. Rounding a float64 below 2^k costs at most 2^(k - 54).

    The argument: r = h - K / 2^14 is exact by Sterbenz' lemma. With c + c' for ln 2 and r = r' + r'', r' a multiple of
    2^-41, x = (r + l) ln 2 = a + b. The product a = r' c is exact, |a| <= 2^-15.5. The rest is b = (r'' + l) c + (r +
    l) c', |b| <= 2^-40.7. Errors: of c' 1; of r'' + l 1.4, of its product with c 2; of r + l 1, of its product with c'
    1; of b 4.

    The series: e^x - 1 = a + a'^2/2 + [x''(a' + x''/2) + x^3/6 + x^4/24 + x^5/120] + b. Here a' is a multiple of 2^-41,
    so that its square is exact, and x'' = a - a' + b. The bracket is below 2^-49: its rounding costs 0.1, and x^6/720
    costs 0.02. FastTwoSum gives a + a'^2/2 as p + q exactly. With b added, q is below 2^-40.6 and its rounding costs 4.

    The product: T (1 + p + q) = T + T'p' + (T - T')p' + T p'' + T* + T*(p + q), where T + T* is the table's element,
    exact to 2^-107. T' is a multiple of 2^-26 and p' of 2^-41, so that T'p' is exact; p'' = p - p' + q is below
    2^-40.1. Errors: of p'' 4, of its product with T 7.5; of (T - T')p' 1; of three sums of numbers below 2^-40 T +
    2^-42.5, 9 each.

    All errors together are 54, less than 64 = 2^-90 / 2^-96. Arithmetic in place takes a fifth less time.
    """
    z = h + _TO_INDEX
    r = h - (z - _TO_INDEX)
    c, c_rest = _ln2()
    a = _rounded(r, _TO_41)
    b = r - a
    b += l
    b *= c
    a *= c
    r += l
    r *= c_rest
    b += r
    p, q = _exp_less_one(a, b)

    index = z.view(np.int64)
    entry = index & (2**_INDEX - 1)
    T, T_low = (table.take(entry) for table in _table())
    head = _rounded(p, _TO_41)
    tail = p - head
    tail += q
    T_head = _rounded(T, _TO_26)
    hi, lo = fast_two_sum(T, T_head * head)
    tail *= T
    T_tail = T - T_head
    T_tail *= head
    tail += T_tail
    p += q
    p *= T_low
    p += T_low
    tail += p
    lo += tail
    hi, lo = fast_two_sum(hi, lo)
    # The last 52 bits of z are 2^51 + K; the bits above them are the exponent of 2^38.
    index >>= _INDEX
    index -= np.asarray(n, dtype=np.int64) + ((38 + 1023) << (52 - _INDEX)) + (1 << (51 - _INDEX)) - 1023
    index <<= 52
    scale = index.view(np.float64)
    hi *= scale
    lo *= scale
    return hi, lo


def _rounded(x: np.ndarray, to: float) -> np.ndarray:
    rounded = x + to
    rounded -= to
    return rounded


def _exp_less_one(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return p and q, whose sum is e^(a + b) - 1 as derived in :func:`power`."""
    head = _rounded(a, _TO_41)
    tail = a - head
    tail += b
    square = 0.5 * head
    square *= head
    p, q = fast_two_sum(a, square)
    x = a + b
    series = x * (1 / 120)
    series += 1 / 24
    series *= x
    series += 1 / 6
    series *= x
    x *= x
    series *= x
    head += 0.5 * tail
    head *= tail
    head += series
    q += head
    q += b
    return p, q


def exp2(t: DoubleDouble) -> DoubleDouble:
    """Return 2^t for t from -900 to 900 with radii up to ``LARGEST_RADIUS``; any other t has an infinite radius."""
    fits = (np.abs(t.hi) <= 900) & (t.radius <= LARGEST_RADIUS)
    h, l = np.where(fits, t.hi, 0.0), np.where(fits, t.lo, 0.0)
    n = np.ceil(h)
    hi, lo = (np.ldexp(x, n.astype(np.int64)) for x in power(h, l, n))
    return DoubleDouble(hi, lo, np.where(fits, np.abs(hi) * (1.01 * POWER_ERROR + t.radius), np.inf))


def log(x: DoubleDouble) -> DoubleDouble:
    """Return the natural logarithm of numbers from 2^-900 to 2^900, by one step of Newton's method from float64's y.

    log x = y + log(1 + d), d = x e^-y - 1, and |log(1 + d) - (d - d^2 / 2)| <= |d|^3 for |d| <= 1/2.
    """
    y = number(np.log(x.hi))
    d = x * exp2(-y * constants()["log2 e"]) - number(1.0)
    found = y + d - number(0.5) * (d * d)
    return found.widened(np.where(d.size <= 0.5, d.size**3, np.inf))


def tanh(x: DoubleDouble) -> DoubleDouble:
    """Return tanh x: (1 - y) / (1 + y) with y = 2^-|t| <= 1 and t = 2 x log2 e."""
    t = x * (number(2.0) * constants()["log2 e"])
    sign, far = np.where(t.hi < 0, -1.0, 1.0), np.abs(t.hi) > 900
    size = DoubleDouble(np.where(far, 900.0, sign * t.hi), np.where(far, 0.0, sign * t.lo), t.radius)
    y, one = exp2(-size).widened(np.where(far, 2.0**-890, 0.0)), number(1.0)
    value = (one - y) / (one + y)
    return DoubleDouble(sign * value.hi, sign * value.lo, value.radius)

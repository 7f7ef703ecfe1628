"""Expectations over softmax weights of independent normal scores, enclosed for any number of keys.

For s_1, ..., s_n independent N(0, sigma^2), Z = sum_j exp(s_j) and P_j = exp(s_j) / Z, Euler's integral for Gamma gives
1 / Z^a = 1 / Gamma(a) int exp(-a u) exp(-exp(-u) Z) du, whose integrand is a product over keys. So

    E sum_j P_j^a = n / Gamma(a) int phi_a(u) phi_0(u)^(n-1) du        phi_a(u) = E kappa_a(s - u)

    E sum_{i != j} P_i^a P_j^b = n (n-1) / Gamma(a+b) int phi_a phi_b phi_0^(n-2) du        kappa_a(x) = exp(a x - e^x)

and minus the derivative of the first at a = 1 is the entropy, E -sum_j P_j log P_j = n int phi_H phi_0^(n-1) du -
gamma, with kappa_H(x) = -x exp(x - e^x). Two integrals over the line, whatever n is.

Both are sums of trapezoids of one step h. For an f that is analytic where |Im x| < t and has int |f(x + iy)| dx <= M
there, such a sum is wrong by at most 2 M / (exp(2 pi t / h) - 1): Trefethen and Weideman, "The exponentially convergent
trapezoidal rule" (SIAM Review 56, 2014), theorem 5.1. With w = e^x and c = cos t > 0, |kappa_a(x + iy)| is at most w^a
exp(-c w), which is at most (a / (e c))^a and has the integral Gamma(a) / c^a; and |phi_0| <= 1. All sums are made in
balls, to which the errors of the theorem and of the truncated ends are added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from flint import acb, arb, arb_poly, ctx

#: Bits of the balls.
PRECISION = 128
#: Smaller numbers are balls around 0.
NEGLIGIBLE = arb(2) ** -PRECISION
#: Standard deviations at which a normal density is truncated.
CUT = 9
#: t of the theorem for the outer integral, and the most for the inner one.
HALF_WIDTH = math.pi / 3
#: Distances by which the outer integral exceeds the scores, to the right and to the left.
RIGHT, LEFT = 100.0, 6.0


@dataclass(frozen=True, kw_only=True)
class Kappa:
    """A function kappa of x = s - u, with w = e^x, and what bounds its sums."""

    value: Callable[[arb], arb]
    #: Bounds, by c, on |kappa(x + iy)| where cos y >= c, and on its integral over x.
    largest: Callable[[arb], arb]
    integral: Callable[[arb], arb]
    #: |kappa(x)| is at most w^decay where x < 0, and at most w^growth e^-w where w > 2 growth.
    decay: float
    growth: float


def power(a: float) -> Kappa:
    """Return kappa_a, a > 0; kappa_0, which is averaged only, has no integral."""
    exact = arb(a)
    return Kappa(
        value=lambda x: (exact * x - x.exp()).exp(),
        largest=lambda c: (exact / (arb(1).exp() * c)) ** exact if a else arb(1),
        integral=lambda c: exact.gamma() / c**exact,
        decay=a,
        growth=a,
    )


#: kappa of the entropy: |log w| w <= 1 / e below w = 1 and log w <= w above it; |x| e^x <= e^(x/2) for x < 0.
ENTROPY = Kappa(
    value=lambda x: -x * (x - x.exp()).exp(),
    largest=lambda c: 1 / arb(1).exp() + (2 / (arb(1).exp() * c)) ** 2 + c.acos() / (arb(1).exp() * c),
    integral=lambda c: 1 + 1 / c**2 + c.acos() / c,
    decay=0.5,
    growth=2.0,
)
ZERO = power(0.0)


class Averages:
    """phi of each kappa at the points u = l h of the outer sum, for one standard deviation of the scores."""

    def __init__(self, sigma: float) -> None:
        """Raise ``ValueError`` for a ``sigma`` that is not a finite number above 0."""
        if not 0 < sigma < math.inf:
            raise ValueError(f"the standard deviation of scores must be a finite number above 0, not {sigma!r}")
        self.sigma = sigma
        #: Small enough for both errors of the theorem to be below 1e-17 before M.
        self.h = min(2 * math.pi * HALF_WIDTH / 40, math.pi * sigma / math.sqrt(20))
        self.inner = math.ceil(CUT * sigma / self.h)
        self.first = -math.ceil((CUT * sigma + LEFT) / self.h)
        self.last = math.ceil((CUT * sigma + RIGHT) / self.h)
        #: Probability that a normal variable lies beyond the truncation, on either side.
        self.beyond = (arb(CUT) / arb(2).sqrt()).erfc()
        density = [(-((k * arb(self.h) / sigma) ** 2) / 2).exp() for k in range(-self.inner, self.inner + 1)]
        self._density = arb_poly([_rounded(entry * self.h / (sigma * (2 * arb.pi()).sqrt())) for entry in density])
        self._found: dict[Kappa, list[arb]] = {}

    def of(self, kappa: Kappa) -> list[arb]:
        """Return phi at every point: the inner sum, a convolution, with the error of the theorem and of its ends."""
        if kappa not in self._found:
            reach = range(self.first - self.inner, self.last + self.inner + 1)
            made = (self._density * arb_poly([_rounded(kappa.value(-l * arb(self.h))) for l in reach])).coeffs()
            radius = self._inner_error(kappa)
            places = range(2 * self.inner, 2 * self.inner + self.last - self.first + 1)
            self._found[kappa] = [made[place] + radius for place in places]
        return self._found[kappa]

    def _inner_error(self, kappa: Kappa) -> arb:
        """Bound the inner sum's error: |density(s + iy)| is exp(y^2 / (2 sigma^2)) times the density at s."""
        t = min(HALF_WIDTH, 2 * math.pi * self.sigma**2 / self.h)
        largest = kappa.largest(arb(t).cos()) * ((arb(t) / self.sigma) ** 2 / 2).exp()
        return _around_zero(_theorem(largest, t, self.h) + kappa.largest(arb(1)) * self.beyond)

    def integral(self, kappa: Kappa, others: int, second: Kappa | None = None) -> arb:
        """Return int phi_kappa phi_0^others du, or with phi of a ``second`` kappa as a factor."""
        seconds = [arb(1)] * len(self.of(kappa)) if second is None else self.of(second)
        # Balls around 0 have powers as acb; those of an arb are exp(others log x).
        terms = (
            x * y * (zero**others).real
            for x, y, zero in zip(self.of(kappa), seconds, map(acb, self.of(ZERO)), strict=True)
        )
        c = arb(HALF_WIDTH).cos()
        most, line = (arb(1), arb(1)) if second is None else (second.largest(arb(1)), second.largest(c))
        M = kappa.integral(c) * line
        error = _theorem(M, HALF_WIDTH, self.h) + self._ends(kappa) * most
        return sum(terms, arb(0)) * self.h + _around_zero(error)

    def integral_at(self, kappa: Kappa, x: arb, others: int) -> arb:
        """Enclose int kappa(x - u) phi_0(u)^others du: the integral of one more key, whose score x is fixed.

        The errors of the theorem and of the truncated ends are as for a random key. Raises ``ValueError`` for an x
        beyond ``CUT`` standard deviations.
        """
        if not abs(x) < CUT * self.sigma:
            raise ValueError(f"a score of {x} is beyond {CUT} standard deviations of {self.sigma:g}")
        places = range(self.first, self.last + 1)
        terms = (
            kappa.value(x - l * arb(self.h)) * (zero**others).real
            for l, zero in zip(places, map(acb, self.of(ZERO)), strict=True)
        )
        error = _theorem(kappa.integral(arb(HALF_WIDTH).cos()), HALF_WIDTH, self.h) + self._ends(kappa)
        return sum(terms, arb(0)) * self.h + _around_zero(error)

    def _ends(self, kappa: Kappa) -> arb:
        """Bound what the outer sum misses: scores beyond the truncation, and u far from all others.

        A sum with step h of a function with at most two humps is at most its integral plus 2 h times the largest value.
        """
        far = self.beyond * (kappa.integral(arb(1)) + 2 * self.h * kappa.largest(arb(1)))
        right = (-arb(kappa.decay) * RIGHT).exp() / kappa.decay
        w = arb(LEFT).exp()
        return far + right + 2 * w**kappa.growth * (-w).exp()


@lru_cache(maxsize=64)
def averages(sigma: float) -> Averages:
    """Return the averages for scores of one standard deviation, made once."""
    with ctx.workprec(PRECISION):
        return Averages(sigma)


def _theorem(M: arb, t: float, h: float) -> arb:
    """Return 2 M / (exp(2 pi t / h) - 1)."""
    return 2 * M / ((2 * arb.pi() * t / h).exp() - 1)


def _rounded(x: arb) -> arb:
    """Return a ball around 0 for a number almost 0: polynomials of very different coefficients multiply slowly."""
    return x if abs(x) > NEGLIGIBLE else _around_zero(NEGLIGIBLE + abs(x))


def _around_zero(radius: arb) -> arb:
    return arb(0, radius.upper())

"""The values of training statistics in exact arithmetic, as balls.

Queries have length sqrt(d) and a uniform direction, as RMS normalization leaves them (Zhang and Sennrich, arXiv
1910.07467). Entries of keys are independent N(0, 1). Then the scores of one query are independent N(0, sigma^2),
sigma = scale sqrt(d): 1 with the scale 1/sqrt(d), sqrt(d) without it (Vaswani et al. (2017), section 3.2.1, footnote).
For queries of normal entries the variance of a score is the same: E (q.k)^2 = sum_c E q_c^2 E k_c^2 = d.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps

from flint import arb, ctx

from .quadrature import ENTROPY, PRECISION, Kappa, averages, power

_POWERS = {a: power(a) for a in (0.5, 1.0, 2.0, 3.0, 4.0)}


def _in_balls(formula: Callable[..., arb]) -> Callable[..., arb]:
    """Return the formula at the precision of the quadrature, evaluated once for each of its arguments."""

    @lru_cache(maxsize=256)
    @wraps(formula)
    def evaluated(*arguments: float) -> arb:
        with ctx.workprec(PRECISION):
            return formula(*arguments)

    return evaluated


@_in_balls
def score_variance(sigma: float) -> arb:
    """Return E s^2 = sigma^2."""
    return arb(sigma) ** 2


@_in_balls
def entropy(n: int, sigma: float) -> arb:
    """Return E -sum_j P_j log P_j of n keys.

    log n - sigma^2 / 2 (1 - 1/n) + O(sigma^4) for small sigma, and log n - sigma^2 / 2 for many keys while sigma^2 is
    small beside log n; 0 for sigma to infinity.
    """
    return n * averages(sigma).integral(ENTROPY, n - 1) - arb.const_euler()


@_in_balls
def power_sum(n: int, sigma: float, a: float) -> arb:
    """Return E sum_j P_j^a, a in 1/2, 1, 2, 3, 4; a = 2 gives the squared norm of dV for a cotangent of length 1."""
    kappa: Kappa = _POWERS[a]
    return n * averages(sigma).integral(kappa, n - 1) / arb(a).gamma()


@_in_balls
def jacobian(n: int, sigma: float) -> arb:
    """Return E |diag(P) - P P^T|_F^2 = E (sum P^2 - 2 sum P^3 + (sum P^2)^2).

    The expected squared norm of the gradient of the scores, J dP, for entries of dP that are independent of mean 0 and
    variance 1. (sum P^2)^2 is sum P^4 and the sum over i != j of P_i^2 P_j^2.
    """
    if n == 1:
        return arb(0)
    pairs = n * (n - 1) * averages(sigma).integral(_POWERS[2.0], n - 2, _POWERS[2.0]) / 6
    return power_sum(n, sigma, 2.0) - 2 * power_sum(n, sigma, 3.0) + power_sum(n, sigma, 4.0) + pairs


@_in_balls
def head_distance(n: int, sigma: float) -> arb:
    """Return E (1 - sum_j sqrt(P_j P'_j)) of two independent heads: 1 - (E sum_j sqrt(P_j))^2 / n.

    This is the squared Hellinger distance: 0 for equal weights, 1 for weights without a common key. The total variation
    lies between it and sqrt(2) times its root. Source: Tsybakov, Introduction to nonparametric estimation (2009), lemma
    2.3, where the distance is twice as large.
    """
    return 1 - power_sum(n, sigma, 0.5) ** 2 / n


@_in_balls
def padding(n: int, sigma: float) -> arb:
    """Return E n / (n + sum_j exp(s_j)): the weight of n unmasked keys of zeros beside n others.

    They score 0 each, together as much as one key of score log n. 1/2 for sigma to 0, and 0 for sigma to infinity as
    soon as one of many scores is above 0.
    """
    return averages(sigma).integral_at(_POWERS[1.0], arb(n).log(), n)


@_in_balls
def saturation(sigma: float, derivative: float) -> arb:
    """Return the probability that tanh has less than a ``derivative`` at N(0, sigma^2).

    tanh' = 1 - tanh^2 falls with |x|, so that is the probability beyond x = artanh(sqrt(1 - derivative)).
    """
    x = (1 - arb(derivative)).sqrt().atanh()
    return (x / (sigma * arb(2).sqrt())).erfc()

"""Exact values of training statistics: by hand, by other formulas, and by limits."""

import math

import mpmath
import numpy as np
import pytest
import sympy
from attn_spec.reports.statistics import exact, quadrature
from flint import arb, ctx
from mpmath import mp


def mid(ball):
    return float(ball.mid())


def of_two_keys(f, sigma):
    """Return E f(p) for the weights p, 1 - p of two keys: s_1 - s_2 is N(0, 2 sigma^2)."""
    return float(
        mp.quad(lambda z: mp.npdf(z) * f(1 / (1 + mp.exp(-mp.sqrt(2) * sigma * z))), [-14, -3, -1, 0, 1, 3, 14])
    )


def binary_entropy(p):
    return sum(-x * mp.log(x) for x in (p, 1 - p) if x)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 8.0])
def test_two_keys_are_an_integral_over_one_normal_variable(sigma):
    root = of_two_keys(lambda p: mp.sqrt(p) + mp.sqrt(1 - p), sigma)
    found = [
        (exact.entropy(2, sigma), of_two_keys(binary_entropy, sigma)),
        (exact.power_sum(2, sigma, 2.0), of_two_keys(lambda p: p * p + (1 - p) ** 2, sigma)),
        # diag(P) - P P^T of two keys is p (1 - p) times [[1, -1], [-1, 1]].
        (exact.jacobian(2, sigma), of_two_keys(lambda p: 4 * (p * (1 - p)) ** 2, sigma)),
        (exact.head_distance(2, sigma), 1 - root**2 / 2),
    ]

    for ball, expected in found:
        assert float(ball.rad()) < 1e-11
        assert abs(mid(ball) - expected) < 1e-10


def test_one_key_has_all_the_weight():
    assert exact.entropy(1, 3.0).contains(0)
    assert exact.power_sum(1, 3.0, 2.0).contains(1)
    assert exact.jacobian(1, 3.0) == 0
    assert exact.head_distance(1, 3.0).contains(0)


def test_the_sum_of_weights_is_one():
    """An integral whose value is known for every number of keys: sum_j P_j = 1."""
    one = quadrature.power(1.0)
    with ctx.workprec(quadrature.PRECISION):
        totals = [
            n * quadrature.averages(sigma).integral(one, n - 1) for n in (1, 3, 500) for sigma in (0.3, 1.0, 16.0)
        ]

    assert all(total.contains(1) and total.rad() < 1e-9 for total in totals)


@pytest.mark.parametrize("sigma", [1.0, 6.0])
def test_many_keys_agree_with_draws(sigma):
    rng, n = np.random.default_rng(0), 24
    P = np.exp(sigma * rng.standard_normal((40_000, n)))
    P /= P.sum(axis=1, keepdims=True)
    J = (P**2).sum(axis=1) - 2 * (P**3).sum(axis=1) + (P**2).sum(axis=1) ** 2
    drawn = [
        (exact.entropy(n, sigma), -(P * np.log(P)).sum(axis=1)),
        (exact.power_sum(n, sigma, 2.0), (P**2).sum(axis=1)),
        (exact.jacobian(n, sigma), J),
        (exact.head_distance(n, sigma), 1 - np.sqrt(P[::2] * P[1::2]).sum(axis=1)),
    ]

    for ball, x in drawn:
        assert abs(x.mean() - mid(ball)) < 5 * x.std() / math.sqrt(x.size)


@pytest.mark.parametrize("n", [2, 10, 400])
def test_the_entropy_of_small_scores_is_that_of_its_expansion(n):
    sigma = 0.02

    assert abs(mid(exact.entropy(n, sigma)) - (math.log(n) - sigma**2 / 2 * (1 - 1 / n))) < sigma**4


@pytest.mark.parametrize(("n", "sigma"), [(1, 0.5), (1, 3.0), (4, 1.0), (32, 1.0), (32, 8.0)])
def test_what_padding_takes_agrees_with_draws_and_for_one_key_with_its_integral(n, sigma):
    """One key of zeros beside one of score s takes 1 / (1 + e^s), which is 1/2 on average: s may as well be -s."""
    scores = sigma * np.random.default_rng(0).standard_normal((40_000, n))
    x, ball = n / (n + np.exp(scores).sum(axis=1)), exact.padding(n, sigma)

    assert float(ball.rad()) < 1e-11
    assert abs(x.mean() - mid(ball)) < 5 * x.std() / math.sqrt(x.size)
    assert n > 1 or ball.contains(0.5)


def test_padding_beside_many_scores_takes_what_their_mean_leaves():
    """sum_j exp(s_j) is near n exp(sigma^2 / 2): the share is 1 / (1 + e^(1/2)) for scores of variance 1."""
    assert abs(mid(exact.padding(2000, 1.0)) - 1 / (1 + math.exp(0.5))) < 1e-3
    with pytest.raises(ValueError, match="beyond 9 standard deviations"):
        exact.padding(10_000, 0.5)


def test_a_product_of_normal_vectors_has_variance_d():
    """E exp(i t q k) of two normal numbers is (1 + t^2)^(-1/2); minus the second derivative of its d-th power is d."""
    t, x = sympy.symbols("t x", real=True)
    d, c = sympy.symbols("d c", positive=True)
    normal = sympy.exp(-(x**2) / 2) / sympy.sqrt(2 * sympy.pi)
    given_q = sympy.integrate(sympy.cos(c * x) * normal, (x, -sympy.oo, sympy.oo)).subs(c, t * x)
    one = sympy.integrate(given_q * normal, (x, -sympy.oo, sympy.oo))

    expected = (1 + t**2) ** sympy.Rational(-1, 2)
    assert sympy.simplify(one - expected) == 0
    assert -sympy.diff(expected**d, t, 2).subs(t, 0) == d
    assert exact.score_variance(4.0) == 16


def test_half_the_units_of_a_wide_input_are_saturated_where_tanh_is_half_way():
    """tanh' < 1/2 beyond artanh(sqrt(1/2)) = 0.8814, which is 0.6745 standard deviations, the quartile, of 1.3067."""
    assert abs(mid(exact.saturation(1.30673, 0.5)) - 0.5) < 1e-4
    assert mid(exact.saturation(100.0, 0.5)) > 0.99


@pytest.mark.parametrize("kappa", [quadrature.ENTROPY, *map(quadrature.power, (0.5, 1.0, 4.0))])
def test_bounds_of_the_quadrature_hold_off_the_line(kappa):
    """|kappa(x + iy)| and its integral, for cos y = 1 and 1/2, against values of mpmath."""
    a = None if kappa is quadrature.ENTROPY else kappa.decay

    def value(x):
        return -x * mp.exp(x - mp.exp(x)) if a is None else mp.exp(a * x - mp.exp(x))

    for y in (0.0, math.pi / 3):
        c = arb(mp.cos(y))
        xs = [mp.mpc(x / 10, y) for x in range(-300, 60)]
        assert max(abs(value(x)) for x in xs) <= mid(kappa.largest(c)) * (1 + 1e-9)
        assert mp.quad(lambda x, y=y: abs(value(mp.mpc(x, y))), [-60, -5, 0, 2, 7]) <= mid(kappa.integral(c)) * (
            1 + 1e-9
        )
    assert all(abs(value(mpmath.mpf(x))) <= mp.exp(kappa.decay * x) for x in (-20.0, -3.0, -0.5))
    w = 2 * kappa.growth + 1
    assert abs(value(mp.log(w))) <= w**kappa.growth * mp.exp(-w)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.inf, math.nan])
def test_a_standard_deviation_that_is_none_is_refused(sigma):
    with pytest.raises(ValueError, match=r"standard deviation of scores must be a finite number above 0, not"):
        exact.entropy(2, sigma)

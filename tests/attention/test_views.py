"""Softmax attention as a regression, a positive definite kernel, a Gibbs distribution; and its extremes."""

import math

import numpy as np
import pytest
import sympy as sp
from flint import arb, ctx
from mpmath import mp

from attn_spec.attention import definition
from attn_spec.bounds.intermediates import gradient_intermediates, intermediates
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import one_head

BITS = 120


def numbers(x):
    """Convert an array of mpf to float64."""
    return np.array(x, dtype=float)


def regression(problem, kernel):
    """Compute Nadaraya-Watson: the mean of the values under the weights ``kernel(q, k)``, of a problem's one head."""
    q, k, v = (definition.exact(x[0, 0]) for x in (problem.q, problem.k, problem.v))
    weights = np.array([[kernel(qi, kj) for kj in k] for qi in q], dtype=object)
    return weights @ v / weights.sum(axis=1, keepdims=True)


def gaussian(problem):
    """Return exp(-scale |q - k|^2 / 2) as a function of q and k."""
    return lambda q, k: mp.exp(-definition.real_scale(problem) * sum((q - k) ** 2) / 2)


def test_attention_is_nadaraya_watson_regression_with_the_exponential_kernel():
    problem = Recipe(query_length=3, key_length=5, head_dim=4, value_dim=2, dtypes="float64").problem()
    with mp.workprec(BITS):
        found = regression(problem, lambda q, k: mp.exp(definition.real_scale(problem) * sum(q * k)))
        assert abs(found - definition.attention(problem, BITS)[0, 0]).max() < 2.0 ** (10 - BITS)


@pytest.mark.parametrize("equal", [True, False])
def test_a_gaussian_kernel_gives_the_same_where_keys_are_equally_long(equal):
    """exp(-|q - k|^2 / 2) = exp(q.k) exp(-|q|^2 / 2) exp(-|k|^2 / 2), of which only the last factor is the key's."""
    rng = np.random.default_rng(1)
    k = np.array([rng.permutation([0.5, -1.25, 2.0]) * rng.choice([-1, 1], 3) for _ in range(4)])
    problem = one_head(rng.standard_normal((3, 3)), k * (1 if equal else [[1], [1], [1], [0.5]]), np.eye(4))
    with mp.workprec(BITS):
        gap = abs(regression(problem, gaussian(problem)) - definition.attention(problem, BITS)[0, 0]).max()
    assert gap < 2.0 ** (10 - BITS) if equal else gap > 1e-2


@pytest.mark.parametrize("seed", range(4))
def test_the_exponential_kernel_is_positive_definite(seed):
    """The Cholesky factor of its Gram matrix, in balls: every pivot is proved to be above 0."""
    points = np.random.default_rng(seed).standard_normal((6, 3))
    with ctx.workprec(200):
        rows = [[(arb_dot(x, y) / arb(3).sqrt()).exp() for y in points] for x in points]
        assert all(pivot > 0 for pivot in pivots(rows))
        # That of the opposite sign is not: the diagonal is below its neighbors.
        rows = [[(-arb_dot(x, y) / arb(3).sqrt()).exp() for y in points] for x in points]
        assert any(pivot < 0 for pivot in pivots(rows))


def arb_dot(x, y):
    return sum((arb(float(a)) * arb(float(b)) for a, b in zip(x, y, strict=True)), arb(0))


def pivots(rows):
    """Return the squared pivots of a Cholesky factorization without square roots."""
    a, found = [list(row) for row in rows], []
    for i, row in enumerate(a):
        found.append(row[i])
        for below in a[i + 1 :]:
            factor = below[i] / row[i]
            below[i:] = [x - factor * y for x, y in zip(below[i:], row[i:], strict=True)]
    return found


def free_energy(w, s, T):
    """Return the mean energy less T times the entropy, for energies -s."""
    entropy = -sum(p * mp.log(p) for p in w if p)
    return -sum(p * x for p, x in zip(w, s, strict=True)) - T * entropy


@pytest.mark.parametrize("T", [0.25, 1.0, 4.0])
def test_the_weights_are_the_gibbs_distribution(T):
    """They minimize the free energy, whose least value is -T L."""
    rng = np.random.default_rng(2)
    problem = one_head([[1.0]], rng.standard_normal((5, 1)), np.eye(5), scale=1 / T)
    s = [mp.convert(x) for x in problem.k[0, 0, :, 0].tolist()]
    with mp.workprec(BITS):
        least = free_energy(definition.weights(problem, BITS)[0, 0, 0], s, T)
        assert abs(least + T * definition.log_sum_exp(problem, BITS)[0, 0, 0]) < 2.0 ** (10 - BITS)
        for _ in range(20):
            assert free_energy(list(map(mp.convert, rng.dirichlet(np.ones(5)))), s, T) > least


def entropies(k, temperatures):
    found = []
    for T in temperatures:
        P = numbers(definition.weights(one_head([[1.0]], k, np.eye(len(k)), scale=1 / T), BITS)[0, 0, 0])
        found.append(float(-(P * np.log(np.where(P > 0, P, 1.0))).sum()))
    return found


def test_entropy_rises_with_the_temperature_unless_scores_are_equal():
    """dH/dT is the variance of the scores over T^3."""
    s = sp.symbols("s:3", real=True)
    T = sp.symbols("T", positive=True)
    Z = sum(sp.exp(x / T) for x in s)
    P = [sp.exp(x / T) / Z for x in s]
    H = -sum(p * sp.log(p) for p in P)
    variance = sum(p * x**2 for p, x in zip(P, s, strict=True)) - sum(p * x for p, x in zip(P, s, strict=True)) ** 2
    gap = sp.lambdify((*s, T), sp.diff(H, T) - variance / T**3, "mpmath")
    with mp.workprec(BITS):
        assert all(abs(gap(*map(mp.mpf, at))) < 2.0 ** (20 - BITS) for at in ((1, 2, 3, 2), (0.5, -3, 1, 0.75)))

    temperatures = (0.05, 0.2, 1.0, 5.0, 100.0)
    assert np.all(np.diff(entropies([[0.3], [1.0], [-0.5]], temperatures)) > 0)
    assert np.ptp(entropies([[0.5]] * 3, temperatures)) == 0


def test_cold_attention_shares_among_the_best_and_hot_attention_is_the_mean():
    cold, hot = (one_head([[1.0]], [[2.0], [0.0], [2.0]], np.eye(3), scale=scale) for scale in (1000.0, 2.0**-60))

    assert numbers(definition.attention(cold, BITS)[0, 0, 0]).tolist() == [0.5, 0.0, 0.5]
    assert np.abs(numbers(definition.attention(hot, BITS)[0, 0, 0]) - 1 / 3).max() < 2.0**-55


def test_equal_keys_share_and_a_small_disturbance_favors_none():
    """Independent disturbances favor no key: each weight is 1/n on average, and 1/n in none of the draws.

    Weights are in [0, 1], so that a mean over N draws is off by more than t with probability 2 exp(-2 N t^2) at most
    (Hoeffding), here 1e-9 for each key.
    """
    n, N = 4, 4000
    equal = one_head([[1.0, -2.0]], [[0.5, 1.0]] * n, np.eye(n))
    assert set(definition.weights(equal, BITS)[0, 0, 0]) == {mp.mpf(0.25)}

    rng = np.random.default_rng(3)
    k = equal.k + 0.1 * rng.standard_normal((N, 1, n, 2))
    P = intermediates(equal.replace(q=np.repeat(equal.q, N, 0), k=k, v=np.repeat(equal.v, N, 0))).P[:, 0, 0]
    assert (P != 0.25).all()
    assert np.abs(P.mean(axis=0) - 0.25).max() < math.sqrt(math.log(2e9) / (2 * N))


def test_weights_saturate_without_the_scale_and_do_not_with_it():
    """Scores of variance D leave all weight to one key, but in rows whose two best are near: one in sqrt(D)."""
    slopes = {scale: [mean_slope(D, scale) for D in (4, 64, 1024)] for scale in (None, 1.0)}

    assert min(slopes[None]) > 0.5 * max(slopes[None])
    assert slopes[1.0][0] > 3 * slopes[1.0][1] > 9 * slopes[1.0][2]


def mean_slope(D, scale):
    """Return the mean size of dS for a cotangent on one value, over many rows of independent N(0, 1) inputs."""
    problem = Recipe(query_length=64, key_length=16, head_dim=D, value_dim=16, dtypes="float64", seed=4).problem()
    problem = problem.replace(v=np.eye(16)[None, None], scale=scale)
    dO = np.eye(16)[np.arange(64) % 16][None, None]
    return float(np.abs(gradient_intermediates(intermediates(problem), dO).dA).mean())

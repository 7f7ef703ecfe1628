"""Means under weights of intervals: the largest is what exact fractions say it is, and no weight is a larger share."""

from fractions import Fraction

import numpy as np
import pytest

from attn_spec.bounds.forward.weighted_means import largest_mean, mean_error, shares


def drawn(rng, n):
    """Draw weights of any sizes, the ends of their intervals, and numbers of which some are equal or nearly so."""
    P = np.exp(-rng.random(n) * rng.choice([1, 30, 200]))
    alpha = rng.random(n) * rng.choice([0.01, 1, 10, 100])
    t = np.round(rng.standard_normal(n) * rng.choice([1, 4]), rng.integers(0, 6))
    if rng.random() < 0.5:
        t = np.round(t) + rng.standard_normal(n) * 1e-13
    return P * np.exp(-alpha), P * np.exp(alpha), t


def exact(low, high, t):
    """Return the largest mean: weights of the largest t at upper ends, others at lower ones, for each threshold."""
    low, high, t = ([Fraction(float(x)) for x in each] for each in (low, high, t))
    order = sorted(range(len(t)), key=lambda j: -t[j])
    found = []
    for raised in range(len(t) + 1):
        w = [(high if order.index(j) < raised else low)[j] for j in range(len(t))]
        if sum(w):
            found.append(sum(a * b for a, b in zip(w, t, strict=True)) / sum(w))
    return max(found)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_mean_is_that_of_fractions(seed):
    rng = np.random.default_rng(seed)
    for _ in range(60):
        low, high, t = drawn(rng, rng.integers(1, 8))
        found, wanted = largest_mean(t[None, :, None], low[None], high[None]).item(), exact(low, high, t)
        assert found >= wanted
        assert found - wanted < 1e-12 * np.abs(t).max(initial=1e-300)


def test_a_light_key_is_seen_past_a_heavy_one_that_lies_where_the_mean_does():
    """No step of Newton shows how far the light one moves a mean in which the heavy one may weigh less."""
    low, high, t = np.array([[1e-34, 1e-60]]), np.array([[1.0, 1e-26]]), np.array([[[0.25], [1.0]]])
    assert largest_mean(t, low, high).item() == pytest.approx(1.0, abs=1e-7)


def test_weights_that_may_all_be_zero_and_rows_without_weights():
    t = np.array([[[1.0], [2.0], [9.0]]] * 2)
    low, high = np.zeros((2, 3)), np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert largest_mean(t, low, high).ravel() == pytest.approx([2.0, 0.0], abs=1e-12)
    hidden = np.where(high[:1, :, None] > 0, t[:1], np.nan)
    assert largest_mean(hidden, low[:1], high[:1]).item() == pytest.approx(2.0)


def test_both_signs_and_what_numbers_are_moved_by():
    class Weights:
        low, high = np.array([[[[1.0, 1.0]]]]), np.array([[[[1.0, 3.0]]]])

    apart, r = np.array([[[[1.0, -2.0]]]]), np.array([[[[0.5, 0.25]]]])
    assert mean_error(Weights, apart, r).item() == pytest.approx((3 * 2.25 - 0.5) / 4)


@pytest.mark.parametrize("seed", range(4))
def test_a_share_is_largest_where_all_others_are_least(seed):
    rng = np.random.default_rng(seed)
    for _ in range(40):
        low, high, _ = drawn(rng, rng.integers(1, 8))
        least, most = shares(low[None], high[None])
        for j in range(len(low)):
            others = [k for k in range(len(low)) if k != j]
            lows, highs = (sum(Fraction(float(w[k])) for k in others) for w in (low, high))
            h, l = Fraction(float(high[j])), Fraction(float(low[j]))
            assert h / (h + lows) <= Fraction(float(most[0, j])) <= 1
            assert least[0, j] <= l / (l + highs)
            assert most[0, j] <= float(h / (h + lows)) * (1 + 1e-13)
            assert least[0, j] >= float(l / (l + highs)) * (1 - 1e-13)

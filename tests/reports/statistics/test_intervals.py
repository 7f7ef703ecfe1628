"""Confidence intervals: by hand, and how often they miss."""

import math

import numpy as np
import pytest
from attn_spec.reports.statistics import intervals


def test_the_interval_of_a_mean_by_hand():
    """Two draws 0 and 1: V = 1/2, N = 2, so 1/2 +- (sqrt(L / 2) + 7 L / 3), cut at 0 and 1."""
    L = math.log(4 / intervals.MISS)
    wide = intervals.of_mean(np.array([0.0, 1.0]), -1e3, 1e3)
    half = math.sqrt(L / 2) + 7 * L * 2e3 / 3

    assert wide == (max(0.5 - half, -1e3), min(0.5 + half, 1e3))
    assert intervals.of_mean(np.array([0.0, 1.0]), 0.0, 1.0) == (0.0, 1.0)
    low, high = intervals.of_mean(np.tile([0.0, 1.0], 50_000), 0.0, 1.0)
    assert high - 0.5 == pytest.approx(0.5 - low)
    assert high - 0.5 == pytest.approx(math.sqrt(2 * 0.25 * L / 1e5) + 7 * L / 3e5, rel=1e-4)


def test_the_interval_of_a_variance_by_hand():
    """100 draws of square 4: 400 / (100 + 2 sqrt(100 t) + 2 t), and 400 / (100 - 2 sqrt(100 t)) if that is above 0."""
    t = math.log(2 / intervals.MISS)
    low, high = intervals.of_variance(np.tile([2.0, -2.0], 50))

    assert (low, high) == pytest.approx((400 / (100 + 20 * math.sqrt(t) + 2 * t), 400 / (100 - 20 * math.sqrt(t))))
    assert intervals.of_variance(np.array([1.0, 2.0])) == (0.0, math.inf)


def test_intervals_miss_no_more_often_than_they_say(monkeypatch):
    monkeypatch.setattr(intervals, "MISS", 0.2)
    rng = np.random.default_rng(0)
    means = [intervals.of_mean(rng.random(40) < 0.3, 0.0, 1.0) for _ in range(500)]
    variances = [intervals.of_variance(2 * rng.standard_normal(40)) for _ in range(500)]

    assert sum(not low <= 0.3 <= high for low, high in means) <= 100
    assert 0 < sum(not low <= 4 <= high for low, high in variances) <= 100

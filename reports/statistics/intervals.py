"""Confidence intervals that hold for any number of draws, whatever else is true: no appeal to a limit.

Each misses the truth with probability at most ``MISS``, and t intervals together with at most t times that.
"""

from __future__ import annotations

import math

import numpy as np

#: The probability that one interval does not contain the truth.
MISS = 1e-6

Interval = tuple[float, float]


def of_mean(x: np.ndarray, lowest: float, highest: float) -> Interval:
    """Return an interval of the mean of independent draws ``x`` from [lowest, highest].

    mean +- (sqrt(2 V log(4 / MISS) / N) + 7 log(4 / MISS) (highest - lowest) / (3 (N - 1))), V the sample variance:
    Maurer and Pontil, arXiv 0907.3740, theorem 4, for both sides. The truth is within [lowest, highest] anyway.
    """
    N, x = x.size, x.astype(np.float64)
    log = math.log(4 / MISS)
    half = math.sqrt(2 * x.var(ddof=1) * log / N) + 7 * log * (highest - lowest) / (3 * (N - 1))
    mean = float(x.mean())
    return max(mean - half, lowest), min(mean + half, highest)


def of_variance(x: np.ndarray) -> Interval:
    """Return an interval of the variance of independent normal draws ``x`` of mean 0.

    sum x^2 / variance is chi-squared of N degrees. It is above N + 2 sqrt(N t) + 2 t, or below N - 2 sqrt(N t), with
    probability at most e^-t each: Laurent and Massart, Annals of Statistics 28 (2000), lemma 1. N <= 4 t draws give no
    upper end: it is inf.
    """
    N, squares = x.size, float(np.square(x.astype(np.float64)).sum())
    t = math.log(2 / MISS)
    least = N - 2 * math.sqrt(N * t)
    return (squares / (N + 2 * math.sqrt(N * t) + 2 * t), squares / least) if least > 0 else (0.0, math.inf)

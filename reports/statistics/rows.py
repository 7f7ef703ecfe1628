"""The statistics that are measured, a row each, and what a measurement of one is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flint import arb

from . import exact, intervals
from .intervals import Interval

#: A tanh unit is saturated where its derivative is below this.
SATURATED = 0.1


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number per draw, whose mean, or variance, is known exactly."""

    title: str
    #: The average that the statistic is, and over which draws.
    says: str
    #: Options and abilities that a kernel must declare.
    needs: tuple[str, ...]
    #: Axes that the statistic is drawn against, of d and n.
    against: tuple[str, ...]
    #: (n keys, standard deviation of scores) -> the truth.
    exact: Callable[[int, float], arb]
    #: (n keys) -> where every truth lies, whatever the kernel.
    range: Callable[[int], Interval]
    #: (readings, that range) -> where the truth lies with the stated probability.
    interval: Callable[[np.ndarray, Interval], Interval] = lambda x, ends: intervals.of_mean(x, *ends)
    #: (readings) -> the measured value.
    measured: Callable[[np.ndarray], float] = lambda x: float(x.astype(np.float64).mean())


#: Every statistic by name.
STATISTICS: dict[str, Statistic] = {
    "score_variance": Statistic(
        title="Variance of the scores",
        says="of a query and one key: the log-sum-exp of one score is the score",
        needs=("lse",),
        against=("d",),
        exact=lambda n, sigma: exact.score_variance(sigma),
        range=lambda n: (0.0, math.inf),
        interval=lambda x, ends: intervals.of_variance(x),
        measured=lambda x: float(np.square(x.astype(np.float64)).mean()),
    ),
    "entropy": Statistic(
        title="Entropy of the weights",
        says="in nats; values are the columns of an identity, of which the output is the weights",
        needs=(),
        against=("d", "n"),
        exact=exact.entropy,
        range=lambda n: (0.0, math.log(n)),
    ),
    "score_gradient": Statistic(
        title="Squared norm of the gradient of the scores",
        says="for gradients of the weights that are independent signs: that of the Jacobian of the softmax, read off "
        "dK, which is scale times dS times the query",
        needs=("backward",),
        against=("d", "n"),
        exact=exact.jacobian,
        # dS_j = P_j (g_j - g.P) for signs g; with p the weight of positive signs sum dS^2 is at most 8 (p (1 - p))^2.
        range=lambda n: (0.0, 0.5),
    ),
    "value_gradient": Statistic(
        title="Squared norm of the gradient of the values",
        says="for a gradient of the output of length 1: the sum of squared weights, 1 where one key has all the weight",
        needs=("backward",),
        against=("d", "n"),
        exact=lambda n, sigma: exact.power_sum(n, sigma, 2.0),
        range=lambda n: (0.0, 1.0),
    ),
    "head_distance": Statistic(
        title="How far apart the weights of two heads are",
        says="mean squared Hellinger distance, 1 - sum sqrt(P P'), over the pairs of a layer of four independent heads",
        needs=(),
        against=("d", "n"),
        exact=exact.head_distance,
        range=lambda n: (0.0, 1.0),
    ),
    "padding": Statistic(
        title="Weight of padding that no mask hides",
        says="what as many keys of zeros take as there are others: their values are 1, and those of the others 0",
        needs=(),
        against=("d", "n"),
        exact=exact.padding,
        range=lambda n: (0.0, 1.0),
    ),
    "saturation": Statistic(
        title="Saturated units of additive scores",
        says=f"share of tanh units whose derivative is below {SATURATED:g}; the log-sum-exp of one score is tanh",
        needs=("score_vector", "score_key_weight", "score_query_weight", "lse"),
        against=("d",),
        exact=lambda n, sigma: exact.saturation(sigma, SATURATED),
        range=lambda n: (0.0, 1.0),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One statistic of one kernel at one place, beside the truth."""

    statistic: str
    kernel: str
    dtype: str
    #: True if scores, or the arguments of tanh, are divided by sqrt(d).
    scaled: bool
    d: int
    n: int
    #: Standard deviation of the scores, or of what tanh is taken of.
    sigma: float
    draws: int
    measured: float
    #: Interval of this kernel's true value, with probability 1 - ``intervals.MISS``.
    low: float
    high: float
    #: The truth of attention: at least and at most.
    exact_low: float
    exact_high: float

    @property
    def agrees(self) -> bool:
        """Return whether the exact value may lie in the interval; False with NaN."""
        return self.low <= self.exact_high and self.exact_low <= self.high

    @property
    def tells(self) -> bool:
        """Return whether the interval is less than the whole range; too few draws leave the whole range."""
        lowest, highest = STATISTICS[self.statistic].range(self.n)
        return not (self.low <= lowest and self.high >= highest)

    def columns(self) -> dict[str, Any]:
        """Return the point as one flat record for JSON; non-finite numbers as strings."""
        record = asdict(self) | {"agrees": self.agrees, "tells": self.tells}
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}


def point(statistic: str, readings: np.ndarray, *, n: int, sigma: float, **where: Any) -> Point:
    """Return the point of a statistic that ``readings`` give; ``where`` are further fields of the point."""
    row = STATISTICS[statistic]
    with np.errstate(invalid="ignore"):  # NaN counts as a contradiction
        measured, (low, high) = row.measured(readings), row.interval(readings, row.range(n))
    truth = row.exact(n, sigma)
    return Point(
        statistic=statistic,
        n=n,
        sigma=sigma,
        draws=readings.size,
        measured=measured,
        low=low,
        high=high,
        exact_low=float(truth.lower()),
        exact_high=float(truth.upper()),
        **where,
    )

"""Means under weights that are known to lie in intervals: the largest of them, and how large each weight can be.

Let w_j lie in [l_j, h_j], whatever the others do. The mean sum w_j t_j / sum w_j is above X for some of these weights
if and only if F(X) = sum_j (h_j max(t_j - X, 0) - l_j max(X - t_j, 0)) is positive, since each summand w_j (t_j - X) is
largest at an end of its interval. F is continuous, convex and falls, so the largest mean is its root, and Newton's
steps X <- sum w t / sum w, with w_j = h_j where t_j > X and l_j elsewhere, rise to it in finitely many (Dinkelbach,
1967, Management Science 13, on fractional programs). Each step is a mean under weights of these intervals.

In float64 a step is off by a share m of the largest |t|. Where one heavy key has a t that close to X, F falls so
steeply that no step is seen, though light keys may move X far once it is past that t. So w_j is h_j where t_j > X + m.
When no such step rises any more, F(X + m) <= 0, and X + m is no less than the largest mean.

The share w_j / sum w of one weight is the mean of a t that is 1 at j and 0 elsewhere: it is largest, and smallest,
where w_j is at one end and all others are at the other.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from attn_spec.contract.terms import term, times

#: Newton's steps; where they have not come to an end the largest t stands for the largest mean.
STEPS = 64
#: Unit roundoff of float64, and how often the largest |t| is rounded by it, beside once for each weight.
U, ROUNDINGS = 2.0**-53, 16


class Intervals(Protocol):
    """The ends of the intervals of weights, [.., Sq, Sk], relative to one number of each row."""

    @property
    def low(self) -> np.ndarray: ...
    @property
    def high(self) -> np.ndarray: ...


@np.errstate(all="ignore")
def largest_mean(t: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the largest sum w t / sum w over weights between ``low`` and ``high`` [rows, n], for t [rows, n, columns].

    Weights are 0 or more, and a row's are relative to anything. The result [rows, columns] is rounded up: a sum of n
    terms is off by n U of the sum of their sizes, so a mean by less than 4 n U of the largest |t|. A row whose weights
    may all be 0 has the largest t of those that need not be; 0 where all must.
    """
    count, possible = t.shape[1], high > 0
    scale = np.where(possible, high, 0.0).max(axis=-1, keepdims=True, initial=0.0)
    low, high = (np.where(possible, w / scale, 0.0)[:, None, :] for w in (low, high))
    t = np.where(possible[..., None], t, 0.0)
    most = np.where(possible[..., None], t, -np.inf).max(axis=1, initial=-np.inf)
    most = np.where(np.isneginf(most), 0.0, most)
    further, of_low, least = (
        term("weights at the upper ends of their intervals", high - low),
        (low @ t)[:, 0],
        low.sum(axis=-1),
    )
    X = np.where(least > 0, of_low / least, -np.inf)
    m = (4 * count + ROUNDINGS) * U * np.abs(t).max(axis=1, initial=0.0)
    for _ in range(STEPS):
        above = (t > (X + term("values that are close to a mean", m))[:, None, :]).astype(np.float64)
        total = least + (further @ above)[:, 0]
        step = np.where(total > 0, (of_low + (further @ (t * above))[:, 0]) / total, most)
        if not np.any(step > X):
            break
        X = np.fmax(X, step)
    else:
        X = most
    return np.where(np.isnan(X), np.inf, np.minimum(X, most) + term("the evaluation of a mean", 2 * m))


@np.errstate(all="ignore")
def mean_error(weights: Intervals, apart: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return the largest size of a mean of ``apart`` +- ``r`` [.., Sq, Sk] under each row's weights, [.., Sq, 1]."""
    rows, n = math.prod(apart.shape[:-1]), apart.shape[-1]
    flat = [np.broadcast_to(x, apart.shape).reshape(rows, n) for x in (weights.low, weights.high, apart, r)]
    low, high, apart_, r_ = flat
    both = (
        largest_mean((sign * apart_ + term("errors of what a mean is made of", r_))[..., None], low, high)
        for sign in (1.0, -1.0)
    )
    return np.maximum(*both).reshape(*apart.shape[:-1], 1)


@np.errstate(all="ignore")
def shares(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and largest w_j / sum w for weights between ``low`` and ``high`` [.., n]; 0 if all may be 0."""
    scale = high.max(axis=-1, keepdims=True, initial=0.0)
    low, high = (np.where(scale > 0, w / scale, 0.0) for w in (low, high))
    least, most = (
        low / (low + _of_others(term("other weights in the least share", high, low))),
        high / (high + _of_others(term("other weights in the largest share", low, high))),
    )
    rounded = (4 * low.shape[-1] + ROUNDINGS) * U
    least = np.where(low > 0, np.maximum(least * times("the evaluation of the least share", 1 - rounded), 0.0), 0.0)
    return least, np.where(
        high > 0, np.minimum(most * times("the evaluation of the largest share", 1 + rounded), 1.0), 0.0
    )


def _of_others(w: np.ndarray) -> np.ndarray:
    """Return the sum of all other weights of a row: the sum before a weight plus the sum after it; nothing cancels."""
    before, after = np.zeros(w.shape), np.zeros(w.shape)
    np.cumsum(w[..., :-1], axis=-1, out=before[..., 1:])
    after[..., :-1] = np.cumsum(w[..., :0:-1], axis=-1)[..., ::-1]
    return before + after

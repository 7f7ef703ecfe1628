"""The probability of a keep mask, if each weight is kept with probability q, independently of the others.

Of n such weights K are kept. On either side of q (Hoeffding 1963, J. Amer. Statist. Assoc. 58, theorem 1, (2.1))

    P(K / n is at least as far from q as a, on its side) <= exp(-n D(a, q))
    D(a, q) = a log(a / q) + (1 - a) log((1 - a) / (1 - q))

Two weights agree, both kept or both dropped, with probability q^2 + (1 - q)^2, and pairs agree independently if no
weight is in two of them. Where a mask is compared with itself, moved, a weight is in two pairs; every second pair of a
chain makes a class without a common weight, and one of both classes is at least as far from its mean as the whole.
All tests of one mask together reject it with probability at most :data:`FALSE_ALARM`, by the union bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

#: Largest probability that a mask of independent weights is rejected by one test or more.
FALSE_ALARM = 1e-12
#: Names of the axes of masks [C, B, Hq, Sq, Sk] of several calls.
AXES = ("call", "batch entry", "head", "query", "key")
#: Fewer trials reject nothing: 64 that all come out alike are too likely, but for q near 1/2.
FEWEST = 64


@dataclass(frozen=True, eq=False)
class Counts:
    """Numbers of successes among trials of one chance, and which trials these are."""

    count: np.ndarray
    number: np.ndarray
    chance: float
    #: Says of an index which trials are counted there.
    what: Callable[[tuple[int, ...]], str]
    #: Into how many classes the trials fall, each of independent ones and of equal size but for one.
    classes: int = 1

    @property
    def told(self) -> np.ndarray:
        """Return which counts are of enough trials."""
        return self.number // self.classes >= FEWEST

    @property
    def surprise(self) -> np.ndarray:
        """Minus the logarithm of a bound on the probability of something as far from the mean, on its side."""
        a, q = self.count / np.maximum(self.number, 1), self.chance
        return self.number // self.classes * _divergence(a, q) - math.log(self.classes)


@dataclass(frozen=True)
class Finding:
    """The least likely of several counts."""

    #: Ratio of the mask's surprise to the least one that rejects it.
    ratio: float
    text: str


def least_likely(found: Iterable[Counts]) -> Finding:
    """Return the least likely of counts that are tested together."""
    found = list(found)
    tests = max(2 * sum(int(one.told.sum()) for one in found), 1)
    worst = max(found, key=lambda one: float(np.max(one.surprise, where=one.told, initial=0.0)))
    surprises = np.where(worst.told, worst.surprise, 0.0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(surprises)), surprises.shape))
    log10 = min((math.log(tests) - surprises[at]) / math.log(10), 0.0)
    text = (
        f"{worst.what(at)}: {int(worst.count[at])} of {int(worst.number[at])}, where a share of {worst.chance:.4g} is "
        f"expected; independent weights do so with probability at most 1e{math.ceil(log10)}"
    )
    return Finding(float(surprises[at] / math.log(tests / FALSE_ALARM)), text)


def shares(kept: np.ndarray, seen: np.ndarray, q: float) -> Iterator[Counts]:
    """Count the weights kept of the whole, and of each call, head, row, column ..: for every choice of axes.

    ``kept`` and ``seen``, what is visible at all, are numbers of weights [C, B, Hq, Sq, Sk], or bool for one each.
    """
    for size in range(len(AXES)):
        for axes in combinations(range(len(AXES)), size):
            others = tuple(axis for axis in range(len(AXES)) if axis not in axes)
            yield Counts((kept * seen.astype(bool)).sum(others), seen.sum(others), q, partial(_part, axes))


def likenesses(kept: np.ndarray, seen: np.ndarray, q: float) -> Iterator[Counts]:
    """Count the weights that agree between any two calls, batch entries, heads, queries or keys, all else being equal.

    ``kept`` and ``seen`` are bool [C, B, Hq, Sq, Sk], here and below.
    """
    for axis, length in enumerate(kept.shape):
        halves = [np.moveaxis(x & seen, axis, 0).reshape(length, -1).astype(np.float32) for x in (kept, ~kept)]
        agreed, both = (x @ x.T for x in (np.hstack(halves), halves[0] + halves[1]))
        apart = np.triu(np.ones((length, length)), 1)  # float32 holds these counts exactly, below 2^24
        yield Counts(agreed * apart, both * apart, _chance_of_agreement(q), partial(_pair, axis))


def translations(kept: np.ndarray, seen: np.ndarray, q: float) -> Iterator[Counts]:
    """Count the weights that agree between the first head and any head moved by any number of queries and keys.

    The heads of all batch entries and calls. What a counter of random numbers gives twice is found so.
    """
    rows, columns = kept.shape[3:]
    sides = (2 * rows, 2 * columns)
    signs, ones = (np.fft.rfft2(x, s=sides) for x in (np.where(seen, 2.0 * kept - 1, 0.0), seen.astype(float)))
    total, number = (np.rint(np.fft.irfft2(np.conj(x[0, 0, 0]) * x, s=sides)) for x in (signs, ones))
    agreed, itself = (number + total) / 2, np.zeros(kept.shape[:3], dtype=bool)
    itself[0, 0, 0] = True
    number[0, 0, 0, 0, 0] = 0  # not moved at all
    for mine, classes in ((itself, 2), (~itself, 1)):
        where = mine[..., None, None]
        said = partial(_translation, sides)
        yield Counts(agreed * where, number * where, _chance_of_agreement(q), said, classes)


def _divergence(a: np.ndarray, q: float) -> np.ndarray:
    """D(a, q)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        kept, dropped = a * np.log(a / q), (1 - a) * np.log((1 - a) / (1 - q))
    return np.where(a > 0, kept, 0.0) + np.where(a < 1, dropped, 0.0)


def _chance_of_agreement(q: float) -> float:
    return q * q + (1 - q) * (1 - q)


def _part(axes: tuple[int, ...], at: tuple[int, ...]) -> str:
    named = [f"{AXES[axis]} {place}" for axis, place in zip(axes, at, strict=True)]
    return f"weights kept of {', '.join(named) or 'all'}"


def _pair(axis: int, at: tuple[int, ...]) -> str:
    return f"weights that agree of {AXES[axis]} {at[0]} and of {AXES[axis]} {at[1]}"


def _translation(sides: tuple[int, int], at: tuple[int, ...]) -> str:
    moved = [step - side if step >= side // 2 else step for step, side in zip(at[3:], sides, strict=True)]
    named = ", ".join(f"{axis} {place}" for axis, place in zip(AXES, at[:3], strict=False))
    return f"weights that agree of the first head and, {moved[0]} queries and {moved[1]} keys on, of {named}"

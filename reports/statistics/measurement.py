"""Statistics read off the answers of a kernel to random inputs.

Entries of keys are normal; queries are normal too, and then scaled to length sqrt(d) (``exact`` gives the reason);
signs of values are even. All are rounded to the dtype of the kernel, as its answer is. By the bound of a kernel in
tiles, these roundings move no mean by a millionth of its interval in float64, nor by an eighth in float32. Each head is
a draw of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from attn_spec.evidence.report import ReportError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

from .rows import SATURATED, STATISTICS, Point, point

#: Dtypes whose roundings do not change the statistics.
DTYPES = ("float64", "float32")
#: Head dimensions d at ``FIXED_KEYS`` keys, and numbers of keys n at ``FIXED_DIM``.
DIMS, KEYS = (4, 16, 64, 256), (2, 8, 32, 128)
FIXED_DIM, FIXED_KEYS = 64, 32
#: Heads of a layer.
HEADS = 4
#: Entries of k in one call.
AT_ONCE = 2**21

#: Purposes of draws, each with a generator of its own.
PURPOSES = ("queries", "keys", "values", "key weights", "query weights")

Readings = dict[str, np.ndarray]
Generators = dict[str, np.random.Generator]


class StatisticsError(ReportError):
    """Statistics cannot be measured; the text says why and what to do next."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place of measurement: head dimension, number of keys, and whether scores are divided by sqrt(d)."""

    d: int
    n: int
    scaled: bool

    @property
    def sigma(self) -> float:
        """Standard deviation of the scores."""
        return 1.0 if self.scaled else math.sqrt(self.d)

    @property
    def scale(self) -> float | None:
        """None is 1/sqrt(d)."""
        return None if self.scaled else 1.0


def left_out(subject: Subject) -> dict[str, str]:
    """Return the statistics that a kernel does not show, with the reasons."""
    always = subject.kernel.limits.always
    reasons = {}
    for name, row in STATISTICS.items():
        needed = (*row.needs, "cross") if "n" in row.against else row.needs
        lacking = [need for need in needed if not subject.supports(need)]
        if other := [option for option in always if option not in row.needs]:
            reasons[name] = f"it always uses {', '.join(other)}"
        elif lacking:
            reasons[name] = f"it does not declare {', '.join(lacking)}"
    return reasons


def points(subject: Subject, draws: int, seed: int) -> Iterator[Point]:
    """Return every statistic that a kernel shows, at every place. Raises :class:`StatisticsError`."""
    shown = [name for name in STATISTICS if name not in left_out(subject)]
    if not shown:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out(subject).items())
        raise StatisticsError(f"{subject.kernel.name} shows none of the statistics: {reasons}. Give another kernel")
    draws = taken(subject, draws)
    try:
        for place in places(subject, shown):
            where = {"kernel": subject.kernel.name, "dtype": subject.dtype, "scaled": place.scaled, "d": place.d}
            wanted = [name for name in shown if _belongs(subject, place, name)]
            for name, found in readings(subject, place, draws, seed, wanted).items():
                yield point(name, found, n=place.n, sigma=place.sigma, **where)
    except (Misbehaviour, NotTaken) as error:
        raise StatisticsError(f"{subject.kernel.name} gives no answer: {error}. Certify it first") from error


def taken(subject: Subject, draws: int) -> int:
    """Return the number of heads to draw for ``draws``: fewer for a slow kernel, and whole layers."""
    return max(int(draws / subject.kernel.slowness) // HEADS, 2) * HEADS


def places(subject: Subject, shown: Sequence[str]) -> list[Place]:
    """Return the places that a kernel takes, at each of which some statistic of ``shown`` is measured."""
    limits = subject.kernel.limits
    taken = limits.query_dims or DIMS
    dims = [d for d in DIMS if d in taken] or list(taken)
    fixed = min(dims, key=lambda d: abs(d - FIXED_DIM))
    pairs = dict.fromkeys([(d, fixed_keys(subject)) for d in dims] + [(fixed, _taken(subject, n)) for n in KEYS])
    every = [Place(d=d, n=n, scaled=scaled) for d, n in pairs for scaled in (True, False)]
    return [place for place in every if any(_belongs(subject, place, name) for name in shown)]


def _belongs(subject: Subject, place: Place, name: str) -> bool:
    """Return whether a statistic is measured at a place; those of products need a kernel that takes the scale."""
    row = STATISTICS[name]
    takes_scale = place.scaled or "score_vector" in row.needs or subject.supports("scale")
    return takes_scale and ("n" in row.against or place.n == fixed_keys(subject))


def fixed_keys(subject: Subject) -> int:
    """Return the number of keys at which d varies."""
    return _taken(subject, FIXED_KEYS)


def _taken(subject: Subject, n: int) -> int:
    """Return the next number of keys that a kernel takes."""
    step = subject.kernel.limits.step("K")
    return -(-n // step) * step


def readings(subject: Subject, place: Place, draws: int, seed: int, wanted: Sequence[str]) -> Readings:
    """Return one number for each draw, or for each layer, of every statistic ``wanted``.

    Each purpose has a generator, so that all kernels and both scales see the same draws. These depend neither on the
    other statistics wanted nor on the number of draws.
    """
    rng = {one: np.random.default_rng([seed, place.d, place.n, index]) for index, one in enumerate(PURPOSES)}
    layers, at_once = draws // HEADS, max(AT_ONCE // (place.d * place.n * HEADS), 1)
    parts = [_of_layers(subject, place, min(at_once, layers - done), rng, wanted) for done in range(0, layers, at_once)]
    return {name: np.concatenate([part[name] for part in parts]) for name in wanted}


def _of_layers(subject: Subject, place: Place, layers: int, rng: Generators, wanted: Sequence[str]) -> Readings:
    """Return the readings of some layers."""
    lead, found = (layers, HEADS), Readings()
    q = rng["queries"].standard_normal((*lead, 1, place.d))
    k = rng["keys"].standard_normal((*lead, place.n, place.d))
    q, k = (bits.nearest(x, subject.dtype) for x in (_of_length(q, math.sqrt(place.d)), k))
    if "score_variance" in wanted:
        found["score_variance"] = _lse(subject, q, k, scale=place.scale)
    if "entropy" in wanted:
        P = _weights(subject, q, k, place.scale)
        with np.errstate(invalid="ignore"):  # a wrong kernel may give weights below 0
            found["entropy"] = -np.where(P == 0, 0.0, P * np.log(np.where(P == 0, 1.0, P))).sum(axis=-1).ravel()
            pairs = [1 - np.sqrt(P[:, g] * P[:, h]).sum(axis=-1) for g, h in combinations(range(HEADS), 2)]
        found["head_distance"] = np.mean(pairs, axis=0)
    if "padding" in wanted:
        found["padding"] = _padding(subject, q, k, place.scale)
    if "score_gradient" in wanted:
        signs = rng["values"].choice((-1.0, 1.0), size=(*lead, place.n, 1))
        # dO is 0 in all columns but one, so that the other columns of the values do not matter.
        signs = np.broadcast_to(signs, (*signs.shape[:-1], _value_dim(subject, place.d, 1)))
        dS, P = _gradients(subject, q, k, signs, place.scale)
        found |= {"score_gradient": _squares(dS), "value_gradient": _squares(P)}
    if "saturation" in wanted:
        tanh = _tanh(subject, q, k, rng, scaled=place.scaled)
        found["saturation"] = (1 - tanh**2 < SATURATED).astype(np.float64)
    return found


def _of_length(x: np.ndarray, length: float) -> np.ndarray:
    return x * (length / np.sqrt(np.square(x).sum(axis=-1, keepdims=True)))


def _squares(x: np.ndarray) -> np.ndarray:
    return np.square(x).sum(axis=-1).ravel()


def _value_dim(subject: Subject, d: int, wanted: int) -> int:
    """Return ``wanted`` if the kernel takes any value dimension, else d."""
    return (
        wanted
        if subject.supports("dv") and subject.kernel.limits.widths is None
        else subject.kernel.limits.value_dim(d)
    )


def _lse(subject: Subject, q: np.ndarray, k: np.ndarray, **options: Any) -> np.ndarray:
    """Return the score of each query and the first key: the log-sum-exp of m equal scores less log m.

    m is the least number of keys that the kernel takes.
    """
    m, unit = _taken(subject, 1), subject.conventions.lse_unit
    k = np.repeat(k[:, :, :1], m, axis=2)
    answer = subject(Problem(q=q, k=k, v=np.zeros_like(k), dtypes=subject.dtype, **options))
    return answer["lse"].astype(np.float64).ravel() * unit - math.log(m)


def _weights(subject: Subject, q: np.ndarray, k: np.ndarray, scale: float | None) -> np.ndarray:
    """Return P [.., H, n], by as many calls as the columns of an identity take."""
    n, d = k.shape[2:]
    width = _value_dim(subject, d, n)
    parts = []
    for first in range(0, n, width):
        v = np.broadcast_to(np.eye(n, width, -first), (*k.shape[:3], width))
        answer = subject(Problem(q=q, k=k, v=v, dtypes=subject.dtype, scale=scale))
        parts.append(answer["output"].astype(np.float64)[:, :, 0])
    return np.concatenate(parts, axis=-1)[..., :n]


def _padding(subject: Subject, q: np.ndarray, k: np.ndarray, scale: float | None) -> np.ndarray:
    """Return the weight of n keys of zeros after the n keys, which no mask hides."""
    n, d = k.shape[2:]
    v = np.broadcast_to((np.arange(2 * n) >= n)[:, None], (*k.shape[:2], 2 * n, _value_dim(subject, d, 1)))
    k = np.concatenate([k, np.zeros_like(k)], axis=2)
    answer = subject(Problem(q=q, k=k, v=v.astype(np.float64), dtypes=subject.dtype, scale=scale))
    return answer["output"].astype(np.float64)[..., 0].ravel()


def _gradients(
    subject: Subject, q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return dS and the first column of dV, both [.., H, n], for a dO of first unit vectors: that column is P."""
    dO = np.broadcast_to(np.eye(1, v.shape[-1]), (*q.shape[:3], v.shape[-1]))
    found = subject.gradients(Problem(q=q, k=k, v=v, dtypes=subject.dtype, scale=scale), dO, wrt=("k", "v"))
    length = np.square(q).sum(axis=-1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    dS = (found["dk"].astype(np.float64) * q).sum(axis=-1) / length
    return dS, found["dv"].astype(np.float64)[..., 0]


def _tanh(subject: Subject, q: np.ndarray, k: np.ndarray, rng: Generators, *, scaled: bool) -> np.ndarray:
    """Return tanh(W1 k + W2 q) of one unit, of inputs of length sqrt(d) and 2 d normal weights.

    Of variance 1 / (2 d), tanh is taken of N(0, 1) (LeCun et al., "Efficient BackProp" (1998), section 4.6); of
    variance 1/2, of N(0, d).
    """
    d = q.shape[-1]
    k, deviation = bits.nearest(_of_length(k, math.sqrt(d)), subject.dtype), 1 / math.sqrt(2 * d if scaled else 2)
    rows = (rng[side].standard_normal(q.shape) * deviation for side in ("key weights", "query weights"))
    W1, W2 = (bits.nearest(row, subject.dtype) for row in rows)
    return _lse(subject, q, k, score_vector=np.ones((1, 1, 1, 1)), score_key_weight=W1, score_query_weight=W2)

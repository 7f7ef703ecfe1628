"""The sample of rows of a long problem, and the probability that it misses a defect of some rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import MASK
from attn_spec.problem.problem import Problem

#: Lengths of tiles at whose edges rows are sampled.
TILES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
#: Share of all rows that a defect hits, in the probability that reports give.
TOLD = 0.01


class SampleError(ValueError):
    """A number of sampled rows, or of keys, is not a positive integer."""


@dataclass(frozen=True)
class RowSample:
    """Sample of rows of each head: half by strata, where defects are frequent, and half at random.

    Strata are the first and last rows, rows at the edges of tiles, and rows with the longest and shortest query. Rows
    with the largest and smallest log-sum-exp are added if it is known, and rows that see the most and the fewest keys.
    """

    #: Number of rows of each head; a head with no more rows is judged at all of them.
    rows: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("rows", self.rows)

    def of(self, head: Problem, number: int, lse: np.ndarray | None = None) -> Sampled:
        """Return the sampled rows of one head [1, 1, ..], the ``number``-th of all; ``lse`` [Sq] is given if it is
        known.
        """
        n = head.query_length
        if n <= self.rows:
            return Sampled(np.arange(n), drawn=n, of=n)
        rng = np.random.default_rng([self.seed, number])
        return drawn_beside(self._strata(head, lse, rng), self.rows, n, rng)

    def _strata(self, head: Problem, lse: np.ndarray | None, rng: np.random.Generator) -> list[int]:
        """Return the rows of all strata, in the order in which they are taken."""
        n, few = head.query_length, max(self.rows // 32, 1)
        found = [0, n - 1, 1, n - 2]
        ranked = [np.linalg.norm(head.q[0, 0], axis=-1)] + ([] if lse is None else [lse])
        for sizes in ranked:
            found += extremes(sizes, few)
        return [*found, *_longest_and_shortest(head, rng, few), *tile_edges(n, rng, few)]


@dataclass(frozen=True)
class Sampled:
    """Rows, or keys, of one head, in order."""

    index: np.ndarray
    #: Number of them drawn at random, at least; equal for all heads of one length, whatever the strata.
    drawn: int
    #: Number of rows, or keys, of the head.
    of: int

    @property
    def is_whole(self) -> bool:
        """True if the sample holds all rows."""
        return len(self.index) == self.of

    @property
    def share_drawn(self) -> Fraction:
        """Share of the head's rows, or keys, that were drawn at random; 1 if it has none."""
        return Fraction(self.drawn, self.of) if self.of else Fraction(1)


def check_count(name: str, count: object) -> None:
    """Raise :class:`SampleError` unless ``count``, a number of rows or keys, is a positive integer."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SampleError(f"{name} must be an integer of 1 or more, not {count!r}")


def drawn_beside(strata: Sequence[int], count: int, n: int, rng: np.random.Generator) -> Sampled:
    """Return ``count`` of n places: up to half are the first that the strata name, and the rest are random."""
    chosen = list(dict.fromkeys(int(place) for place in strata))[: count // 2]
    others = np.setdiff1d(np.arange(n), sorted(chosen))
    drawn = rng.choice(others, count - len(chosen), replace=False)
    return Sampled(np.sort([*chosen, *drawn]).astype(np.intp), drawn=count - count // 2, of=n)


def missed(share: float, drawn: int) -> float:
    """Return an upper bound on the probability that no drawn row is among the ``share`` of all rows that a defect hits.

    Head i has n_i of all N rows, of which r_i are drawn without replacement, and a defect hits d_i of them. No drawn
    row is hit with a probability of at most prod (1 - d_i / n_i)^r_i. With r_i >= c n_i for each head, that is at most
    (1 - share)^(c N), however the hit rows are spread over heads: log(1 - x) is concave (Jensen). ``drawn`` is c N
    rounded down: all that are drawn, if heads have one length. The bound holds for keys too.
    Raises ValueError for a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share of rows must be between 0 and 1, not {share!r}")
    return (1 - share) ** drawn


def chance(share: float, drawn: int) -> str:
    """Return :func:`missed` in words, rounded up to one digit."""
    found = max(missed(share, drawn), 1e-300)
    digit = 10.0 ** math.floor(math.log10(found))
    most = math.ceil(found / digit) * digit
    return f"a defect in {100 * share:g} % of them is missed with a probability of {most:.1g} at most"


def extremes(sizes: np.ndarray, few: int) -> list[int]:
    """Return the places of the ``few`` smallest and the ``few`` largest of some sizes."""
    order = np.argsort(sizes, kind="stable")
    return [*order[:few], *order[-few:]]


def tile_edges(n: int, rng: np.random.Generator, few: int) -> list[int]:
    """Return the places on both sides of some edges of tiles, for each tile length."""
    edges = [edge for tile in TILES for edge in _some(np.arange(tile, n, tile), rng, 2 * few)]
    return [place for edge in edges for place in (edge - 1, edge)]


def _some(rows: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """Return at most ``count`` rows: the first, the last, and others at random."""
    if len(rows) <= count:
        return rows
    inner = rng.choice(rows[1:-1], max(count - 2, 0), replace=False)
    return np.array([rows[0], rows[-1], *inner])[:count]


def _longest_and_shortest(head: Problem, rng: np.random.Generator, few: int) -> list[int]:
    """Return rows that see the most and the fewest keys, among random rows and rows that masks of tensors suggest."""
    counts = _seen_by_tensors(head)
    order = np.argsort(counts, kind="stable")
    looked_at = np.unique([*order[: 4 * few], *order[-4 * few :], *_some(np.arange(head.query_length), rng, 16 * few)])
    seen = head.rows(looked_at).visible[0, 0].sum(axis=-1)
    ranked = looked_at[np.argsort(seen, kind="stable")]
    return [*ranked[:few], *ranked[-few:]]


def _seen_by_tensors(head: Problem) -> np.ndarray:
    """Return an upper bound on the number of keys that each row sees, from the masks that are tensors, [Sq]."""
    least = np.full(head.query_length, head.key_length)
    for name, row in OPTIONS.items():
        value = getattr(head, name)
        if row.kind == MASK and row.tensor and row.sees is not None and row.is_used(value) and value.shape[2] > 1:
            seen = row.sees(head)[0, 0].sum(axis=-1)
            least = np.minimum(least, seen * (head.key_length if value.shape[3] == 1 else 1))
    return least

"""Masks as predicates on (query, key), with an algebra.

A mask answers, for query index i of Sq and key index j of Sk, whether i may attend to j. Masks combine with
``&``, ``|`` and ``~``; ``dense`` turns one into the boolean matrix that the definition and the kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: (i, j, Sq, Sk) -> bool array; i and j are broadcastable index arrays.
Predicate = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]

ALIGNMENTS = ("top_left", "bottom_right")


@dataclass(frozen=True)
class Mask:
    """A predicate with a name; the name is the mask's repr."""

    name: str
    allows: Predicate

    def __and__(self, other: Mask) -> Mask:
        return Mask(f"({self.name} & {other.name})", lambda *at: self.allows(*at) & other.allows(*at))

    def __or__(self, other: Mask) -> Mask:
        return Mask(f"({self.name} | {other.name})", lambda *at: self.allows(*at) | other.allows(*at))

    def __invert__(self) -> Mask:
        return Mask(f"~{self.name}", lambda *at: ~self.allows(*at))

    def __repr__(self) -> str:
        return self.name

    def dense(self, query_length: int, key_length: int) -> np.ndarray:
        """The boolean matrix [Sq, Sk]; True means attend."""
        i = np.arange(query_length)[:, None]
        j = np.arange(key_length)[None, :]
        allowed = self.allows(i, j, query_length, key_length)
        return np.broadcast_to(allowed, (query_length, key_length)).copy()


def diagonal_offset(alignment: str, query_length: int, key_length: int) -> int:
    """Key index that query 0 is aligned with: 0 (top_left) or Sk - Sq (bottom_right)."""
    return key_length - query_length if alignment == "bottom_right" else 0


def band(distance: np.ndarray, left: int | None, right: int | None) -> np.ndarray:
    """Mask of distances from the diagonal between -left and right, both inclusive; None is unbounded."""
    low = distance >= -left if left is not None else np.full(distance.shape, True)
    return low & (distance <= right) if right is not None else low


def everything() -> Mask:
    """Every query attends to every key."""
    return Mask("everything()", lambda i, j, sq, sk: np.ones(np.broadcast_shapes(i.shape, j.shape), bool))


def causal(alignment: str = "top_left") -> Mask:
    """No key after the query: j <= i + offset."""
    return Mask(f"causal({alignment!r})", lambda i, j, sq, sk: j <= i + diagonal_offset(alignment, sq, sk))


def window(left: int | None, right: int | None, alignment: str = "top_left") -> Mask:
    """A band around the diagonal, both ends inclusive: -left <= j - (i + offset) <= right; None is unbounded."""

    def allows(i: np.ndarray, j: np.ndarray, sq: int, sk: int) -> np.ndarray:
        return band(j - (i + diagonal_offset(alignment, sq, sk)), left, right)

    return Mask(f"window({left}, {right}, {alignment!r})", allows)


def padding(length: int) -> Mask:
    """Only the first ``length`` keys exist."""
    return Mask(f"padding({length})", lambda i, j, sq, sk: (j < length) & (i >= 0))


def strided(stride: int, near: int = 1, alignment: str = "top_left") -> Mask:
    """The keys nearer than ``near``, and every ``stride``-th one from the diagonal, on both sides of it.

    With ``near = stride`` both heads of Child et al., "Generating long sequences with sparse transformers" (arXiv
    1904.10509), section 4.3, in one mask; with 1, the second of them.
    """

    def allows(i: np.ndarray, j: np.ndarray, sq: int, sk: int) -> np.ndarray:
        distance = j - (i + diagonal_offset(alignment, sq, sk))
        return (np.abs(distance) < near) | (distance % stride == 0)

    return Mask(f"strided({stride}, {near}, {alignment!r})", allows)


def blocks(size: int, seen: Sequence[Sequence[int]]) -> Mask:
    """Queries and keys in blocks of ``size``: which blocks of keys (columns) each block of queries (rows) sees."""
    table = np.asarray(seen, dtype=bool)
    return Mask(f"blocks({size}, {table.astype(int).tolist()})", lambda i, j, sq, sk: table[i // size, j // size])


def document(query_ids: Sequence[int], key_ids: Sequence[int]) -> Mask:
    """Packed sequences: a query sees the keys of its own document."""
    q, k = np.asarray(query_ids), np.asarray(key_ids)
    return Mask(f"document({list(query_ids)}, {list(key_ids)})", lambda i, j, sq, sk: q[i] == k[j])

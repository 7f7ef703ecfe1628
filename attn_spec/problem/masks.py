"""Masks as predicates on (query, key), with an algebra.

A mask says, for query index i of Sq and key index j of Sk, whether i may attend to j. Masks combine with ``&``, ``|``
and ``~``; ``dense`` turns a mask into the boolean matrix that the definition and the kernels read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

#: Function (i, j, Sq, Sk) -> bool array; i and j are broadcastable index arrays.
Predicate = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]

ALIGNMENTS = ("top_left", "bottom_right")


@dataclass(frozen=True)
class Mask:
    """A predicate on (query, key) with a name; the name is the mask's repr."""

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
        """Return the boolean matrix [Sq, Sk] of the mask; True means that the query attends to the key."""
        i = np.arange(query_length)[:, None]
        j = np.arange(key_length)[None, :]
        allowed = self.allows(i, j, query_length, key_length)
        return np.broadcast_to(allowed, (query_length, key_length)).copy()


def diagonal_offset(alignment: str, query_length: int, key_length: int) -> int:
    """Return the index of the key that query 0 is aligned with: 0 (top_left) or Sk - Sq (bottom_right)."""
    return key_length - query_length if alignment == "bottom_right" else 0


def band(distance: np.ndarray, left: int | None, right: int | None) -> np.ndarray:
    """Return True for distances from the diagonal between -left and right, both inclusive; None is unbounded."""
    low = distance >= -left if left is not None else np.full(distance.shape, True)
    return low & (distance <= right) if right is not None else low


def in_window(distance: np.ndarray, keys: np.ndarray, sides: tuple[int | None, int | None], sinks: int) -> np.ndarray:
    """Return True for keys inside a window, and for the first ``sinks`` keys, which its left edge does not mask.

    ``distance`` [.., Sq, n] is that of the ``keys`` from the diagonal. ``keys`` [.., n] count from the first key of a
    sequence. The right edge masks the first keys too.
    """
    left, right = sides
    return (band(distance, left, None) | (keys < sinks)) & band(distance, None, right)


def in_chunk(aligned: np.ndarray, keys: np.ndarray, size: int) -> np.ndarray:
    """Return True for ``keys`` [.., n] in the chunk of the key that each query is aligned with, [.., Sq, 1].

    Both count from the first key of a sequence, where chunks of ``size`` keys start. Quotients are rounded down, not
    towards 0: a query that is aligned with a place before key 0 is in another chunk than key 0.
    """
    return keys // size == aligned // size


def everything() -> Mask:
    """Return the mask in which every query attends to every key."""
    return Mask("everything()", lambda i, j, sq, sk: np.ones(np.broadcast_shapes(i.shape, j.shape), bool))


def causal(alignment: str = "top_left") -> Mask:
    """Return the causal mask, in which query i attends to the keys j <= i + offset of the diagonal."""
    return Mask(f"causal({alignment!r})", lambda i, j, sq, sk: j <= i + diagonal_offset(alignment, sq, sk))


def window(left: int | None, right: int | None, alignment: str = "top_left", sinks: int = 0) -> Mask:
    """Return the mask of a band around the diagonal: -left <= j - (i + offset) <= right.

    Both ends are inclusive; None is unbounded. The left end does not mask the first ``sinks`` keys.
    """

    def allows(i: np.ndarray, j: np.ndarray, sq: int, sk: int) -> np.ndarray:
        return in_window(j - (i + diagonal_offset(alignment, sq, sk)), j, (left, right), sinks)

    also = f", {sinks}" if sinks else ""
    return Mask(f"window({left}, {right}, {alignment!r}{also})", allows)


def chunked(size: int, alignment: str = "top_left") -> Mask:
    """Return the mask of chunks of ``size`` keys: a query sees the chunk of the key i + offset that it is aligned with.

    Source: Llama 4, whose layers with rotary positions attend so (``attention_chunk_size``).
    """

    def allows(i: np.ndarray, j: np.ndarray, sq: int, sk: int) -> np.ndarray:
        return in_chunk(i + diagonal_offset(alignment, sq, sk), j, size)

    return Mask(f"chunked({size}, {alignment!r})", allows)


def padding(length: int) -> Mask:
    """Return the mask in which every query attends to the first ``length`` keys only."""
    return Mask(f"padding({length})", lambda i, j, sq, sk: (j < length) & (i >= 0))


def strided(stride: int, near: int = 1, alignment: str = "top_left") -> Mask:
    """Return the mask of the keys nearer than ``near`` and of every ``stride``-th key, before and after the diagonal.

    Source: Child et al., "Generating long sequences with sparse transformers" (arXiv 1904.10509), section 4.3. With
    ``near = stride`` the mask joins both heads of that section; with ``near = 1`` it is the second head.
    """

    def allows(i: np.ndarray, j: np.ndarray, sq: int, sk: int) -> np.ndarray:
        distance = j - (i + diagonal_offset(alignment, sq, sk))
        return (np.abs(distance) < near) | (distance % stride == 0)

    return Mask(f"strided({stride}, {near}, {alignment!r})", allows)


def blocks(size: int, seen: Sequence[Sequence[int]]) -> Mask:
    """Return the mask of blocks of ``size`` queries and keys; block r sees block c of keys if ``seen[r][c]``."""
    table = np.asarray(seen, dtype=bool)
    return Mask(f"blocks({size}, {table.astype(int).tolist()})", lambda i, j, sq, sk: table[i // size, j // size])


def document(query_ids: Sequence[int], key_ids: Sequence[int]) -> Mask:
    """Return the mask of packed sequences, in which a query attends to the keys with its own document id.

    A negative id is padding: such a query sees no key, and no query sees such a key.
    """
    q, k = np.asarray(query_ids), np.asarray(key_ids)
    name = f"document({list(query_ids)}, {list(key_ids)})"
    return Mask(name, lambda i, j, sq, sk: (q[i] == k[j]) & (k[j] >= 0))


def ancestors(parents: np.ndarray) -> np.ndarray:
    """Return which nodes of a tree are a node itself or its ancestors, bool [n, n], a row for each node.

    ``parents`` [n] are integers: each is a node before its child, or -1 for a root.
    """
    found = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            found[node] |= found[parent]
    return found


def drafts(parents: np.ndarray, first: int, key_length: int) -> np.ndarray:
    """Return the keys that each node of a tree of drafts attends to, bool [n, Sk].

    Node i is the key ``first`` + i. It attends to all keys before ``first``, to itself and to its ancestors, and to no
    key behind the tree. Source: SpecInfer (arXiv 2305.09781), tree attention. ``first`` is below 0 if the tree has more
    nodes than there are keys; the keys are then the last nodes.
    """
    found = np.zeros((len(parents), key_length), dtype=bool)
    start = min(max(first, 0), key_length)
    stop = min(max(first + len(parents), start), key_length)
    found[:, :start] = True
    found[:, start:stop] = ancestors(parents)[:, start - first : stop - first]
    return found

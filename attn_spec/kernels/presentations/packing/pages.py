"""Pages of a cache: keys and values lie in pages of equal size, and a table lists the pages of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.kernels.presentations.packing import packed_descales, slots
from attn_spec.kernels.presentations.packing.places import Further, Places, integers
from attn_spec.kernels.presentations.packing.slots import Slots
from attn_spec.kernels.presentations.placement import Placement, used
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Pages(Places):
    """Keys and values in caches [pages, page size, Hkv, D].

    ``seqused_k``, int32 [B], is the number of keys of each sequence. Key j is in the page ``block_table[b, j // size]``
    at the place j % size; the table is int32 [B, ..]. Pages lie in an order of chance, which follows from the shapes of
    a problem. Pages of no sequence are poison, and so is what lies behind the last key in its page. Behind the pages of
    each sequence the table has a tail that nobody needs.
    """

    side: str = "k"
    axes: tuple[str, ...] = ("pages", "size", "H", "D")
    #: True if a number that is at least the largest length is passed, ``max_seqlen_k``.
    states_longest: bool = True
    #: True if the call appends the last keys of each sequence, as many as it has queries: two sequences share no pages
    #: that these are written to.
    appended: bool = False

    @property
    def says_where(self) -> tuple[str, ...]:
        return ("block_table", "seqused_k", *(("max_seqlen_k",) if self.states_longest else ()))

    def has_tails(self, placement: Placement) -> bool:
        del placement
        return True

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        size = self.size(problem, placement)
        return (problem.batch * -(-problem.key_length // size) + 2, size)

    def size(self, problem: Problem, placement: Placement) -> int:
        """Return the number of keys of a page for a problem."""
        return placement.choice(problem, placement.page_sizes, "page size")

    def further(self, problem: Problem, placement: Placement) -> Further:
        table, needed = self.drawn(problem, placement)
        found = self.stated(problem, placement, table, needed)
        if self.states_longest:
            found["max_seqlen_k"] = placement.stated_longest(problem, "k")
        return found

    def stated(self, problem: Problem, placement: Placement, table: np.ndarray, needed: np.ndarray) -> Further:
        """Return the arguments that list the pages of each sequence: the first ``needed`` [B] in its row of a table.

        A table is wider than the longest sequence needs, unless the placement of the problem is tight.
        """
        width = max(int(needed.max(initial=0)), 1) if placement.is_tight(problem) else table.shape[1]
        return {"block_table": table[:, :width].astype(np.int32), "seqused_k": used(problem, "k").astype(np.int32)}

    def drawn(self, problem: Problem, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
        """Return a table of pages [B, ..], with a tail behind those of each sequence, and how many each one needs.

        Each row is longer by one page than the longest sequence could need.
        """
        pages, size = self.pool(self.buffer(problem, placement))
        most = -(-problem.key_length // size)
        order = placement.chance(problem, "pages").permutation(pages)
        own = order[: problem.batch * most].reshape(problem.batch, most)
        needed = -(-used(problem, "k") // size)
        if placement.shares_pages:
            appended = problem.query_length if self.appended else 0
            own = _sharing(problem, own, size, appended, packed_descales.of_slots(problem, placement))
        stale = np.roll(np.append(own, np.full((problem.batch, 1), order[-2]), axis=1), 1, axis=0)
        tails = {"nobody": order[-1], "stale": stale, "minus_one": -1, "largest": np.iinfo(np.int32).max}
        tail = tails[placement.choice(problem, placement.tails, "table tail")]
        longer = np.append(own, np.full((problem.batch, 1), order[-1]), axis=1)
        return np.where(np.arange(most + 1) < needed[:, None], longer, tail).astype(np.int64), needed

    def pool(self, buffer: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of pages and their size, from the lengths of the axes of slots."""
        pages, size = buffer
        return pages, size

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        table, lengths = self.pages(buffer, arguments)
        return slots.paged(table, lengths, int(lengths.max(initial=0)) if most is None else most, *self.pool(buffer))

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pages [B, ..] and the number of keys [B] of each sequence, as the arguments of a call say."""
        del buffer
        return integers(arguments["block_table"]), integers(arguments["seqused_k"])


@dataclass(frozen=True, kw_only=True)
class ListedPages(Pages):
    """Keys and values in caches whose pages are listed in compressed rows.

    Sequence b has the pages ``kv_indices[kv_indptr[b] : kv_indptr[b + 1]]``, and ``kv_last_page_len[b]`` of the keys in
    the last one, from 1 to the size of a page. A sequence without pages has that size there, so that one formula gives
    every length: the size times the number of pages less one, and the length of the last page. Without an axis of a
    page, pages have one key, and ``kv_last_page_len`` is not passed. All three are int32.
    """

    states_longest: bool = False

    @property
    def has_sizes(self) -> bool:
        """True if a page may have several keys."""
        return "size" in self.axes

    @property
    def says_where(self) -> tuple[str, ...]:
        return ("kv_indptr", "kv_indices", *(("kv_last_page_len",) if self.has_sizes else ()))

    def has_tails(self, placement: Placement) -> bool:
        return not placement.tight

    def size(self, problem: Problem, placement: Placement) -> int:
        return super().size(problem, placement) if self.has_sizes else 1

    def buffer(self, problem: Problem, placement: Placement) -> tuple[int, ...]:
        return super().buffer(problem, placement)[: 2 if self.has_sizes else 1]

    def pool(self, buffer: tuple[int, ...]) -> tuple[int, int]:
        return super().pool(buffer if self.has_sizes else (*buffer, 1))

    def stated(self, problem: Problem, placement: Placement, table: np.ndarray, needed: np.ndarray) -> Further:
        found = self.listed(table, needed, tight=placement.is_tight(problem))
        if self.has_sizes:
            size = self.size(problem, placement)
            lengths = used(problem, "k") - np.maximum(needed - 1, 0) * size
            found["kv_last_page_len"] = np.where(needed > 0, lengths, size).astype(np.int32)
        return found

    def listed(self, table: np.ndarray, needed: np.ndarray, *, tight: bool) -> Further:
        """Return the lists of the first ``needed`` [B] pages in each row of a table; more follow unless ``tight``."""
        rows = [row[:count] for row, count in zip(table, needed, strict=True)]
        tail = table[:0, -1] if tight else table[:, -1]  # no sequence needs the last column
        return {
            "kv_indptr": np.concatenate([[0], np.cumsum(needed)]).astype(np.int32),
            "kv_indices": np.concatenate([*rows, tail]).astype(np.int32),
        }

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        bounds, listed = integers(arguments["kv_indptr"]), integers(arguments["kv_indices"])
        needed = np.diff(bounds)
        columns = np.arange(int(needed.max(initial=0)) + 1)
        if not len(listed):
            return np.zeros((len(needed), len(columns)), dtype=np.int64), needed
        places = np.minimum(bounds[:-1, None] + columns, len(listed) - 1)
        return listed[places], self.lengths(needed, buffer, arguments)

    def lengths(self, needed: np.ndarray, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        """Return the number of keys of each sequence, integers [B], from how many pages each one needs."""
        _, size = self.pool(buffer)
        last = integers(arguments["kv_last_page_len"]) if self.has_sizes else 1
        return np.where(needed > 0, (needed - 1) * size + last, 0)


@dataclass(frozen=True, kw_only=True)
class CountedPages(ListedPages):
    """Listed pages beside which ``kv_len_arr``, int32 [B], is the number of keys of each sequence."""

    @property
    def says_where(self) -> tuple[str, ...]:
        return ("kv_indptr", "kv_indices", "kv_len_arr")

    def stated(self, problem: Problem, placement: Placement, table: np.ndarray, needed: np.ndarray) -> Further:
        found = self.listed(table, needed, tight=placement.is_tight(problem))
        found["kv_len_arr"] = used(problem, "k").astype(np.int32)
        return found

    def lengths(self, needed: np.ndarray, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> np.ndarray:
        del needed, buffer
        return integers(arguments["kv_len_arr"])


@dataclass(frozen=True, kw_only=True)
class ListedSlots(Pages):
    """Keys and values in caches [pages, page size, ..] whose slots are listed one by one, for each sequence.

    Sequence b has the keys in the slots ``sparse_indices[b]``, int32 [B, ..], behind the last of which stands -1. The
    slot of a key is the number of its page times the size of a page, and the place in it. So one query sees any keys of
    the cache that an indexer has chosen for it, as in DeepSeek-V3.2, and two queries may see the same keys.
    """

    states_longest: bool = False

    @property
    def says_where(self) -> tuple[str, ...]:
        return ("sparse_indices",)

    def has_tails(self, placement: Placement) -> bool:
        del placement
        return False

    def pool(self, buffer: tuple[int, ...]) -> tuple[int, int]:
        """Return the number of slots, each of which is listed as if it were a page of one key."""
        pages, size = buffer
        return pages * size, 1

    def stated(self, problem: Problem, placement: Placement, table: np.ndarray, needed: np.ndarray) -> Further:
        del problem, placement
        listed = np.where(np.arange(table.shape[1]) < needed[:, None], table, -1)
        return {"sparse_indices": listed[:, :-1].astype(np.int32)}  # no sequence needs the last column

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        del buffer
        listed = integers(arguments["sparse_indices"])
        return listed, (listed >= 0).sum(axis=1)


def _sharing(problem: Problem, own: np.ndarray, size: int, appended: int, descales: Sequence[np.ndarray]) -> np.ndarray:
    """Return a table [B, ..] in which full pages of equal keys and values at the beginning of sequences are the same.

    Their ``descales`` [B, Hkv, Sk, 1], which lie in pages too, are equal there.
    ``own`` has pages of each sequence that no other one has. Pages of the last ``appended`` keys of a sequence stay its
    own.
    """
    tensors = [problem.k, problem.v, *descales]
    shared = own.copy()
    ends = used(problem, "k") - appended
    for entry in range(1, problem.batch):
        for other in range(entry):
            both = min(int(ends[entry]), int(ends[other]))
            unequal = [np.any(x[entry, :, :both] != x[other, :, :both], axis=(0, 2)) for x in tensors]
            differs = np.flatnonzero(np.any(unequal, axis=0))
            full = (int(differs[0]) if len(differs) else both) // size
            shared[entry, :full] = shared[other, :full]
    return shared

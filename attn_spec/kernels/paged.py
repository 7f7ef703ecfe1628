"""Paged calls: keys and values lie in pages of a cache, and a table lists the pages of each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.kernels import placement, slots
from attn_spec.kernels.packed import Packed, integers
from attn_spec.kernels.slots import Slots
from attn_spec.problem.problem import Problem

#: Keys of a page, one of which the shapes of a problem choose.
PAGE_SIZES = (16, 1, 4, 3)


@dataclass(frozen=True, kw_only=True)
class Paged(Packed):
    """Packed queries, and keys and values in caches [pages, page size, Hkv, D].

    ``seqused_k``, int32 [B], is the number of keys of each sequence. Key j is in the page ``block_table[b, j // size]``
    at the place j % size; the table is int32 [B, ..]. Pages lie in an order of chance, which follows from the shapes of
    a problem. Pages of no sequence are poison, and so is what lies behind the last key in its page. The table names a
    page of no sequence behind the pages of each one.
    """

    says_where: tuple[str, ...] = ("cu_seqlens_q", "block_table", "seqused_k", "max_seqlen_q", "max_seqlen_k")

    def buffer(self, problem: Problem, side: str) -> tuple[int, ...]:
        if side == "q":
            return super().buffer(problem, side)
        size = PAGE_SIZES[placement.one_of(problem, len(PAGE_SIZES), "page size")]
        return (problem.batch * -(-problem.key_length // size) + 2, size)

    def further(self, problem: Problem) -> dict[str, int | np.ndarray]:
        found = super().further(problem)
        del found["cu_seqlens_k"]
        pages, size = self.buffer(problem, "k")
        most = -(-problem.key_length // size)
        order = placement.chance(problem, "pages").permutation(pages)
        own = np.append(
            order[: problem.batch * most].reshape(problem.batch, most), np.zeros((problem.batch, 1)), axis=1
        )
        needed = -(-problem.end_keys // size)
        table = np.where(np.arange(most + 1) < needed[:, None], own, order[-1])
        found["block_table"], found["seqused_k"] = table.astype(np.int32), problem.end_keys.astype(np.int32)
        return found

    def slots(self, side: str, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        if side == "q":
            return super().slots(side, buffer, arguments, most)
        table, lengths = self.pages(buffer, arguments)
        return slots.paged(table, lengths, int(lengths.max(initial=0)) if most is None else most, *buffer)

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the pages [B, ..] and the number of keys [B] of each sequence, as the arguments of a call say."""
        del buffer
        return integers(arguments["block_table"]), integers(arguments["seqused_k"])

"""Mutants of paged calls: sound kernels that read the pages of a cache wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_spec.kernels.pages import Pages
from attn_spec.kernels.slots import Slots

from .lengths import ALONE
from .packed import packed_mutant

#: Pages [B, ..] and number of keys [B] of each sequence.
Table = tuple[np.ndarray, np.ndarray]


@packed_mutant(source="hw-native-sys/pypto#470", named_by=ALONE, presentation="paged")
class NeighbouringPages(Pages):
    """The pages of a sequence are assumed to follow its first page."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return (table[:, :1] + np.arange(table.shape[1])) % buffer[0], lengths


@packed_mutant(source="ROCm/aiter#2996, ROCm/aiter#2997", named_by=ALONE, presentation="paged")
class PageSizeOne(Pages):
    """The table of pages is read as one of keys."""

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        found = super().slots(buffer, arguments, most)
        table, _ = self.pages(buffer, arguments)
        columns = np.minimum(np.arange(found.of.shape[1]), table.shape[1] - 1)
        return Slots(found.count, np.where(found.of < 0, -1, table[:, columns]))


@packed_mutant(
    source="made up: strides of the two leading axes of a cache swapped", named_by=ALONE, presentation="paged"
)
class PageAndPlaceSwapped(Pages):
    """The number of a page and the place of a key in it are swapped."""

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        found = super().slots(buffer, arguments, most)
        pages, size = buffer
        page, place = np.divmod(found.of, size)
        return Slots(found.count, np.where(found.of < 0, -1, place * pages + page))


@packed_mutant(source="made up: a last page without a mask of its own", named_by=ALONE, presentation="paged")
class LastPageReadWhole(Pages):
    """The last page of a sequence is read to its end."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return table, -(-lengths // buffer[1]) * buffer[1]


@packed_mutant(source="made up: the row of the table of the entry before", named_by=ALONE, presentation="paged")
class PagesOfAnotherSequence(Pages):
    """A sequence has the pages of the sequence before it in the batch."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return np.roll(table, 1, axis=0), lengths


@packed_mutant(source="made up: max_seqlen_k keys of each table", named_by=ALONE, presentation="paged")
class LongestForEachTable(Pages):
    """Each sequence has as many keys in its pages as max_seqlen_k states."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return table, np.full(lengths.shape, min(arguments["max_seqlen_k"], table.shape[1] * buffer[1]))


@packed_mutant(source="made up: one page past the end of a sequence", named_by=ALONE, presentation="paged")
class CachePageTooMany(Pages):
    """A sequence has one page more than its keys need."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return table, np.minimum(lengths + buffer[1], table.shape[1] * buffer[1])


@packed_mutant(source="made up: a cache taken for packed keys", named_by=ALONE, presentation="paged")
class PoolReadInOrder(Pages):
    """The pages of the pool are given to the sequences in order, whatever the table says."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        needed = -(-lengths // buffer[1])
        first = np.cumsum(needed) - needed
        last = buffer[0] - 1
        return np.minimum(first[:, None] + np.arange(table.shape[1]), last), lengths

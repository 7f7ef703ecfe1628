"""Mutants of paged calls: sound kernels that read the pages of a cache wrongly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.pages import ListedPages, Pages
from attn_spec.kernels.presentations.packing.slots import Slots

from .lengths import ALONE, BESIDE_SHORT, TILE
from .packed import packed_mutant

ORDER = "placement.pages_may_lie_in_any_order"
SIZE = "placement.pages_may_have_any_size"
TAIL = "placement.what_a_table_has_behind_the_last_page_changes_nothing"
SHARED = "placement.sequences_may_share_pages"

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


@packed_mutant(source="made up: a last column that is taken for padding", named_by=ALONE, presentation="paged")
class LastColumnOfTheTableLost(Pages):
    """No page in the last column of a table is read, if the table has several."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        columns = max(table.shape[1] - 1, 1)
        return table[:, :columns], np.minimum(lengths, columns * buffer[1])


@packed_mutant(source="made up: the row of the table of the entry before", named_by=ALONE, presentation="paged")
class PagesOfAnotherSequence(Pages):
    """A sequence has the pages of the sequence before it in the batch."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return np.roll(table, 1, axis=0), lengths


@packed_mutant(source="meta-pytorch/attention-gym#189, the class", named_by=BESIDE_SHORT, presentation="paged")
class PageByBatchSlot(Pages):
    """Rows of the table are counted over sequences with keys, as if those without had no slot of the batch."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        slot = np.cumsum(lengths > 0) - (lengths > 0)
        return table[slot], lengths


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


@packed_mutant(source="made up: pages read in the order of the cache", named_by=ORDER, presentation="paged")
class PagesInTheOrderOfTheCache(Pages):
    """The pages of a sequence are read in the order in which they lie in the cache."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        needed = -(-lengths // buffer[1])
        behind = np.arange(table.shape[1]) >= needed[:, None]
        return np.sort(np.where(behind, buffer[0], table), axis=1) % buffer[0], lengths


@packed_mutant(source="tile-ai/TileOPs#1268", named_by=SIZE, presentation="paged")
class TileInsideOnePage(Pages):
    """The keys of a tile are read one behind the other, from the page of the first one on."""

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        found = super().slots(buffer, arguments, most)
        j = np.arange(found.of.shape[1])
        read = found.of[:, j // TILE * TILE] + j % TILE
        return Slots(found.count, np.where(found.of < 0, -1, read % found.count))


@packed_mutant(source="vllm-project/vllm#42494", named_by=TAIL, presentation="paged")
class TailOfTheTableRead(Pages):
    """The last key of a page is looked for in the next page of the table, which may be none of the sequence's."""

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        found = super().slots(buffer, arguments, most)
        table, _ = self.pages(buffer, arguments)
        pages, size = buffer
        j = np.arange(found.of.shape[1])
        next_page = table[:, np.minimum((j + 1) // size, table.shape[1] - 1)]
        return Slots(found.count, np.where(found.of < 0, -1, next_page % pages * size + j % size))


@packed_mutant(source="meta-pytorch/attention-gym#189", named_by=SHARED, presentation="paged")
class PageOfOneSequence(Pages):
    """A page belongs to the last sequence that lists it, and is none of the others'."""

    def slots(self, buffer: tuple[int, ...], arguments: Mapping[str, Any], most: int | None = None) -> Slots:
        found = super().slots(buffer, arguments, most)
        of = found.of.copy()
        for entry in range(len(of) - 1):
            of[entry, np.isin(of[entry], of[entry + 1 :])] = -1
        return Slots(found.count, of)


@packed_mutant(
    source="made up: HND read as NHD, as with another kv_layout of FlashInfer", named_by=ALONE, presentation="paged_hnd"
)
class HeadsBehindPlaces(Pages):
    """The heads of a page are looked for behind its places."""

    def flat(self, axes: Sequence[str], x: Any) -> Any:
        del axes
        pages, heads, size, D = x.shape
        return x.reshape(pages * size, heads, D)


@packed_mutant(source="made up: a full last page counted as an empty one", named_by=ALONE, presentation="paged_csr")
class FullLastPageEmpty(ListedPages):
    """The length of a last page is taken modulo the size of a page."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        last = arguments["kv_last_page_len"].numpy()
        return table, np.where((lengths > 0) & (last == buffer[1]), lengths - buffer[1], lengths)


@packed_mutant(source="made up: slots of a pool taken in order", named_by=ALONE, presentation="token_pool")
class PoolOfTokensInOrder(ListedPages):
    """The keys of a sequence are assumed to follow its first one in the pool."""

    def pages(self, buffer: tuple[int, ...], arguments: Mapping[str, Any]) -> Table:
        table, lengths = super().pages(buffer, arguments)
        return (table[:, :1] + np.arange(table.shape[1])) % buffer[0], lengths


@packed_mutant(source="ROCm/aiter#3698", named_by=ALONE, presentation="decode_paged")
class ValuesByTheWidthOfKeys(Packed):
    """A page of values is looked for as far from the first one as a page of keys is."""

    def read(self, name: str, x: Any, /, **arguments: Any) -> Any:
        if name == "v":
            pages, size, heads, D = arguments["k"].shape
            first = np.minimum(np.arange(pages) * size * heads * D, x.numel() - x[0].numel())
            inside = np.arange(x[0].numel())
            x = x.reshape(-1)[first[:, None] + inside].reshape(x.shape)
        return super().read(name, x, **arguments)


@packed_mutant(
    source="made up: a cache [pages, 2, ..] read as one of [2, pages, ..]", named_by=ALONE, presentation="paged_joined"
)
class ValuesBehindAllKeys(Packed):
    """The values of a joined cache are looked for behind the keys of all pages."""

    def member(self, name: str, x: Any) -> Any:
        if name == "q":
            return x
        return x.reshape(x.shape[1], x.shape[0], *x.shape[2:])["kv".index(name)]

"""Mutants of block maps: masked, partial or full blocks of queries by keys, and the blocks that are visited.

Blocks are of 16 queries by 16 keys, a tile. A map is made where there is a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.tile import Tile

from .mutants import mutant

SPARSE = "masking.sparse_masks_give_dense_attention_under_them"
MASKED = "masking.masked_keys_change_nothing"
#: Queries, and keys, of a block.
SIZE = 16


class BlockSparse(TiledAttention):
    """A kernel that decides by blocks; what it counts is [B, Hq, blocks of queries, blocks of keys]."""

    #: Pairs of query and key that the map knows to be visible, bool [B, Hq, Sq, Sk].
    mapped: Any = None

    def visible(self, cols: np.ndarray) -> np.ndarray:
        if self.mask is None:
            return super().visible(cols)
        if self.mapped is None:
            seen = super().visible(np.arange(self.Sk))
            self.mapped = self.decided(seen)
        return self.option_tile(self.mapped, cols) & self.in_bounds(cols)

    def decided(self, seen: np.ndarray) -> np.ndarray:
        """Return the visible pairs once blocks are masked, or taken for full."""
        return seen

    def counted(self, seen: np.ndarray) -> np.ndarray:
        """Count the visible pairs of each block."""
        rows, cols = (np.arange(0, n, SIZE) for n in (self.Sq, self.Sk))
        return np.add.reduceat(np.add.reduceat(seen, rows, axis=2, dtype=int), cols, axis=3)

    def of_pairs(self, blocks: np.ndarray) -> np.ndarray:
        """Expand values of blocks to their queries and keys."""
        return blocks.repeat(SIZE, axis=2).repeat(SIZE, axis=3)[:, :, : self.Sq, : self.Sk]


@mutant(source="made up: a block is kept where more than one score is", named_by=SPARSE)
class BlockOfOneKeyHidden(BlockSparse):
    """A block with one visible pair of a query and a key counts as masked."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        return seen & self.of_pairs(self.counted(seen) > 1)


@mutant(source="made up: a block is full if all but one of its scores are", named_by=MASKED)
class BlockOfOneHoleFull(BlockSparse):
    """A block with one masked pair counts as full: all its pairs are visible."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        hidden = self.counted(~seen)
        return seen | self.of_pairs((hidden == 1) & (self.counted(seen) > 0))


@mutant(source="made up: a mask looked up at one corner of each block", named_by=SPARSE)
class BlockJudgedByItsCorner(BlockSparse):
    """A block counts as visible if its first query sees its first key, else as masked."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        return self.of_pairs(seen[:, :, ::SIZE, ::SIZE])


@mutant(source="LMCache/LMCache#3092", named_by=SPARSE)
class RaggedQueriesSkipped(BlockSparse):
    """The map has a row for each whole block of queries: queries after the last whole block see no key."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        whole = max(self.Sq // SIZE, 1) * SIZE
        return seen & (np.arange(self.Sq) < whole)[:, None]


@mutant(source="made up: the number of blocks of keys rounded down", named_by=SPARSE)
class RaggedKeysSkipped(BlockSparse):
    """Under a mask the keys after the last whole block are not visited."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        return seen & (np.arange(self.Sk) < max(self.Sk // SIZE, 1) * SIZE)


@mutant(source="made up: a map in one dimension, whose rows are taken for one block shorter", named_by=SPARSE)
class BlockMapRowShort(BlockSparse):
    """The map is read with one block a row too few: only whole blocks are counted."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        count = self.counted(seen)
        *_, rows, cols = count.shape
        at = np.arange(rows)[:, None] * max(self.Sk // SIZE, 1) + np.arange(cols)
        flat = count.reshape(*count.shape[:2], -1)
        return seen & self.of_pairs(flat[..., np.minimum(at, rows * cols - 1)] > 0)


@mutant(source="made up: one map for all heads, of a mask that each has its own of", named_by=SPARSE)
class BlockMapOfFirstHead(BlockSparse):
    """Blocks that the first head does not see are masked for all heads."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        of_first = self.counted(seen[:, :1]) > 0
        return seen & self.of_pairs(of_first)


@mutant(source="made up: a map stored by blocks of keys and read by blocks of queries", named_by=SPARSE)
class BlockMapTransposed(BlockSparse):
    """A square map is read with rows and columns exchanged."""

    def decided(self, seen: np.ndarray) -> np.ndarray:
        count = self.counted(seen)
        square = count.shape[2] == count.shape[3]
        return seen & self.of_pairs((count.swapaxes(2, 3) if square else count) > 0)


@mutant(source="made up: a list of blocks read beyond its length, where it is filled up with zeros", named_by=SPARSE)
class ListOfBlocksOverrun(BlockSparse):
    """Queries with fewer visible blocks than others visit the first block once more, if they see it."""

    def tiles(self) -> Iterator[Tile]:
        every = list(super().tiles())
        yield from every
        if self.mask is None or len(every) < 2:
            return
        number = (self.counted(self.mapped) > 0).sum(axis=3, keepdims=True)
        overrun = number < number.max(axis=2, keepdims=True)
        (first,) = (tile for tile in every if tile.cols[0] == 0)
        seen = first.visible & overrun.repeat(SIZE, axis=2)[:, :, : self.Sq]
        yield Tile(first.cols, self.array(seen), is_last=False)

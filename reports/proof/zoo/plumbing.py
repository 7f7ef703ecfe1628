"""Mutants of indices, strides and scheduling: right formulas on wrong elements, or not always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.tile import Tile
from attn_spec.kernels.frameworks.framework import values_of

from .mutants import mutant


def packed(tensor: Any) -> np.ndarray:
    """Return the values in memory from the tensor's first element on; zeros past the end of the storage."""
    stored = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    count = min(tensor.numel(), stored)
    values = np.zeros(tensor.numel())
    values[:count] = values_of(tensor.as_strided((count,), (1,)))
    return values.reshape(tensor.shape)


@mutant(
    source="HazyResearch/HipKittens#22, XunhaoLai/native-sparse-attention-triton#27",
    named_by="permutation.grouped_heads_equal_repeated_heads",
)
class HeadModuloKvHeads(TiledAttention):
    """Query head h reads kv head h mod Hkv."""

    def map_kv_head(self) -> np.ndarray:
        return np.arange(self.q.shape[1]) % self.k.shape[1]


@mutant(source="XunhaoLai/native-sparse-attention-triton#27", named_by="permutation.kv_heads_carry_their_groups_along")
class HeadDividedByKvHeads(TiledAttention):
    """Query head h reads kv head h // Hkv, right only where the group is as large as the number of kv heads."""

    def map_kv_head(self) -> np.ndarray:
        kv_heads = self.k.shape[1]
        return np.arange(self.q.shape[1]) // kv_heads % kv_heads


@mutant(
    source="pytorch/pytorch#181133, huggingface/candle#3703",
    named_by="independence.the_layout_in_memory_has_no_influence",
)
class AssumesPacked(TiledAttention):
    """Elements are addressed as if every tensor were packed, whatever its strides."""

    def read(self, tensor: Any) -> np.ndarray:
        return packed(tensor)


@mutant(source="pytorch/pytorch#163597, pytorch/pytorch#112577", named_by="independence.expanded_views_are_read_right")
class StrideOfZeroMissed(TiledAttention):
    """Strides are respected, but a tensor expanded with stride 0 is read as if it were packed."""

    def read(self, tensor: Any) -> np.ndarray:
        return packed(tensor) if 0 in tensor.stride() else super().read(tensor)


@mutant(
    source="Dao-AILab/flash-attention#1766, Dao-AILab/flash-attention#746",
    named_by="independence.equal_calls_give_equal_answers",
)
class OrderChanges(TiledAttention):
    """Tiles are merged in another order at every call, although equal bits are declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        shift = next(self.calls) % max(len(tiles), 1)
        yield from tiles[shift:] + tiles[:shift]


@mutant(
    source="Dao-AILab/flash-attention#1570, ml-explore/mlx#3573",
    named_by="independence.a_batch_entry_alone_gives_its_answer",
)
class TilesChosenByBatch(TiledAttention):
    """The order of tiles depends on the batch size, although independence of the batch is declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        yield from tiles[::-1] if self.q.shape[0] > 1 else tiles


@mutant(
    source="made up: a reduction over one axis too many", named_by="independence.batch_companions_have_no_influence"
)
class MaximumOfBatch(TiledAttention):
    """One maximum is subtracted from the scores of the whole batch: legal until it underflows."""

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        return np.broadcast_to(super().tile_max(s).max(axis=0, keepdims=True), (*s.shape[:-1], 1))


@mutant(source="Dao-AILab/flash-attention#414", named_by=None, conventions={"deterministic": False})
class AtomicOrder(OrderChanges):
    """Tiles are merged in another order at every call, and no equal bits are declared."""

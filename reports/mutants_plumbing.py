"""Mutants of indices, strides and scheduling: right formulas on wrong elements, or not always the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from attn_spec import bits

from .emulated import Tile, TiledAttention
from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
DETERMINISM = "purity.equal_calls_give_equal_bits"

_calls = itertools.count()


@mutant(
    source="HazyResearch/HipKittens#22, XunhaoLai/native-sparse-attention-triton#27", named_by="permutation.kv_groups"
)
class HeadModuloKvHeads(TiledAttention):
    """Query head h reads kv head h mod Hkv."""

    def map_kv_head(self) -> np.ndarray:
        return np.arange(self.q.shape[1]) % self.k.shape[1]


@mutant(source="XunhaoLai/native-sparse-attention-triton#27", named_by="permutation.kv_groups")
class HeadDividedByKvHeads(TiledAttention):
    """Query head h reads kv head h // Hkv, right only where the group is as large as the number of kv heads."""

    def map_kv_head(self) -> np.ndarray:
        kv_heads = self.k.shape[1]
        return np.arange(self.q.shape[1]) // kv_heads % kv_heads


@mutant(source="XunhaoLai/native-sparse-attention-triton#27, pytorch/pytorch#133495", named_by=OUTPUT)
class ValuesCutAtHeadDim(TiledAttention):
    """Columns of V beyond the head dimension are not loaded."""

    def load_v(self) -> np.ndarray:
        return np.where(np.arange(self.Dv) < self.D, super().load_v(), 0.0)


@mutant(source="pytorch/pytorch#181133, huggingface/candle#3703", named_by="layout.strides")
class AssumesContiguous(TiledAttention):
    """Elements are addressed as if every tensor were packed, whatever its strides."""

    def read(self, tensor: Any) -> np.ndarray:
        packed = tensor.new_empty(tensor.shape).stride()
        enough = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return bits.values_of(tensor.as_strided(tensor.shape, packed) if tensor.numel() <= enough else tensor)


@mutant(source="Dao-AILab/flash-attention#1766, Dao-AILab/flash-attention#746", named_by=DETERMINISM)
class OrderChanges(TiledAttention):
    """Tiles are merged in another order at every call, although equal bits are declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        shift = next(_calls) % max(len(tiles), 1)
        yield from tiles[shift:] + tiles[:shift]


@mutant(source="Dao-AILab/flash-attention#1570, ml-explore/mlx#3573", named_by="independence.batch")
class TilesChosenByBatch(TiledAttention):
    """The order of tiles depends on the batch size, although independence of the batch is declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        yield from tiles[::-1] if self.q.shape[0] > 1 else tiles


@mutant(source="Dao-AILab/flash-attention#414", named_by=None, conventions={"deterministic": False})
class AtomicOrder(OrderChanges):
    """Tiles are merged in another order at every call, and no equal bits are declared."""

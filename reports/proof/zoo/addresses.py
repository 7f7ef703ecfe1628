"""Mutants that compute rightly with the wrong elements: offsets, heads, batch entries, a buffer used again."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"


@mutant(source="fla-org/flash-linear-attention#1080, Dao-AILab/flash-attention#1500", named_by=OUTPUT)
class ElementOffsetWraps(TiledAttention):
    """Offsets of elements of q, k and v are stored in 12 bits, a scale model of 32."""

    def read(self, tensor: Any) -> np.ndarray:
        values = super().read(tensor)
        return values.reshape(-1)[np.arange(values.size) % 2**12].reshape(values.shape)


@mutant(source="facebookresearch/xformers#719", named_by=MAXIMA)
class KeyIndexWraps(TiledAttention):
    """Indices of keys are stored in 6 bits when K is read, a scale model of 16, and whole when V is."""

    def load_k(self) -> np.ndarray:
        return super().load_k() if self.Sk <= 2**6 else self.load(self.k[:, :, np.arange(self.Sk) % 2**6])


@mutant(source="flagos-ai/FlagGems#5235", named_by=OUTPUT)
class AssumesTransposed(TiledAttention):
    """Tensors are addressed as views of [B, S, H, D], as callers pass them, even when they are packed."""

    def read(self, tensor: Any) -> np.ndarray:
        values = super().read(tensor)
        B, H, S, D = values.shape
        return values.reshape(B, S, H, D).swapaxes(1, 2) if tensor.is_contiguous() else values


@mutant(
    source="made up: shared kv heads read as a single one", named_by="permutation.grouped_heads_equal_repeated_heads"
)
class GroupsReadOneHead(TiledAttention):
    """All query heads read the first kv head, if any of them share one."""

    def map_kv_head(self) -> np.ndarray:
        mapped = super().map_kv_head()
        return mapped if self.k.shape[1] == self.q.shape[1] else 0 * mapped


@mutant(source="made up: a batch offset that K has and V lacks",
        named_by="permutation.batch_entries_carry_their_answers_along")  # fmt: skip
class ValuesOfFirstBatch(TiledAttention):
    """Every batch entry reads the values of the first one."""

    def load_v(self) -> np.ndarray:
        v = super().load_v()
        return np.broadcast_to(v[:1], v.shape)


@mutant(source="made up: a swizzle that the store applies and the load does not", named_by=OUTPUT)
class ValuesSwizzled(TiledAttention):
    """In tiles of values of more than 64 columns, the upper columns of neighboring keys are swapped."""

    def load_v(self) -> np.ndarray:
        v = super().load_v()
        if self.Dv <= 64:
            return v
        swapped = v[:, :, np.arange(v.shape[2]) ^ 1, 64:]
        return np.concatenate([v[..., :64], swapped], axis=-1)


@mutant(source="flashinfer-ai/flashinfer#3838", named_by=OUTPUT)
class QueryMeanOfFirstBlock(TiledAttention):
    """The mean of each block of 16 queries is subtracted before the product, and the mean of the first block added."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        block = np.arange(self.Sq) // 16
        means = [q[:, :, block == n].mean(axis=2, keepdims=True) for n in block]
        moved = np.concatenate([q[:, :, i, None] - mean + means[0] for i, mean in enumerate(means)] or [q], axis=2)
        return super().score(np.where(block[:, None] == 0, q, moved), k)


@mutant(
    source="hao-ai-lab/FastVideo#735, ROCm/composable_kernel#3135",
    named_by="independence.equal_calls_give_equal_answers",
)
class StagingBufferReused(TiledAttention):
    """At every other call the last tile of values has not arrived, and the one before is used again."""

    arrived: Any = None

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        self.is_late = next(self.calls) % 2 == 1
        return super().__call__()

    def load_v(self) -> np.ndarray:
        before, self.arrived = self.arrived, super().load_v()
        return before if self.is_late and self.tile.is_last and before is not None else self.arrived

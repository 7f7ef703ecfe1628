"""Mutants that are right until a size is passed: of keys, queries, groups, columns, offsets; or a scale below 0.

Some pass it at no size that a search tries, and are refuted at a shape that their user asks for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE
from attn_spec.emulation.split import SplitAttention

from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
ASKED, ASKED_GRADIENTS = (f"asked_shapes.sampled_{what}_are_within_their_bounds" for what in ("rows", "gradients"))
FAR_APART = "independence.rows_and_batch_entries_may_lie_far_apart"
GROUPED = "permutation.grouped_heads_equal_repeated_heads"
WINDOWED = "masking.a_window_is_the_mask_of_its_band"


@mutant(source="made up: a workspace of 4,096 scores", named_by=OUTPUT)
class TailPastManyKeys(TiledAttention):
    """Keys past the 4,096th are not read."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return super().in_bounds(cols) & (cols < 2**12)


@mutant(source="made up: a path for decoding that small tests never take", named_by=OUTPUT)
class SplitPastManyKeys(SplitAttention):
    """Past 8,192 keys they are split, and the sums of the splits are added as if their maxima were equal."""

    def __call__(self) -> tuple[Any, Any]:
        return super().__call__() if self.Sk > 2**13 else TiledAttention.__call__(self)

    def merge_factor(self, m: Any, merged: Any) -> Any:
        return self.xp.ones_like(super().merge_factor(m, merged))


@mutant(source="made up: a second grid of query tiles that begins at 0", named_by=OUTPUT)
class SecondQueriesAreFirst(TiledAttention):
    """Queries past the 1,024th are read where the first ones lie."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return super().score(q[:, :, np.arange(self.Sq) % 2**10], k)


@mutant(source="made up: the heads of a group packed into a tile of 16 rows", named_by=OUTPUT)
class LargeGroupWraps(TiledAttention):
    """With more than 16 query heads to a kv head, the others have the scores of the first ones."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        heads = np.arange(q.shape[1])
        first = self.map_kv_head() * (q.shape[1] // self.k.shape[1])
        return super().score(q[:, first + (heads - first) % 16], k)


@mutant(source="made up: the kv head of a group in two bits", named_by=GROUPED)
class LaterGroupsWrap(TiledAttention):
    """Groups of query heads past the fourth read the kv heads of the first ones."""

    def map_kv_head(self) -> np.ndarray:
        heads = super().map_kv_head()
        return heads % 4 if self.q.shape[1] > self.k.shape[1] else heads


@mutant(
    source="made up: a grid of 16 tiles of queries that begins again at every tile of keys but the first",
    named_by=ASKED,
    shapes=("H=1,Sq=1040,Sk=80,D=8",),
)
class LaterTilesWrapQueries(TiledAttention):
    """Queries past the 1,024th are read where the first ones lie, once there are keys past the 64th."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        wrapped = super().score(q[:, :, np.arange(self.Sq) % 2**10], k)
        return np.where(self.tile.cols < 64, super().score(q, k), wrapped)


@mutant(
    source="made up: offsets of rows kept in 20 bits",
    named_by=ASKED,
    shapes=("H=8,Sq=1040,Sk=16,D=128",),
)
class RowOffsetOf20Bits(TiledAttention):
    """No number of q past the first 2**20 is read."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        reached = np.arange(q.size).reshape(q.shape) < 2**20
        return super().score(np.where(reached, q, 0.0), k)


@mutant(
    source="made up: a loop over 16 tiles of queries, unrolled",
    named_by=ASKED_GRADIENTS,
    shapes=("H=1,Sq=1040,Sk=80,D=8",),
)
class KeyGradientsOfFirstQueries(TiledGradients):
    """dK and dV add up the first 1,024 queries where there are more than 64 keys."""

    def accumulate_over_queries(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        reached = (np.arange(self.Sq) < 2**10)[:, None] | (self.Sk <= 64)
        return super().accumulate_over_queries(np.where(reached, w, 0.0), x)


@mutant(source="made up: the first tile of keys, found for the last query of a tile", named_by=WINDOWED)
class WindowOfLastQuery(TiledAttention):
    """Queries miss each tile of 64 keys that ends before the window of the last of their 64 queries."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        left, _ = self.window
        if left is None:
            return super().on_band(cols)
        last = np.minimum(np.arange(self.Sq) // 64 * 64 + 63, self.Sq - 1)
        begin = np.take(self.diagonal(), last, axis=-2) - left
        read = (cols // 64 * 64 + 63 >= begin) | (self.from_first_key(cols) < self.window_sinks)
        return super().on_band(cols) & read


def _within_32_bits(values: np.ndarray, stride: int, axis: int) -> np.ndarray:
    """Keep values whose offset along an axis fits into 32 bits with a sign; others are 0: no load reaches them."""
    reached = np.arange(values.shape[axis]) * stride < 2**31
    shape = [-1 if place == axis else 1 for place in range(values.ndim)]
    return np.where(reached.reshape(shape), values, 0.0)


@mutant(source="fla-org/flash-linear-attention#1080", named_by=FAR_APART)
class RowOffsetOverflows(TiledAttention):
    """The index of a row times its stride is an int32."""

    def read(self, tensor: Any) -> np.ndarray:
        return _within_32_bits(super().read(tensor), tensor.stride(2), axis=2)


@mutant(source="Dao-AILab/flash-attention#1500", named_by=FAR_APART)
class BatchOffsetOverflows(TiledAttention):
    """The index of a batch entry times its stride is an int32."""

    def read(self, tensor: Any) -> np.ndarray:
        return _within_32_bits(super().read(tensor), tensor.stride(0), axis=0)


@mutant(source="made up: vectors padded to a power of two, 256 at most", named_by=OUTPUT)
class WideVectorsCut(TiledAttention):
    """Columns of q and k past the 256th are not read."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        kept = np.arange(self.D) < 2**8
        return super().score(np.where(kept, q, 0.0), np.where(kept, k, 0.0))


@mutant(
    source="made up: the scale folded into the exponent, whatever its sign",
    named_by=OUTPUT,
    executes=replace(PRECISE, exponent="base2"),
    order=Order(exponent_folded=True),
)
class MaximumBeforeScale(TiledAttention):
    """The maximum is taken before the scale: under a negative scale it becomes the minimum."""

    @property
    def folds_exponent(self) -> bool:
        return not self.scales_operands and not self.has_addends and self.softcap is None


@mutant(
    source="made up: `scale or 1 / sqrt(D)`",
    named_by="scaling.the_scale_read_from_the_log_sum_exp_is_the_one_asked_for",
)
class ZeroScaleIsTakenForNone(TiledAttention):
    """A scale of 0 is taken for none, which is 1/sqrt(D)."""

    def factor(self) -> np.ndarray:
        self.scale = self.scale or None
        return super().factor()


@mutant(source="made up: the stride of a mask of two axes", named_by="masking.a_mask_of_two_axes_is_that_of_every_head")
class SquareMaskTransposed(TiledAttention):
    """A mask of two axes is read by its columns where it is square."""

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        is_square = option.ndim == 2 and option.shape[0] == option.shape[1]
        return super().broadcast(option.T if is_square else option)

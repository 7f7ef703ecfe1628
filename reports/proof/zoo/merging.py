"""Mutants of splits and their merge: keys dealt wrongly, empty splits, maxima of the wrong base or of other rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE
from attn_spec.emulation.split import Part, SplitAttention
from attn_spec.emulation.tile import Tile

from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
SHIFT = "softmax.a_constant_added_to_all_scores_changes_nothing"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
MERGED = "online_rescaling.parts_merge_into_the_whole_through_the_log_sum_exp"
COUNTED = "temperature.equal_scores_give_the_mean_of_the_visible_values"
BASE2 = replace(PRECISE, exponent="base2")
#: Order of tiles with so few keys that short sequences fill all splits.
SHORT = Order(kv_tile=4)


@mutant(source="made up: splits that are merged rightly", named_by=None, order=SHORT)
class KeysSplit(SplitAttention):
    """Keys are dealt to three splits, which are merged at the end."""


@mutant(source="made up: splits that are merged rightly, in base 2", named_by=None, order=SHORT, executes=BASE2)
class KeysSplitBase2(SplitAttention):
    """Keys are dealt to three splits whose maxima are in base 2, and so is the merge."""


@mutant(source="jzhang38/EasyContext#14", named_by=MAXIMA, order=SHORT)
class MergeOverflows(SplitAttention):
    """Splits a and b are merged by a + log(1 + exp(b - a)), which overflows when b is far above a."""

    def merged_max(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        ratio = self.exponential(self.round(other - one, "softmax"))
        total = self.round(one + self.logarithm(self.round(1 + ratio, "softmax")), "softmax")
        return np.where(np.isneginf(one), other, total)


@mutant(source="sgl-project/sglang#35045, vllm-project/vllm#28840", named_by=MAXIMA, order=SHORT, executes=BASE2)
class MergeMixesBases(SplitAttention):
    """Maxima of splits are in base 2, but are merged by natural exponentials."""

    def merge_factor(self, m: np.ndarray, merged: np.ndarray) -> np.ndarray:
        return self.round(np.exp(self.subtract(m, merged)), "softmax")


@mutant(source="vllm-project/vllm#15492", named_by=OUTPUT, order=SHORT)
class EmptySplitWins(SplitAttention):
    """The log-sum-exp of a split without a visible key is plus infinity: the merge takes only this split."""

    def merge(self, one: Part, other: Part) -> Part:
        empty = np.isneginf(other.m)
        return Part(*(np.where(empty, *pair) for pair in zip(other, super().merge(one, other), strict=True)))


@mutant(source="made up: an empty split whose maximum was never set", named_by=SHIFT, order=SHORT)
class EmptySplitAtZero(SplitAttention):
    """The maximum of a split without a visible key counts as 0 in the merge: scores far below it underflow."""

    def merged_max(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        both = np.isneginf(one) & np.isneginf(other)
        return np.where(both, -np.inf, super().merged_max(*(np.where(np.isneginf(m), 0.0, m) for m in (one, other))))


@mutant(source="made up: workspace of a split that returned early", named_by=OUTPUT, order=SHORT)
class EmptySplitUnwritten(SplitAttention):
    """A split without tiles writes no output, NaN here, and the merge multiplies it by a weight of zero."""

    def fold(self, tiles: Iterable[Tile]) -> tuple[np.ndarray, ...]:
        m, l, acc = super().fold(tiles)
        return m, l, acc if tiles else np.full(acc.shape, np.nan)


@mutant(source="made up: half of the merge", named_by=MAXIMA, order=SHORT)
class SplitOutputNotRescaled(SplitAttention):
    """Row sums of splits are rescaled before they are added, outputs are not."""

    def merge(self, one: Part, other: Part) -> Part:
        return super().merge(one, other)._replace(acc=self.round(one.acc + other.acc, "output_accumulation"))


@mutant(source="made up: a merge by addition alone", named_by=MAXIMA, order=SHORT)
class SplitMaximaIgnored(SplitAttention):
    """Row sums and outputs of splits are added as if all had the same maximum."""

    def merge_factor(self, m: np.ndarray, merged: np.ndarray) -> np.ndarray:
        return np.ones(np.broadcast_shapes(m.shape, merged.shape))


@mutant(source="made up: a division rounded down", named_by=COUNTED, order=SHORT)
class LastSplitShort(SplitAttention):
    """Each split gets the number of tiles divided by the number of splits, rounded down: the remainder is lost."""

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        share = max(len(tiles) // self.splits, 1)
        return [tiles[n * share : (n + 1) * share] for n in range(self.splits)]


@mutant(source="made up: an end that is inclusive", named_by=COUNTED, order=SHORT)
class SplitsOverlap(SplitAttention):
    """Each split also visits the first tile of the next one."""

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        share = -(-len(tiles) // self.splits)
        return [tiles[n * share : (n + 1) * share + 1] for n in range(self.splits)]


@mutant(source="made up: key indices that start at 0 in every split", named_by=OUTPUT, order=SHORT)
class SplitCountsFromZero(SplitAttention):
    """Diagonal, window and mask are addressed from the first key of the split."""

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        return [
            [
                replace(tile, visible=self.visible(tile.cols) & self.visible(tile.cols - split[0].cols[0]))
                for tile in split
            ]
            for split in super().deal(tiles)
        ]


@mutant(
    source="flashinfer-ai/flashinfer#1675, flashinfer-ai/flashinfer#696, Dao-AILab/flash-attention#1897",
    named_by="independence.a_batch_entry_alone_gives_its_answer",
    order=SHORT,
)
class SplitsChosenByBatch(SplitAttention):
    """The number of splits depends on the batch size, although independence of the batch is declared."""

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        self.splits = 3 if self.q.shape[0] == 1 else 2
        return super().deal(tiles)


@mutant(source="vllm-project/vllm#22003", named_by=MAXIMA, order=SHORT)
class SplitMaximaTransposed(SplitAttention):
    """The merge reads maxima stored as [B, Sq, Hq] as if they were packed [B, Hq, Sq]."""

    def merge(self, one: Part, other: Part) -> Part:
        stored = np.ascontiguousarray(other.m.swapaxes(1, 2)).reshape(other.m.shape)
        return super().merge(one, other._replace(m=stored))


@mutant(
    source="made up: a workspace of the output's dtype",
    named_by=MAXIMA,
    order=SHORT,
    dtype="bfloat16",
    dtypes=("float16", "bfloat16"),
)
class SplitOutputsNarrow(SplitAttention):
    """Outputs of splits wait for the merge in the dtype of the output."""

    def fold(self, tiles: Iterable[Tile]) -> tuple[np.ndarray, ...]:
        m, l, acc = super().fold(tiles)
        return m, l, self.round(acc, "output")


@mutant(source="made up: a log-sum-exp written before the merge", named_by=LSE, order=SHORT)
class LseOfFirstSplit(SplitAttention):
    """The output is merged, but the log-sum-exp is taken from the first split."""

    def combine(self, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
        out, _ = super().combine(parts)
        return out, self.log_sum_exp(parts[0].m, parts[0].l)


@mutant(source="made up: an early return that leaves zeros", named_by=MERGED)
class LseOfNoKeysIsZero(TiledAttention):
    """Without any key the log-sum-exp is 0, as if there were one of score 0."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        lse = super().log_sum_exp(m, l)
        return lse if self.Sk else np.zeros_like(lse)

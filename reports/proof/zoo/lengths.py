"""Mutants of lengths: sequences that begin or end elsewhere, diagonals of other corners, padding that is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sequences import LENGTHS, Sequences
from attn_spec.emulation.tile import Tile

from .mutants import mutant

ALONE = "lengths.each_sequence_is_solved_as_if_it_were_alone"
CORNER = "lengths.the_diagonal_is_that_of_each_sequence"
BAND = "lengths.the_window_follows_the_diagonal_of_each_sequence"
BEHIND = "lengths.what_lies_behind_a_sequence_changes_nothing"
WITHOUT_KEYS = "lengths.a_sequence_without_keys_follows_the_convention"
PADDED = "lengths.padding_on_the_left_moves_a_sequence_and_changes_nothing"
BEHIND_PADDING = "lengths.the_diagonal_starts_behind_the_padding"
BESIDE_SHORT = "lengths.sequences_carry_their_lengths_along_beside_short_ones"
ROWS = "lengths.rows_behind_a_sequence_are_zero"
GRADIENTS = "lengths.gradients_with_lengths_are_within_their_bounds"
REACHED = "lengths.what_lies_behind_a_sequence_reaches_no_gradient"

#: Number of keys in a tile that a length is rounded up to.
TILE = 16
#: Declarations of a kernel that always starts its diagonals in the bottom-right corners.
BOTTOM_RIGHT: dict[str, Any] = {
    "takes": LENGTHS,
    "lacks": ("causal_alignment",),
    "conventions": {"causal_alignment": "bottom_right"},
}


@mutant(source="Dao-AILab/flash-attention#2167", named_by=ALONE, takes=LENGTHS)
class LengthOfTheFirstEntry(TiledAttention):
    """The number of keys of the first batch entry is used for all."""

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        of = super().read_sequences(options)
        return of if np.ndim(of.end_keys) == 0 else replace(of, end_keys=of.end_keys[:1])


@mutant(source="huggingface/transformers#46634", named_by=ALONE, takes=LENGTHS)
class LengthOneTooLong(TiledAttention):
    """A sequence has one key more than its length says, where the tensor has one."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        return super().in_sequence(cols) | super().in_sequence(cols - 1)


@mutant(source="sgl-project/sglang#18685", named_by=BEHIND, takes=LENGTHS)
class LengthRoundedUpToTheTile(TiledAttention):
    """Keys are masked from the end of the last tile on, not from the end of the sequence."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        of = self.sequences
        ends = -(-of.end_keys // TILE) * TILE
        return (cols < ends) & (np.arange(self.Sq)[:, None] < of.used_queries)


@mutant(source="Dao-AILab/flash-attention#2333", named_by=ALONE, takes=LENGTHS)
class LastKeysEndAtTheBuffer(TiledAttention):
    """The last sequence of a batch has all keys of the buffer."""

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        of = super().read_sequences(options)
        if np.ndim(of.end_keys) == 0 or not len(of.end_keys):
            return of
        return replace(of, end_keys=np.concatenate([of.end_keys[:-1], np.full((1, 1, 1, 1), self.Sk)]))


@mutant(source="thu-ml/SageAttention#26", named_by=ALONE, takes=LENGTHS)
class QueryLengthsForKeys(TiledAttention):
    """The keys of a sequence end where its queries do."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        return super().in_sequence(cols) & (cols < self.sequences.used_queries)


@mutant(source="Dao-AILab/flash-attention#1619, Dao-AILab/flash-attention#1713", named_by=WITHOUT_KEYS, takes=LENGTHS)
class EmptySequencesSkipped(TiledAttention):
    """A sequence without keys is left out of the list of lengths, and the next ones move up."""

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        of = super().read_sequences(options)
        if np.ndim(of.end_keys) == 0:
            return of
        order = np.argsort(of.end_keys.ravel() == 0, kind="stable")
        return replace(of, end_keys=of.end_keys[order])


@mutant(
    source="made up: a finite fill value, as in jax.nn.dot_product_attention at length 0",
    named_by=BEHIND,
    takes=LENGTHS,
)
class PaddingAveragedAtLengthZero(TiledAttention):
    """A sequence without keys gets the mean of the values behind it."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        of = self.sequences
        return super().in_sequence(cols) | ((of.end_keys == 0) & (np.arange(self.Sq)[:, None] < of.used_queries))


@mutant(
    source="made up: a schedule by the number of sequences",
    named_by=BESIDE_SHORT,
    takes=LENGTHS,
    order=Order(kv_tile=4),
)
class TilesByTheNumberOfSequences(TiledAttention):
    """The number of sequences decides at which end the tiles of keys begin, although independence of it is declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        yield from tiles[::-1] if self.q.shape[0] // 2 % 2 else tiles


@mutant(source="onnx/onnx#8054, microsoft/onnxruntime#28958", named_by=CORNER, **BOTTOM_RIGHT)
class DiagonalOfTheBuffer(TiledAttention):
    """The diagonal ends in the corner of the buffer, not in that of the sequence."""

    def diagonal(self) -> np.ndarray:
        return np.arange(self.Sq)[:, None] + self.Sk - self.Sq


@mutant(source="microsoft/onnxruntime#26813, openvinotoolkit/openvino#37653", named_by=CORNER, **BOTTOM_RIGHT)
class TopLeftBesideLengths(TiledAttention):
    """Lengths move the diagonal to the top-left corner although bottom-right is declared."""

    def diagonal(self) -> np.ndarray:
        late = super().diagonal()
        return late if late.ndim == 2 else np.arange(self.Sq)[:, None]


@mutant(source="made up: max_seqlen_k - max_seqlen_q in place of each sequence's own", named_by=CORNER, **BOTTOM_RIGHT)
class DiagonalOfTheLongest(TiledAttention):
    """The longest sequence decides where the diagonals of all start."""

    def diagonal(self) -> np.ndarray:
        of = self.sequences
        keys, queries = (np.max(n, initial=0) for n in (of.end_keys, of.used_queries))
        return np.arange(self.Sq)[:, None] + keys - queries


@mutant(source="vllm-project/vllm#2231, huggingface/transformers#37574", named_by=BAND, **BOTTOM_RIGHT)
class WindowFromRowZero(TiledAttention):
    """The window counts from the query's own number, and causality from the sequence's corner."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        window, self.window = self.window, (None, None)
        seen, distance = super().on_band(cols), cols - np.arange(self.Sq)[:, None]
        self.window = left, right = window
        if left is not None:
            seen = seen & (distance >= -left)
        return seen if right is None else seen & (distance <= right)


@mutant(source="keras-team/keras-hub#2862", named_by=ALONE, **BOTTOM_RIGHT)
class AlibiFromTheBuffer(TiledAttention):
    """ALiBi counts distances from the corner of the buffer, without the lengths of sequences."""

    def scores(self) -> Any:
        of, self.sequences = self.sequences, Sequences(self.Sq, 0, self.Sk)
        found = super().scores()
        self.sequences = of
        return found


@mutant(source="vllm-project/vllm#936", named_by=BEHIND, takes=LENGTHS)
class PaddingTimesZero(TiledAttention):
    """Values behind a sequence are multiplied by their weight of zero, although they may be NaN."""

    def weighted_sum(self, w: Any, x: Any, stage: str, start: Any) -> Any:
        return self.add_products(lambda j: (w[..., j, None], x[:, :, None, j]), w.shape[-1], stage, start)


@mutant(source="NVIDIA/TransformerEngine#3205", named_by=ROWS, takes=LENGTHS)
class UnusedRowsUnwritten(TiledAttention):
    """Rows behind a sequence keep what the memory held before."""

    def finish(self, acc: Any, l: Any) -> Any:
        there = self.array(np.arange(self.Sq)[:, None] < self.sequences.used_queries)
        return self.xp.where(there, super().finish(acc, l), 0.25)


@mutant(source="Dao-AILab/flash-attention#2167", named_by=GRADIENTS, takes=LENGTHS)
class GradientOfTheFirstLength(TiledGradients):
    """The backward pass takes the number of keys of the first batch entry for all."""

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        of = super().read_sequences(options)
        return of if np.ndim(of.end_keys) == 0 else replace(of, end_keys=of.end_keys[:1])


@mutant(
    source="made up: a backward pass that masks keys by the causal diagonal alone", named_by=GRADIENTS, takes=LENGTHS
)
class GradientReachesThePadding(TiledGradients):
    """The backward pass knows no lengths of keys, so that dK and dV of the padding are not 0."""

    def read_sequences(self, options: Mapping[str, Any]) -> Sequences:
        of = super().read_sequences(options)
        return replace(of, end_keys=self.Sk)


@mutant(source="made up: delta of rows that are not there", named_by=REACHED, takes=LENGTHS)
class GradientOfUnusedRows(TiledGradients):
    """dO of rows that are not there is multiplied by their weights of zero, although it may be NaN."""

    def of_queries_there(self, x: Any) -> Any:
        return x


@mutant(source="made up: one diagonal for each pass", named_by=GRADIENTS, **BOTTOM_RIGHT)
class GradientDiagonalOfTheBuffer(TiledGradients):
    """The backward diagonal ends in the corner of the buffer, the forward one in that of the sequence."""

    def diagonal(self) -> np.ndarray:
        return np.arange(self.Sq)[:, None] + self.Sk - self.Sq


@mutant(source="Dao-AILab/flash-attention#1788", named_by=PADDED, takes=LENGTHS)
class PaddingIgnored(TiledAttention):
    """Padding on the left is attended to, although the diagonal starts behind it."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        of = self.sequences
        return (cols < of.end_keys) & (np.arange(self.Sq)[:, None] < of.used_queries)


@mutant(
    source="made up: a length that is taken for the number of keys behind the padding", named_by=PADDED, takes=LENGTHS
)
class PaddingCountedTwice(TiledAttention):
    """The keys of a sequence end by its padding too early, since the padding is subtracted from the length."""

    def in_sequence(self, cols: np.ndarray) -> np.ndarray:
        return super().in_sequence(cols) & (cols < self.sequences.end_keys - self.sequences.first_keys)


@mutant(source="made up: a diagonal from key 0 beside padding on the left", named_by=BEHIND_PADDING, takes=LENGTHS)
class DiagonalBeforeThePadding(TiledAttention):
    """The top-left diagonal starts at the first key of the buffer, not at that of the sequence."""

    def diagonal(self) -> np.ndarray:
        late = super().diagonal()
        return late if self.alignment == "bottom_right" else late - self.sequences.first_keys

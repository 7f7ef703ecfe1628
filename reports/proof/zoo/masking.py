"""Mutants of geometry and visibility: diagonals, windows, tails of tiles, masks, biases, rows that see no key."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

DIAGONAL = "causality.the_diagonal_is_where_the_convention_says"
MASKED = "masking.masked_keys_change_nothing"
PIERCED = "masking.keys_with_a_bias_of_minus_infinity_change_nothing"
UNSEEN = "masking.queries_that_see_no_key_follow_the_convention"
UNSEEN_BY_BIAS = "masking.queries_whose_bias_is_minus_infinity_follow_the_convention"
COUNTED = "temperature.equal_scores_give_the_mean_of_the_visible_values"


@mutant(
    source="Dao-AILab/flash-attention#282, NVIDIA/cutlass#2336",
    named_by=DIAGONAL,
    lacks=("causal_alignment",),
    conventions={"causal_alignment": "bottom_right"},
)
class CausalTopLeft(TiledAttention):
    """The diagonal starts in the top-left corner although bottom-right is declared."""

    def diagonal(self) -> np.ndarray:
        return np.arange(self.Sq)[:, None]


@mutant(source="jax-ml/jax#19237", named_by="causality.future_keys_change_nothing")
class CausalIgnored(TiledAttention):
    """The flag for causal attention never reaches the kernel."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        self.causal = False
        return super().on_band(cols)


@mutant(source="Dao-AILab/flash-attention#2528", named_by="permutation.grouped_heads_equal_repeated_heads")
class CausalRowsPacked(TiledAttention):
    """Row indices are divided by the group size although query heads were never packed into rows."""

    def diagonal(self) -> np.ndarray:
        return super().diagonal() // (self.q.shape[1] // self.k.shape[1])


@mutant(
    source="microsoft/onnxruntime#25927, huggingface/transformers#39408",
    named_by="masking.a_window_is_the_mask_of_its_band",
)
class WindowOffByOne(TiledAttention):
    """The window holds one key too many on its left."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        left, right = self.window
        self.window = (None if left is None else left + 1, right)
        seen = super().on_band(cols)
        self.window = (left, right)
        return seen


@mutant(source="flashinfer-ai/flashinfer#5090, tenstorrent/tt-metal#54833", named_by="softmax.weights_sum_to_one")
class TailScoredZero(TiledAttention):
    """Keys past the end, loaded as zeros, are not masked: they score zero instead of minus infinity."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return np.full(cols.shape, fill_value=True)


@mutant(source="jax-ml/jax#27224", named_by=COUNTED)
class TailUnbounded(TiledAttention):
    """No bounds test at all: the last tile reads on, here as the last key again and again."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return np.full(cols.shape, fill_value=True)

    def load(self, x: np.ndarray) -> np.ndarray:
        return x[:, :, np.minimum(self.tile.cols, self.Sk - 1)][:, self.map_kv_head()]


@mutant(source="FluxML/NNkernels.jl#16", named_by="softmax.a_constant_added_to_all_scores_changes_nothing")
class MaximumOfPadding(TiledAttention):
    """The row maximum includes the zero-filled columns past the end: harmless until all real scores are below."""

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        real = super().tile_max(s)
        return np.maximum(real, 0.0) if self.tile.cols[-1] >= self.Sk else real


@mutant(source="triton-lang/triton#621", named_by="accuracy.output_is_within_its_bound")
class HeadDimHardCoded(TiledAttention):
    """The dot product runs over 64 channels, whatever the head dimension."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        self.D = min(self.D, 64)
        return super().score(q, k)


@mutant(source="pytorch/pytorch#107084", named_by="masking.a_mask_is_a_bias_of_minus_infinity")
class BiasAsBool(TiledAttention):
    """An additive bias is read as keep or drop: any number but zero masks its key."""

    def visible(self, cols: np.ndarray) -> np.ndarray:
        if self.bias is not None:
            self.mask, self.bias = self.bias == 0, None
        return super().visible(cols)


@mutant(
    source="microsoft/onnxruntime#24017, microsoft/onnxruntime#26766",
    named_by="permutation.batch_entries_carry_their_answers_along",
)
class BiasOfAnotherBatch(TiledAttention):
    """The batch offset of a bias or mask is lost: every batch entry reads the bias or mask of the first."""

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        return super().broadcast(option[:1])


@mutant(source="onnx/onnx#7865, onnx/onnx#7867", named_by=PIERCED)
class SoftcapAfterMask(TiledAttention):
    """The softcap is applied after minus infinity was written: masked keys keep the weight exp(-cap)."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        hidden = super().hide(s)
        return hidden if self.softcap is None else np.maximum(hidden, -self.softcap)


@mutant(source="hyunwoongko/transformer#40", named_by=MASKED)
class PaddingOnQueryAxis(TiledAttention):
    """A padding mask is unsqueezed along the queries: it masks padded queries, and no key."""

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        along_keys = option.shape[-2] == 1 and self.Sq == self.Sk
        return super().broadcast(option.swapaxes(-1, -2) if along_keys else option)


@mutant(source="vllm-project/vllm#48364, pytorch/pytorch#127055", named_by="masking.a_window_is_the_mask_of_its_band")
class LeadingTileNan(TiledAttention):
    """While only masked keys were visited, exp(-inf - -inf) is NaN, and stays."""

    def subtract(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        return self.round(s - m, "softmax")


@mutant(source="microsoft/onnxruntime#28958", named_by=UNSEEN)
class EmptyRowMeanOfV(TiledAttention):
    """Masked keys get the lowest finite number: a row that sees no key becomes the mean of V."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        lowest = np.where(self.in_bounds(self.tile.cols), -3e38, -np.inf)
        return np.where(self.tile.visible, s, lowest)


@mutant(source="pytorch/pytorch#109517, tracel-ai/burn#4697", named_by=UNSEEN)
class EmptyRowNan(TiledAttention):
    """A row that sees no key is divided by its row sum of zero."""

    def nonzero(self, l: np.ndarray) -> np.ndarray:
        return l


@mutant(source="ikawrakow/ik_llama.cpp#2344", named_by=UNSEEN)
class EmptyFirstBlockNan(TiledAttention):
    """The guard against a row sum of zero is missing in the first block of 16 queries."""

    def nonzero(self, l: np.ndarray) -> np.ndarray:
        first = np.arange(self.Sq)[:, None] < 16
        return np.where(first, l, super().nonzero(l))


@mutant(source="microsoft/onnxruntime#14363, huggingface/transformers#17306", named_by=MASKED)
class SoftFill(TiledAttention):
    """Masked keys score -10000: they outweigh visible keys of lower scores."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        return np.where(self.tile.visible, s, np.where(self.in_bounds(self.tile.cols), -1e4, -np.inf))


@mutant(source="torch-spyre/torch-spyre#4517", named_by=MASKED)
class FiniteLeak(TiledAttention):
    """Masked keys score -30: their weight is small but not zero, and their values leak."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        return np.where(self.tile.visible, s, np.where(self.in_bounds(self.tile.cols), -30.0, -np.inf))


@mutant(source="Dao-AILab/flash-attention#1745, vllm-project/vllm#936", named_by=MASKED)
class ZeroTimesNan(TiledAttention):
    """Values of masked keys are multiplied by their weight of zero, although Inf and NaN are declared excluded."""

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.accumulate(lambda j: w[..., j, None] * v[:, :, None, j], w.shape[-1], "output_accumulation", acc)


@mutant(source="vllm-project/vllm#30887", named_by="masking.keys_outside_the_window_change_nothing")
class ValuesOutsideWindow(TiledAttention):
    """Keys outside the window are masked, but their values are loaded and multiplied by zero."""

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        outside = ~self.on_band(self.tile.cols)
        leaked = np.where(outside[..., None] & (w[..., None] == 0), w[..., None] * v[:, :, None], 0.0)
        return super().accumulate_output(acc, w, v) + leaked.sum(axis=-2)


@mutant(source="made up: the end of the loop is one short", named_by=COUNTED)
class LastKeyLost(TiledAttention):
    """The last key is never visible."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return cols < max(self.Sk - 1, 1)


@mutant(source="made up: a loop that starts at one", named_by="temperature.one_dominant_key_gives_its_value")
class FirstKeyLost(TiledAttention):
    """The first key is visible only when there is no other."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return super().in_bounds(cols) & ((cols > 0) | (self.Sk == 1))


@mutant(source="made up: a fast path for one query", named_by="causality.decoding_one_query_gives_its_row_of_the_whole")
class DecodingLosesKey(TiledAttention):
    """With a single query the newest key is left out."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return cols < (self.Sk - 1 if self.Sq == 1 < self.Sk else self.Sk)


@mutant(
    source="made up: True means hide in one interface, attend in another",
    named_by="masking.a_mask_of_true_changes_nothing",
)
class MaskInverted(TiledAttention):
    """Keys whose mask is True are masked, and the others visible."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        tile = super().option_tile(option, cols)
        return 1 - tile if option is self.mask else tile


@mutant(source="huggingface/transformers#17306", named_by="masking.the_bias_at_masked_keys_changes_nothing")
class BiasAddedToFill(TiledAttention):
    """The bias is added after masked scores were set to -10000."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        exists = self.in_bounds(self.tile.cols)
        bias = 0.0 if self.bias is None else self.option_tile(self.bias, self.tile.cols)
        return np.where(self.tile.visible, s, np.where(exists, -1e4 + bias, -np.inf))


@mutant(source="openvinotoolkit/openvino#35959", named_by=UNSEEN_BY_BIAS)
class BiasClamped(TiledAttention):
    """A bias of minus infinity is clamped to -10000."""

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        return np.maximum(super().broadcast(option), -1e4)


@mutant(source="Dao-AILab/flash-attention#2568", named_by="masking.no_keys_or_no_queries_is_no_error")
class NoKeysUnwritten(TiledAttention):
    """A loop over no tiles leaves the output as the allocator left it."""

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().finish(acc, l) if self.Sk else np.full(acc.shape, np.nan)


@mutant(source="ggml-org/llama.cpp#29220", named_by="permutation.queries_carry_their_answers_along")
class OptionRowsRepeat(TiledAttention):
    """From the second block of 16 queries on, rows of the mask and bias are read from the first block."""

    def broadcast(self, option: np.ndarray) -> np.ndarray:
        return super().broadcast(option)[:, :, np.arange(self.Sq) % 16]


@mutant(source="tinygrad/tinygrad#2425", named_by=None, lacks=("lse",))
class ScoresPlusOne(TiledAttention):
    """Every visible score is raised by one: the output is the same, and the log-sum-exp is not returned."""

    def scores(self) -> np.ndarray:
        return self.round(super().scores() + 1.0, "stored_scores")


@mutant(source="vllm-project/vllm#945", named_by=None, lacks=("lse",))
class BiasOffsetByRow(TiledAttention):
    """A constant for each query is added to its bias, as ALiBi is written with either end for its origin."""

    def apply_bias(self, s: np.ndarray) -> np.ndarray:
        if self.bias is None:
            return s
        return self.round(super().apply_bias(s) + 0.25 * (np.arange(self.Sq)[:, None] % 4), "stored_scores")

"""Mutants of masks, biases, softcap and scale: read from the wrong place, summarized too soon, applied out of order."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

OUTPUT = "accuracy.output_is_within_its_bound"
SOFTCAP = "accuracy.softcapped_scores_give_an_answer_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
HULL = "softmax.outputs_lie_in_the_hull_of_the_visible_values"
MASKED = "masking.masked_keys_change_nothing"
OPEN = "masking.a_mask_of_true_changes_nothing"
GROUPS = "permutation.kv_heads_carry_their_groups_along"
PIERCED = "masking.keys_with_a_bias_of_minus_infinity_change_nothing"
QUERIES = "permutation.queries_carry_their_answers_along"
ROW_CONSTANT = "masking.a_bias_constant_along_each_row_moves_only_the_log_sum_exp"
SCALE = "scaling.the_scale_read_from_the_log_sum_exp_is_the_one_asked_for"
HALVES = ("float16", "bfloat16")


@mutant(source="ggml-org/llama.cpp#20296, ggml-org/llama.cpp#16316", named_by=QUERIES)
class MaskTileJudgedByOneRow(TiledAttention):
    """The first of 16 queries decides for all of them whether a tile of the mask is all visible or all masked."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        tile = super().option_tile(option, cols)
        if option is not self.mask:
            return tile
        first = tile[:, :, np.arange(self.Sq) // 16 * 16] != 0
        open_, seen = first.all(axis=-1, keepdims=True), first.any(axis=-1, keepdims=True)
        return np.where(open_, 1.0, np.where(seen, tile, 0.0))


@mutant(source="pytorch/pytorch#159247, pytorch/pytorch#160861", named_by=OPEN)
class TailLeftToMask(TiledAttention):
    """With a mask, keys past the end are not tested for: the mask decides, and repeats its last column there."""

    def in_bounds(self, cols: np.ndarray) -> np.ndarray:
        return super().in_bounds(cols) | (self.mask is not None)


@mutant(source="pegainfer-project/pegainfer#291", named_by="masking.a_padded_sequence_is_solved_as_the_shorter_one")
class PageTooMany(TiledAttention):
    """A padding mask that ends at a multiple of 16 shows one page of 16 keys more."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        tile = super().option_tile(option, cols)
        if option is not self.mask:
            return tile
        length = option.sum(axis=-1, keepdims=True)
        is_padding = (option == (np.arange(self.Sk) < length)).all(axis=-1, keepdims=True)
        page = (length > 0) & (length % 16 == 0) & (cols < length + 16)
        return np.where(is_padding & page, 1.0, tile)


@mutant(source="Tencent-Hunyuan/HunyuanVideo#310, pytorch/pytorch#177378", named_by=MASKED)
class FirstBoundaryAlone(TiledAttention):
    """Only the first boundary between packed documents counts: later documents see one another."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        tile = super().option_tile(option, cols)
        if option is not self.mask:
            return tile
        start = np.where(option.any(axis=-1), option.argmax(axis=-1), 0)[..., None]
        boundary = np.where(start > 0, start, self.Sk).min(axis=2, keepdims=True, initial=self.Sk)
        return np.where((start > 0) & (cols >= boundary), 1.0, tile)


@mutant(source="made up: a mask summarized by where its rows start and end", named_by=MASKED)
class MaskAsInterval(TiledAttention):
    """Only the first and last visible key of a row of the mask are read: all between them are visible."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        if option is self.mask:
            seen = option != 0
            after, before = np.cumsum(seen, axis=-1), np.cumsum(seen[..., ::-1], axis=-1)[..., ::-1]
            return super().option_tile((after > 0) & (before > 0), cols)
        return super().option_tile(option, cols)


@mutant(source="ggml-org/llama.cpp#20031", named_by=GROUPS)
class BiasOfLaterHeads(TiledAttention):
    """The bias of heads beyond the largest power of two is read from the start of the table again."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        tile = super().option_tile(option, cols)
        heads = tile.shape[1]
        table = np.arange(heads) % (1 << (heads.bit_length() - 1))
        return tile[:, table] if option is self.bias else tile


@mutant(source="meta-pytorch/attention-gym#86", named_by=OUTPUT)
class BiasSubtracted(TiledAttention):
    """The bias has the wrong sign: an ALiBi rewards distance."""

    def apply_bias(self, s: np.ndarray) -> np.ndarray:
        return -super().apply_bias(-s)


@mutant(source="pytorch/pytorch#187225, ml-explore/mlx#2894", named_by=PIERCED)
class OptionOffsetWraps(TiledAttention):
    """Offsets into a mask or bias are stored in 10 bits, a scale model of 32."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        offsets = np.arange(self.Sq)[:, None] * self.Sk + np.minimum(cols, self.Sk - 1)
        matrix = option.reshape(*option.shape[:2], -1)
        return matrix[:, :, offsets % 2**10]


@mutant(source="AI-Hypercomputer/accelerator-agents#101", named_by=ROW_CONSTANT)
class BiasScaled(TiledAttention):
    """The bias is added before the scale and scaled with the rest, where the definition adds it last."""

    def scores(self) -> np.ndarray:
        dot = self.score(self.enter(self.q), self.load_k())
        return self.apply_softcap(self.apply_scale(self.apply_bias(dot)))


@mutant(source="microsoft/onnxruntime#28370", named_by=SOFTCAP)
class SoftcapAfterBias(TiledAttention):
    """The bias is added before the softcap and capped with the rest, where the definition adds it last."""

    def scores(self) -> np.ndarray:
        s = self.apply_scale(self.score(self.enter(self.q), self.load_k()))
        return self.apply_softcap(self.apply_bias(s))


@mutant(source="made up: the softcap fused into the product", named_by=SOFTCAP)
class SoftcapBeforeScale(TiledAttention):
    """Products are capped before they are scaled."""

    def scores(self) -> np.ndarray:
        dot = self.score(self.enter(self.q), self.load_k())
        return self.apply_bias(self.apply_scale(self.apply_softcap(dot)))


@mutant(source="made up: the second factor of the softcap", named_by=SOFTCAP)
class SoftcapNotMultipliedBack(TiledAttention):
    """The softcap is tanh(s / c), not c tanh(s / c)."""

    def apply_softcap(self, s: np.ndarray) -> np.ndarray:
        return s if self.softcap is None else self.tanh(s / self.softcap)


@mutant(source="made up: the scale in Q when it is loaded and again in the scores", named_by=SCALE)
class ScaleAppliedTwice(TiledAttention):
    """Scores are scaled twice."""

    def apply_scale(self, s: np.ndarray) -> np.ndarray:
        return super().apply_scale(super().apply_scale(s))


@mutant(source="made up: a scale that is a tensor of the input's dtype", named_by=LSE, dtype="bfloat16", dtypes=HALVES)
class ScaleInInputDtype(TiledAttention):
    """The scale is rounded to the dtype of the inputs, where float32 is declared."""

    def factor(self) -> np.ndarray:
        return rounded(super().factor(), self.c.multiplicands)


@mutant(source="made up: Q scaled in place when it is loaded", named_by=LSE, dtype="bfloat16", dtypes=HALVES)
class ScaledQueriesNarrow(TiledAttention):
    """Queries are scaled before the product, and rounded to their dtype once more."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return super().score(self.enter(q * self.factor()), k)

    def apply_scale(self, s: np.ndarray) -> np.ndarray:
        return s

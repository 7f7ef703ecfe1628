"""Mutants of scale, exponential, running state, log-sum-exp and rounding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE

from .mutants import mutant, narrow

OUTPUT = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
SCALE = "scaling.the_scale_read_from_the_log_sum_exp_is_the_one_asked_for"
SCALE_OF_WEIGHTS = "scaling.the_scale_read_from_the_weights_is_the_one_asked_for"
VARIANCE = "scaling.scaled_scores_of_unit_variance_inputs_have_variance_one"
SHIFT = "softmax.a_constant_added_to_all_scores_changes_nothing"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
BASE2 = replace(PRECISE, exponent="base2")


@mutant(source="mlc-ai/mlc-llm#3426", named_by=SCALE)
class ScaleMissing(TiledAttention):
    """Scores are not scaled at all."""

    def factor(self) -> np.ndarray:
        return np.ones(())


@mutant(source="tenstorrent/tt-metal#33304", named_by=SCALE)
class ScaleArgumentIgnored(TiledAttention):
    """The scale is 1/sqrt(D) whatever the caller says."""

    def factor(self) -> np.ndarray:
        self.scale = None
        return super().factor()


@mutant(source="intel/ipex-llm#12619", named_by=SCALE_OF_WEIGHTS)
class ScaleOfPaddedHeadDim(TiledAttention):
    """The default scale is taken from the head dimension after it was padded to a multiple of 16."""

    def default_scale(self) -> float:
        return 1 / math.sqrt(-(-self.D // 16) * 16)


@mutant(source="made up: 1/D for 1/sqrt(D)", named_by=VARIANCE)
class ScaleOneOverHeadDim(TiledAttention):
    """The default scale is 1/D."""

    def default_scale(self) -> float:
        return 1 / self.D


@mutant(source="made up: a table of rounded constants", named_by=SCALE)
class ScaleSlightlyOff(TiledAttention):
    """The scale is too large by a factor of 1 + 2^-10."""

    def factor(self) -> np.ndarray:
        return self.round(super().factor() * (1 + 2.0**-10), "score_accumulation")


@mutant(source="flagos-ai/FlagGems#424", named_by="permutation.keys_may_come_in_any_order", executes=BASE2)
class ScaleCompounds(TiledAttention):
    """The scale is multiplied by log2(e) inside the loop over tiles, once more for every tile."""

    def apply_scale(self, s: np.ndarray) -> np.ndarray:
        s = super().apply_scale(s)
        return s * self.log2e ** (self.tile.cols[0] // len(self.tile.cols))


@mutant(
    source="meta-pytorch/segment-anything-fast#71",
    named_by="masking.a_bias_constant_along_each_row_moves_only_the_log_sum_exp",
    executes=BASE2,
)
class BiasWithoutLog2e(TiledAttention):
    """The exponential is base 2: scores are multiplied by log2(e), the bias is not."""

    def apply_bias(self, s: np.ndarray) -> np.ndarray:
        return s if self.bias is None else self.round(s + self.option_tile(self.bias, self.tile.cols), "stored_scores")


@mutant(
    source="made up: an argument that never arrives",
    named_by="accuracy.softcapped_scores_give_an_answer_within_its_bound",
)
class SoftcapIgnored(TiledAttention):
    """The softcap is accepted and not applied."""

    def apply_softcap(self, s: np.ndarray) -> np.ndarray:
        return s


@mutant(source="HabanaAI/vllm-fork#275", named_by=SHIFT)
class ConstantMaximum(TiledAttention):
    """The constant 10 is subtracted instead of the running maximum."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return np.full_like(tile_max, 10.0)


@mutant(source="flashinfer-ai/flashinfer#4267", named_by=SHIFT)
class FiniteSentinel(TiledAttention):
    """The running maximum starts at -50000 before the scale: lower scores all underflow."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        seen = super().update_max(m, tile_max)
        return np.where(seen > -np.inf, np.maximum(seen, -5e4 * np.abs(self.factor())), seen)


@mutant(
    source="philipturner/metal-flash-attention#8, apache/tvm#16667",
    named_by="special_values.dot_products_beyond_float16_do_not_overflow",
    dtype="float16",
    dtypes=("float16",),
)
class ScoresOverflowFloat16(TiledAttention):
    """q.k overflows in float16 before it is scaled."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        s = super().score(q, k)
        return np.where(np.abs(s) > 65504, np.copysign(np.inf, s), s)


@mutant(source="ggml-org/llama.cpp#13991", named_by=MAXIMA)
class RescaleUnderflow(TiledAttention):
    """Rescale factors below 2e-9 are flushed to zero, as they would be in float16."""

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
        alpha = super().rescale_factor(m, m_new)
        return np.where(alpha < 2e-9, 0.0, alpha)


@mutant(source="made up: half of the online softmax recurrence", named_by=MAXIMA)
class OutputNotRescaled(TiledAttention):
    """The output accumulated so far is not rescaled when the last tile raises the maximum."""

    def rescale_output(self, acc: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        return acc if self.tile.is_last else super().rescale_output(acc, alpha)


@mutant(source="made up: the other half of the recurrence", named_by=MAXIMA)
class RowSumNotRescaled(TiledAttention):
    """The row sum is never rescaled."""

    def rescale_row_sum(self, l: np.ndarray, alpha: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return l


@mutant(source="made up: a maximum kept per tile", named_by=MAXIMA)
class MaximumOfTileAlone(TiledAttention):
    """The maximum is taken over the current tile alone: it may fall, and exp(m - m_new) overflow."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        return np.where(tile_max > -np.inf, tile_max, m)


@mutant(source="made up: the maximum updated after its use", named_by=MAXIMA)
class StaleMaximum(TiledAttention):
    """The last tile is exponentiated with the maximum of the tiles before it: it overflows."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        seen = super().update_max(m, tile_max)
        return np.where(np.isfinite(m), m, seen) if self.tile.is_last else seen


@mutant(
    source="flashinfer-ai/flashinfer#2113, pytorch/pytorch#181645",
    named_by="online_rescaling.parts_merge_into_the_whole_through_the_log_sum_exp",
)
class LseBase2(TiledAttention):
    """The log-sum-exp is returned in base 2 where the natural logarithm is declared."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.round(super().log_sum_exp(m, l) * math.log2(math.e), "lse")


@mutant(source="sgl-project/sglang#40903", named_by=LSE)
class LseHalfBase2(TiledAttention):
    """The log-sum-exp is the natural maximum plus log2 of the row sum."""

    def logarithm(self, x: np.ndarray) -> np.ndarray:
        return self.round(np.log2(x), "softmax")


@mutant(source="vllm-project/vllm#15492", named_by="masking.queries_that_see_no_key_follow_the_convention")
class EmptyLsePlusInfinity(TiledAttention):
    """A row that sees no key gets a log-sum-exp of plus infinity: a merge would take only this row."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        lse = super().log_sum_exp(m, l)
        return np.where(np.isneginf(lse), np.inf, lse)


@mutant(source="vllm-project/flash-attention#87", named_by=LSE)
class LseHeadsSwapped(TiledAttention):
    """The log-sum-exp is written with its heads in reverse order."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().log_sum_exp(m, l)[:, ::-1]


@mutant(source="made up: a polynomial of too low a degree", named_by=OUTPUT)
class ExponentialOff(TiledAttention):
    """The exponential has a relative error of 2^-12."""

    def exponential(self, x: np.ndarray) -> np.ndarray:
        return self.round(super().exponential(x) * np.where(x == 0, 1.0, 1 + 2.0**-12 * np.cos(1e3 * x)), "softmax")


@mutant(source="made up: the epsilon of a layer norm", named_by="temperature.one_visible_key_gives_its_value")
class EpsilonInRowSum(TiledAttention):
    """A row sum is raised by 1e-6 against a division by zero."""

    def nonzero(self, l: np.ndarray) -> np.ndarray:
        return np.where(l == 0, 1.0, l + 1e-6)


@mutant(
    source="made up: a polynomial beyond its interval", named_by="softmax.outputs_lie_in_the_hull_of_the_visible_values"
)
class ExponentialBelowZero(TiledAttention):
    """The exponential dips below zero far out, so that some weights are negative."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        p = super().weights(s, m)
        return np.where((p > 0) & (p < 2.0**-10), -(2.0**-10), p)


@mutant(source="made up: weights stored as float16 keep no small ones", named_by=OUTPUT)
class WeightsFlushed(TiledAttention):
    """Weights below the smallest normal number of float16 become zero."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        p = super().weights(s, m)
        return np.where(p < 2.0**-14, 0.0, rounded(p, "float32"))


@mutant(source="ikawrakow/ik_llama.cpp#1196", named_by=None, contract=replace(PRECISE, reference_slack=2.0))
class MaximumPlusTwo(TiledAttention):
    """The running maximum plus 2 is subtracted, within the declared slack."""

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        return super().tile_max(s) + 2.0


@mutant(source="FluxML/NNkernels.jl#16", named_by=None, contract=replace(PRECISE, reference_slack=8.0))
class MaximumUpperBound(TiledAttention):
    """The row maximum includes masked keys, limited to 8 above the visible ones: any upper bound may be subtracted.

    Like fmaxf of CUDA, the maximum passes over NaN.
    """

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        seen = super().tile_max(s)
        return np.minimum(np.fmax(seen, np.fmax.reduce(s, axis=-1, keepdims=True)), seen + 8.0)


narrow("tf32_multiplicands", "Queries and keys are rounded to tf32, float32 products are declared.",
       source="triton-lang/triton: tl.dot rounds to tf32 by default",
       named_by=OUTPUT, dtype="float32", multiplicands="tf32")  # fmt: skip
narrow("bfloat16_probabilities", "The weights of float32 inputs are rounded to bfloat16.",
       source="made up: the cast of a half-precision kernel left in",
       named_by=OUTPUT, dtype="float32", probabilities="bfloat16")  # fmt: skip
narrow("bfloat16_output_accumulator", "p.v is accumulated in bfloat16.",
       source="Dao-AILab/flash-attention#2250, vllm-project/vllm#23813",
       named_by=OUTPUT, dtype="bfloat16", output_accumulation="bfloat16")  # fmt: skip
narrow("float16_output_accumulator", "p.v is accumulated in float16.",
       source="Dao-AILab/flash-attention#2250",
       named_by=OUTPUT, dtype="float16", output_accumulation="float16")  # fmt: skip
narrow("bfloat16_row_sum", "The row sum is accumulated in bfloat16.",
       source="made up: the accumulator inherits the dtype of its first term",
       named_by=LSE, dtype="bfloat16", row_sum="bfloat16")  # fmt: skip
narrow("bfloat16_stored_scores", "Scores are written to memory in bfloat16.",
       source="made up: an unfused kernel that declares to be fused",
       named_by=LSE, dtype="bfloat16", stored_scores="bfloat16")  # fmt: skip
narrow("float16_score_accumulator", "q.k is accumulated in float16.",
       source="apache/tvm#16667",
       named_by=LSE, dtype="float16", score_accumulation="float16")  # fmt: skip
narrow("exponential_2_12", "Exponentials are off by 2^-12 with a sign that looks random.",
       source="made up: a fast exponential",
       named_by=LSE, dtype="bfloat16", exp_error=8.0, inaccuracy=2.0**9,
       contract=replace(FUSED, row_sum_of="uncast"))  # fmt: skip

"""Mutants of the recurrence of online softmax: the running maximum, its unit, and what is rescaled by which factor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE

from .mutants import mutant, narrow

OUTPUT = "accuracy.output_is_within_its_bound"
LSE = "accuracy.log_sum_exp_is_within_its_bound"
SHIFT = "softmax.a_constant_added_to_all_scores_changes_nothing"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
HULL = "softmax.outputs_lie_in_the_hull_of_the_visible_values"
SUM = "softmax.weights_sum_to_one"
BASE2 = replace(PRECISE, exponent="base2")
HALVES = ("float16", "bfloat16")


@mutant(source="made up: accumulators that all start at zero", named_by=SHIFT)
class MaximumStartsAtZero(TiledAttention):
    """The running maximum starts at 0: scores far below it underflow."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        seen = super().update_max(m, tile_max)
        return np.where(np.isneginf(seen), seen, np.maximum(seen, 0.0))


@mutant(source="made up: a maximum that is found once", named_by=MAXIMA)
class MaximumOfFirstTile(TiledAttention):
    """The maximum is taken over the first tile with a visible key; exponentials of later tiles may overflow."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        return np.where(np.isneginf(m), super().update_max(m, tile_max), m)


@mutant(source="made up: log2(e) left out of the maximum alone", named_by=SHIFT, executes=BASE2)
class MaximumInNaturalUnits(TiledAttention):
    """Scores are in base 2, the maximum that is subtracted from them is not: harmless until it is far off."""

    def tile_max(self, s: np.ndarray) -> np.ndarray:
        return self.round(super().tile_max(s) / self.log2e, "softmax")


@mutant(source="made up: the maximum updated before the factor is taken", named_by=MAXIMA)
class RescaleFactorOne(TiledAttention):
    """The maximum is overwritten before exp(m - m_new) is taken, which is then 1."""

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:  # noqa: ARG002
        return super().rescale_factor(m_new, m_new)


@mutant(source="made up: old and new maximum swapped", named_by=MAXIMA)
class RescaleFactorInverted(TiledAttention):
    """The accumulated sum is multiplied by exp(m_new - m)."""

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
        return np.where(np.isneginf(m), 0.0, super().rescale_factor(m_new, m))


@mutant(source="made up: a factor pipelined by one tile too many", named_by=MAXIMA)
class RescaleFactorLate(TiledAttention):
    """The output is rescaled by the factor of the tile before."""

    before: np.ndarray | float = 1.0

    def rescale_output(self, acc: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        late, self.before = self.before, alpha
        return super().rescale_output(acc, np.asarray(late))


@mutant(source="made up: exp for the factor and exp2 for the weights", named_by=MAXIMA, executes=BASE2)
class RescaleFactorNatural(TiledAttention):
    """Weights are powers of 2, what was accumulated is rescaled by powers of e."""

    def rescale_factor(self, m: np.ndarray, m_new: np.ndarray) -> np.ndarray:
        return self.round(np.exp(self.subtract(m, m_new)), "softmax")


@mutant(source="made up: the output rescaled one tile in two", named_by=MAXIMA)
class RescaleEveryOtherTile(TiledAttention):
    """The output is rescaled at every other tile alone."""

    def rescale_output(self, acc: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        is_odd = self.tile.cols[0] // len(self.tile.cols) % 2
        return acc if is_odd else super().rescale_output(acc, alpha)


@mutant(source="made up: a row sum read before its last update", named_by=SUM)
class RowSumStale(TiledAttention):
    """The output is divided by the row sum without the last tile, the log-sum-exp has all of it."""

    before: np.ndarray | float = 0.0

    def accumulate_row_sum(self, l: np.ndarray, p: np.ndarray) -> np.ndarray:
        self.before = l
        return super().accumulate_row_sum(l, p)

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().finish(acc, np.where(self.before == 0, l, self.before))


@mutant(source="made up: the output divided within the loop", named_by=SUM)
class DividedByPartialSums(TiledAttention):
    """Weights are divided by the row sum so far, and not corrected when it grows."""

    def cast_probabilities(self, p: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().cast_probabilities(self.round(p / self.nonzero(l), "softmax"), l)

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().finish(acc, np.minimum(l, 1.0))


@mutant(source="made up: weights cast before the maximum is subtracted", named_by=SHIFT, dtype="float16")
class WeightsCastUnshifted(TiledAttention):
    """exp(s) is cast to the format of the weights, and multiplied by exp(-m) afterwards: it overflows."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        raised = self.round(self.exponential(s), "probabilities")
        return self.round(raised * self.exponential(-np.where(np.isneginf(m), 0.0, m)), "softmax")


@mutant(source="made up: registers spilled in the output's dtype", named_by=MAXIMA, dtype="bfloat16", dtypes=HALVES)
class OutputStoredBetweenTiles(TiledAttention):
    """The output accumulated so far is stored in the dtype of the inputs after each tile."""

    def accumulate_output(self, acc: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
        return self.round(super().accumulate_output(acc, w, v), "output")


@mutant(source="made up: a reciprocal in the input's dtype", named_by=MAXIMA, dtype="bfloat16", dtypes=HALVES)
class ReciprocalNarrow(TiledAttention):
    """The reciprocal of the row sum is rounded to the dtype of the inputs."""

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().finish(acc, 1 / self.round(1 / self.nonzero(l), "output"))


@mutant(source="made up: half of a logarithm", named_by=LSE)
class LseWithoutMaximum(TiledAttention):
    """The log-sum-exp is the logarithm of the row sum: the maximum is not added back."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().log_sum_exp(np.where(np.isneginf(m), m, 0.0), l)


@mutant(source="made up: a maximum of products that are scaled later", named_by=LSE)
class LseOfUnscaledMaximum(TiledAttention):
    """The maximum enters the log-sum-exp without the scale."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().log_sum_exp(m / self.factor(), l)


narrow("row_sum_of_uncast", "The row sum adds weights before their cast, that of the cast ones is declared.",
       source="Dao-AILab/flash-attention#2721, arXiv 2510.04212",
       named_by=HULL, dtype="bfloat16", contract=replace(FUSED, row_sum_of="cast"))  # fmt: skip
narrow("lazy_rescale_overflows", "Rescaling waits until weights reach exp(12), beyond float16.",
       source="made up: the threshold of lazy rescaling that float32 weights can afford",
       named_by=MAXIMA, dtype="float16", reference_slack=12.0,
       contract=replace(FUSED, reference_slack=5.5))  # fmt: skip
narrow("tanh_off", "The tanh of the softcap is off by 2^-11.",
       source="made up: the error that the PTX manual states for tanh.approx.f32",
       named_by=LSE, dtype="float32", tanh_error=8.0, inaccuracy=2.0**10)  # fmt: skip
narrow("bfloat16_truncated", "Conversions to bfloat16 drop bits, rounding to nearest is declared.",
       source="made up: bfloat16 taken as the upper half of a float32",
       named_by=OUTPUT, dtype="bfloat16", rounding="toward_zero")  # fmt: skip
narrow("bfloat16_lse", "The log-sum-exp is stored in bfloat16, float32 is declared.",
       source="made up: one allocation for all outputs",
       named_by=LSE, dtype="bfloat16", lse="bfloat16")  # fmt: skip

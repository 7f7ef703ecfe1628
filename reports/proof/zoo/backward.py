"""Mutants of the backward pass in formula, rounding and scheduling: the forward pass is right, one step is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.tile import Tile

from .mutants import mutant

QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
BIAS = "gradients.bias_gradients_are_within_their_bounds"
SOFTCAP = "gradients.gradients_pass_through_the_softcap"
ONE_PRODUCT = "gradient_laws.q_and_k_have_one_inner_product_with_their_gradients"


@mutant(source="NVIDIA/cudnn-frontend#421", named_by="gradient_laws.bias_gradients_sum_to_zero_over_the_keys")
class DeltaForgotten(TiledGradients):
    """dA = P dP: the term rowsum(dO * O) is left out."""

    def delta(self) -> np.ndarray:
        return self.add_lse_cotangent(np.zeros(self.L.shape))


@mutant(
    source="Dao-AILab/flash-attention#1817",
    named_by="gradients.the_cotangent_of_the_log_sum_exp_is_honored",
)
class LseCotangentDropped(TiledGradients):
    """A loss on the log-sum-exp has no gradient."""

    def add_lse_cotangent(self, delta: np.ndarray) -> np.ndarray:
        return delta


@mutant(source="flashinfer-ai/flashinfer#2113", named_by="gradient_laws.value_gradients_sum_to_the_cotangent")
class SavedLseInBase2(TiledGradients):
    """The log-sum-exp is saved in base 2 and read as a natural one."""

    def recompute_weights(self) -> np.ndarray:
        self.L = self.L / np.log(2.0)
        weights = super().recompute_weights()
        self.L = self.L * np.log(2.0)
        return weights


@mutant(source="made up: exp(s) / exp(L) for exp(s - L)", named_by="gradients.value_gradients_are_within_their_bounds")
class WeightsAsQuotient(TiledGradients):
    """Weights are exp(s) / exp(LSE), right until either overflows."""

    def recompute_weights(self) -> np.ndarray:
        return self.exponential(self.hide(self.scores())) / self.nonzero(self.exponential(self.L))


@mutant(
    source="NVIDIA/TransformerEngine#3216",
    named_by="gradients.gradients_of_structured_activations_are_within_their_bounds",
)
class ActivationsSaturate(TiledGradients):
    """Scores above 64 saturate when they are computed again, which independent normal inputs never reach."""

    def scores(self) -> np.ndarray:
        return np.minimum(super().scores(), 64.0)


@mutant(source="made up: the chain rule cut short", named_by=SOFTCAP)
class SoftcapSlopeForgotten(TiledGradients):
    """dS = dA, as if the softcap had slope 1."""

    def through_softcap(self, dA: np.ndarray) -> np.ndarray:
        return dA


@mutant(source="made up: the slope at the wrong score", named_by=SOFTCAP)
class SoftcapSlopeOfCapped(TiledGradients):
    """The slope of the softcap is taken at the score that was capped already."""

    def softcap_slope(self, s: np.ndarray, capped: np.ndarray) -> np.ndarray:
        return super().softcap_slope(capped, s)


@mutant(source="made up: the scale folded into K, not into dQ", named_by=ONE_PRODUCT)
class QueryGradientUnscaled(TiledGradients):
    """dQ is not multiplied by the scale."""

    def finish_dq(self, dq: np.ndarray) -> np.ndarray:
        return dq


@mutant(source="made up: the scale in dS and again in dK", named_by=ONE_PRODUCT)
class KeyGradientScaledTwice(TiledGradients):
    """dK is multiplied by the scale twice."""

    def finish_dk(self, dk: np.ndarray) -> np.ndarray:
        return super().finish_dk(super().finish_dk(dk))


@mutant(source="HKUSTDial/flash-sparse-attention#194", named_by=BIAS)
class BiasGradientOverwritten(TiledGradients):
    """Batch entries, heads and queries that share an entry of the bias overwrite one another's gradient."""

    def sum_over(self, x: np.ndarray, axis: int) -> np.ndarray:
        return np.take(x, [-1], axis) if x.shape[axis] else super().sum_over(x, axis)


@mutant(source="jax-ml/jax#40128, jax-ml/jax#40140", named_by=BIAS)
class BiasGradientRoundedFirst(TiledGradients):
    """Terms of dBias are rounded to bfloat16 before they are added up."""

    def reduce_bias(self, dA: np.ndarray) -> np.ndarray:
        return super().reduce_bias(rounded(dA, "bfloat16"))


@mutant(source="ROCm/composable_kernel#1397", named_by=QUERY_AND_KEY)
class QueryGradientAtomics(TiledGradients):
    """Tiles add to dQ in float16, where the contract promises float32."""

    def accumulate_dq(self, dq: np.ndarray, dS: np.ndarray, k: np.ndarray) -> np.ndarray:
        return rounded(super().accumulate_dq(dq, dS, k), "float16")


@mutant(source="made up: gradients clipped to a range", named_by="gradient_laws.gradients_are_linear_in_the_cotangent")
class WeightGradientClipped(TiledGradients):
    """dP is clipped to the range from -4 to 4."""

    def weight_gradient(self) -> np.ndarray:
        return super().weight_gradient().clip(-4, 4)


@mutant(
    source="made up: gradients in fixed point",
    named_by="gradient_laws.scaling_the_cotangent_by_a_power_of_two_scales_the_gradients",
)
class ScoreGradientFixedPoint(TiledGradients):
    """dS is rounded to multiples of 2^-26."""

    def cast_score_gradient(self, dS: np.ndarray) -> np.ndarray:
        return np.rint(super().cast_score_gradient(dS) * 2.0**26) * 2.0**-26


@mutant(
    source="Dao-AILab/flash-attention#414, Dao-AILab/flash-attention#988",
    named_by="gradient_independence.equal_backward_calls_give_equal_gradients",
)
class QueryGradientOrderChanges(TiledGradients):
    """Tiles add to dQ in another order at every call, although equal bits are declared."""

    def tiles(self) -> Iterator[Tile]:
        tiles = list(super().tiles())
        shift = next(self.calls) % max(len(tiles), 1)
        yield from tiles[shift:] + tiles[:shift]


@mutant(
    source="Dao-AILab/flash-attention#1537, Dao-AILab/flash-attention#2470",
    named_by="gradient_independence.every_element_of_the_gradients_is_written",
)
class TailGradientUnwritten(TiledGradients):
    """dK and dV of the last, ragged tile of keys are not written; NaN stands for what memory held."""

    def place(self, whole: np.ndarray, part: np.ndarray) -> None:
        super().place(whole, part if self.tile.cols[-1] < self.Sk else np.full(part.shape, np.nan))


@mutant(source="Dao-AILab/flash-attention#988", named_by=None, conventions={"deterministic": False})
class AtomicGradients(QueryGradientOrderChanges):
    """Tiles add to dQ in another order at every call, and no equal bits are declared."""

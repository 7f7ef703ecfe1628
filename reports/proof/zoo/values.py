"""Mutants that treat V, or the size of numbers, in a way that is not linear, symmetric or scale-free."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant


@mutant(
    source="XunhaoLai/native-sparse-attention-triton#27, pytorch/pytorch#133495",
    named_by="accuracy.output_is_within_its_bound",
)
class ValuesCutAtHeadDim(TiledAttention):
    """Columns of V beyond the head dimension are not loaded."""

    def load_v(self) -> np.ndarray:
        return np.where(np.arange(self.Dv) < self.D, super().load_v(), 0.0)


@mutant(source="Dao-AILab/flash-attention#2552", named_by="linearity.columns_of_v_do_not_mix")
class ValueColumnsWrap(TiledAttention):
    """Columns of V beyond the head dimension are read from the first columns again."""

    def load_v(self) -> np.ndarray:
        return super().load_v()[..., np.arange(self.Dv) % self.D]


@mutant(source="made up: one scale for a tile of values", named_by="linearity.outputs_add_up")
class ValuesShareScale(TiledAttention):
    """Values are stored in units of 2^-12 of the largest one of their tile."""

    def load_v(self) -> np.ndarray:
        v = super().load_v()
        grid = np.abs(v).max(axis=(-1, -2), keepdims=True) * 2.0**-12
        return np.where(grid > 0, np.rint(v / np.where(grid > 0, grid, 1.0)) * grid, v)


@mutant(source="made up: an epsilon against zeros", named_by="linearity.zero_values_give_zero")
class OutputRaised(TiledAttention):
    """Outputs are raised by 1e-9."""

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        out = super().finish(acc, l)
        return self.round(np.where(l == 0, out, out + 1e-9), "output")


@mutant(
    source="made up: a range that was meant to be symmetric", named_by="online_rescaling.negating_v_negates_the_output"
)
class ValuesClippedBelow(TiledAttention):
    """Values below -2 are clipped, values above 2 are not."""

    def load_v(self) -> np.ndarray:
        return np.maximum(super().load_v(), -2.0)


@mutant(source="made up: quantization that rounds down", named_by="online_rescaling.negating_q_and_k_changes_nothing")
class QueriesRoundedDown(TiledAttention):
    """Queries are rounded down to multiples of 2^-12."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return super().score(np.floor(q * 2.0**12) * 2.0**-12, k)


@mutant(
    source="made up: outputs in fixed point",
    named_by="online_rescaling.scaling_v_by_a_power_of_two_scales_the_output",
)
class OutputFixedPoint(TiledAttention):
    """Outputs are rounded to multiples of 2^-22."""

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.round(np.rint(super().finish(acc, l) * 2.0**22) * 2.0**-22, "output")


@mutant(source="made up: a norm that underflows", named_by="special_values.subnormal_numbers_are_handled")
class QueriesNormalized(TiledAttention):
    """Queries are divided by their norm and multiplied back; the square of a tiny norm is flushed to zero."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        norm = np.sqrt(self.round((q * q).sum(axis=-1, keepdims=True), "score_accumulation"))
        unit = np.where(q == 0, 0.0, q / norm)
        return super().score(unit, k) * np.where(norm == 0, 1.0, norm)


@mutant(source="made up: guard bits without room for them", named_by="special_values.huge_values_do_not_overflow")
class ValuesRaised(TiledAttention):
    """Values are multiplied by 64 before they are added up, and the sum is divided by 64: it overflows."""

    def load_v(self) -> np.ndarray:
        return 64.0 * super().load_v()

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        return super().finish(acc / 64.0, l)


@mutant(
    source="made up: nan_to_num against a bug elsewhere",
    named_by="special_values.a_nan_in_v_reaches_its_column_of_the_rows_that_see_it",
)
class NanLaundered(TiledAttention):
    """NaN in V is read as zero, which hides the failure that made it."""

    def load_v(self) -> np.ndarray:
        v = super().load_v()
        return np.where(np.isnan(v), 0.0, v)


@mutant(
    source="made up: scores kept finite, so that a mask may be added to them",
    named_by="special_values.an_infinite_score_gives_no_number",
)
class ScoresKeptFinite(TiledAttention):
    """Scores are clipped to 1e30, so that a row with an infinite one gets the value of its key."""

    def score(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        return np.clip(super().score(q, k), -1e30, 1e30)

"""Mutants of the backward pass in its loops and accumulators: the last block only, the first columns only, too late."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.backward import TiledGradients

from .mutants import mutant

QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
VALUE = "gradients.value_gradients_are_within_their_bounds"
BIAS = "gradients.bias_gradients_are_within_their_bounds"
AGAIN = "gradient_independence.equal_backward_calls_give_equal_gradients"
SUMMED = "gradient_laws.value_gradients_sum_to_the_cotangent"
DIAGONAL = "gradients.the_diagonal_of_the_gradients_is_where_the_convention_says"
GROUPED = "gradients.a_shared_key_gets_the_sum_of_its_groups_gradients"
#: Dtypes at which bfloat16 is less than what was promised.
NOT_BFLOAT16 = ("float32", "float16")
#: Queries in a block.
BM = 24


@mutant(source="Dao-AILab/flash-attention#2552", named_by=SUMMED)
class ValueGradientColumns(TiledGradients):
    """Columns of dV come in chunks of half the head dimension, and a chunk that does not fit is the first again."""

    def accumulate_over_queries(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        chunk, columns = max(self.D // 2, 1), np.arange(x.shape[-1])
        if x.shape[-1] == self.Dv != self.D:
            columns = np.where(columns < self.Dv // chunk * chunk, columns, columns % chunk)
        return super().accumulate_over_queries(w, x[..., columns])


@mutant(source="Dao-AILab/flash-attention#2481", named_by=AGAIN)
class DeltaNotAwaited(TiledGradients):
    """At every other call delta is read before it is written for all but the first 16 queries, and is zero there."""

    def delta(self) -> np.ndarray:
        is_early = next(self.calls) % 2 == 1
        unwritten = is_early & (np.arange(self.Sq)[:, None] >= 16)
        return np.where(unwritten, 0.0, super().delta())


@mutant(source="made up: delta over one chunk of columns", named_by=QUERY_AND_KEY)
class DeltaOfFirstColumns(TiledGradients):
    """delta adds up the first 64 columns of dO * O."""

    def delta(self) -> np.ndarray:
        whole, self.O = self.O, np.where(np.arange(self.Dv) < 64, self.O, 0.0)
        delta = super().delta()
        self.O = whole
        return delta


@mutant(source="made up: accumulators cleared inside the loop", named_by=VALUE)
class LastBlockOfQueries(TiledGradients):
    """dK and dV hold what the last block of 24 queries adds to them."""

    def accumulate_over_queries(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        last = (np.arange(self.Sq) >= (self.Sq - 1) // BM * BM)[:, None]
        return super().accumulate_over_queries(np.where(last, w, 0.0), x)


@mutant(source="made up: a head dimension in two halves, one accumulator", named_by=QUERY_AND_KEY)
class KeyGradientUpperHalf(TiledGradients):
    """Columns of dK from 64 on are never added up."""

    def finish_dk(self, dk: np.ndarray) -> np.ndarray:
        return np.where(np.arange(self.D) < 64, super().finish_dk(dk), 0.0)


@mutant(source="made up: a store where an addition belongs", named_by=QUERY_AND_KEY)
class QueryGradientOverwritten(TiledGradients):
    """dQ holds what the last tile of keys adds to it."""

    def accumulate_dq(self, dq: np.ndarray, dS: np.ndarray, k: np.ndarray) -> np.ndarray:
        return super().accumulate_dq(0.0 * dq, dS, k)


@mutant(source="made up: the first block of queries below the diagonal, rounded up", named_by=DIAGONAL)
class CausalGradientStartsLate(TiledGradients):
    """The causal loop over queries starts at the first block of 24 that lies below the diagonal entirely."""

    def accumulate_over_queries(self, w: np.ndarray, x: np.ndarray) -> np.ndarray:
        first = int(self.tile.cols[0] - (self.diagonal()[0, 0] if self.Sq else 0))
        reached = np.arange(self.Sq)[:, None] >= -(-first // BM) * BM
        return super().accumulate_over_queries(np.where(reached | (not self.causal), w, 0.0), x)


@mutant(source="made up: the scale of dQ and dK in dBias as well", named_by=BIAS)
class BiasGradientScaled(TiledGradients):
    """dBias is multiplied by the scale."""

    def reduce_bias(self, dA: np.ndarray) -> np.ndarray:
        return super().reduce_bias(dA) * self.factor()


@mutant(source="made up: a mean for a sum", named_by=GROUPED)
class GroupGradientAveraged(TiledGradients):
    """dK and dV of a kv head are the mean over the query heads that read it."""

    def sum_over_group(self, per_head: np.ndarray) -> np.ndarray:
        return super().sum_over_group(per_head) * (self.k.shape[1] / per_head.shape[1])


@mutant(source="made up: the cast of a half-precision kernel left in", named_by=QUERY_AND_KEY, dtypes=NOT_BFLOAT16)
class ScoreGradientsBfloat16(TiledGradients):
    """dS is rounded to bfloat16 before it meets K and Q."""

    def cast_score_gradient(self, dS: np.ndarray) -> np.ndarray:
        return rounded(super().cast_score_gradient(dS), "bfloat16")


@mutant(source="made up: a buffer for delta in the dtype of the output", named_by=QUERY_AND_KEY, dtypes=NOT_BFLOAT16)
class DeltaStoredNarrow(TiledGradients):
    """delta is rounded to bfloat16 when it is stored."""

    def delta(self) -> np.ndarray:
        return rounded(super().delta(), "bfloat16")

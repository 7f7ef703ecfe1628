"""Mutants of attention sinks: which sink a head has, where it is added, how often, and what gradient it gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import Order, rounded
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.split import SplitAttention
from attn_spec.emulation.tile import Tile
from attn_spec.kernels.frameworks.framework import values_of

from .mutants import mutant

SHARE = "sinks.a_sink_takes_its_share_of_the_weight"
ABSENT = "sinks.a_sink_of_minus_infinity_changes_nothing"
FAR = "sinks.a_sink_far_from_the_scores_is_no_exception"
ALONE = "sinks.without_a_key_the_sink_has_all_the_weight"
KEY = "sinks.a_sink_is_a_key_of_value_zero"
POSITIONS = "sinks.a_sink_is_not_moved_by_the_positions_of_keys"
LSE = "sinks.the_log_sum_exp_has_the_sink_as_the_convention_says"
GRADIENT = "sinks.sink_gradients_are_within_their_bounds"
BESIDE = "sinks.gradients_beside_a_sink_are_within_their_bounds"
COTANGENT = "gradients.the_cotangent_of_the_log_sum_exp_is_honored"
SINKS = ("sinks",)
#: Tiles with so few keys that short sequences have several; the sink is added at the end.
SHORT, LAST = Order(kv_tile=4), Order(kv_tile=4, sink="last")
MAXIMUM = replace(FUSED, sink_reference="maximum")


@mutant(source="made up: sinks of all kinds that are added rightly", named_by=None, order=LAST, takes=SINKS)
class SinkAddedLast(TiledAttention):
    """The sink is added to the finished row sum, by the maximum of the keys."""


@mutant(source="ROCm/rocm-libraries#12227", named_by=SHARE, order=SHORT, takes=SINKS)
class SinkInEachSplit(SplitAttention):
    """Each split starts from the sink, so that the row sum has it three times."""

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        of_sink = [] if self.sinks is None else tiles[-1:]
        return [[*split, *of_sink] if number else split for number, split in enumerate(super().deal(tiles)[::-1])]

    def tiles(self) -> Iterator[Tile]:
        self.order = replace(self.order, sink="last")
        return super().tiles()


@mutant(source="made up: a sink inside the loop over tiles", named_by=SHARE, order=SHORT, takes=SINKS)
class SinkInEachTile(TiledAttention):
    """The row sum of each tile has the term of the sink."""

    def accumulate_row_sum(self, l: np.ndarray, p: np.ndarray) -> np.ndarray:
        l = super().accumulate_row_sum(l, p)
        if self.sinks is None or self.tile.is_last:
            return l
        m = self.tile_max(self.scores())
        return self.add(l, np.where(np.isfinite(m), self.weights(self.sink_score(), m), 0.0), "row_sum")


@mutant(source="made up: sinks indexed as keys are", named_by=SHARE, takes=SINKS)
class SinkOfTheKvHead(TiledAttention):
    """Query head h has the sink of head h // group."""

    def load_sink(self) -> np.ndarray:
        z = super().load_sink()
        return np.take(z, self.map_kv_head(), 1) if z.shape[1] > 1 else z


@mutant(source="made up: heads dealt to ranks, sinks not", named_by=SHARE, takes=SINKS)
class SinkOfTheFirstHead(TiledAttention):
    """All heads have the sink of the first."""

    def load_sink(self) -> np.ndarray:
        return super().load_sink()[:, :1]


@mutant(source="ROCm/rocm-libraries#12229", named_by=SHARE, takes=SINKS)
class SinkScaled(TiledAttention):
    """The sink is multiplied by the scale, as q.k is."""

    def load_sink(self) -> np.ndarray:
        return self.times(super().load_sink(), self.factor(), "stored_scores")


@mutant(source="ROCm/rocm-libraries#12229", named_by=KEY, takes=SINKS)
class SinkSoftcapped(TiledAttention):
    """The sink passes the softcap, as scores do."""

    def load_sink(self) -> np.ndarray:
        return self.apply_softcap(super().load_sink())


@mutant(source="made up: a sink at the position after the last key", named_by=SHARE, takes=SINKS)
class SinkBehindTheDiagonal(TiledAttention):
    """The causal mask and the window hide the sink as a key behind the last."""

    def sees(self, cols: np.ndarray) -> np.ndarray:
        seen = super().sees(cols)
        return seen if self.sinks is None else np.where(cols == self.Sk, seen & self.on_band(cols), seen)


@mutant(source="NVIDIA/TransformerEngine#2541, NVIDIA/TransformerEngine#3551", named_by=SHARE, takes=SINKS)
class SinkAlwaysZero(TiledAttention):
    """Every sink counts as 0, whatever it is: softmax off by one."""

    def load_sink(self) -> np.ndarray:
        return 0.0 * super().load_sink()

    def sees_sink(self) -> np.ndarray:
        return np.ones(values_of(self.sinks).shape, dtype=bool)


@mutant(source="made up: one term of the row sum in a matrix unit's format", named_by=SHARE, takes=SINKS)
class SinkRounded(TiledAttention):
    """The sink is rounded to bfloat16 before its exponential."""

    def load_sink(self) -> np.ndarray:
        return rounded(super().load_sink(), "bfloat16")


@mutant(source="xlite-dev/imp#1345", named_by=SHARE, order=SHORT, takes=SINKS)
class SinkDroppedOfShortRows(TiledAttention):
    """Calls of one tile of keys take a path that forgets the sink."""

    def sees_sink(self) -> np.ndarray:
        return super().sees_sink() & (self.Sk > (self.order.kv_tile or 0))


@mutant(source="made up: exp(z) beside exp(s - m)", named_by=SHARE, order=LAST, takes=SINKS)
class SinkWithoutReference(TiledAttention):
    """exp(z) is added to the row sum without the maximum that keys are reduced by."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        of_sink = self.sinks is not None and self.tile.cols[0] == self.Sk
        return super().weights(s, np.where(np.isfinite(m) & of_sink, 0.0, m))


@mutant(
    source="made up: a sink that is no part of the maximum",
    named_by=FAR,
    order=LAST,
    takes=SINKS,
    contract=replace(MAXIMUM, kv_tile=4),
)
class SinkOverflows(TiledAttention):
    """exp(z - m) is added by the maximum of the keys, though the contract says that the sink takes part in it."""


@mutant(source="made up: 0 for a sink that is not there", named_by=ABSENT, takes=SINKS)
class AbsentSinkCountsAsZero(TiledAttention):
    """A sink of minus infinity counts as 0, so that 1 is added to the row sum."""

    def load_sink(self) -> np.ndarray:
        z = super().load_sink()
        return np.where(z == -np.inf, 0.0, z)

    def sees_sink(self) -> np.ndarray:
        return np.ones(values_of(self.sinks).shape, dtype=bool)


@mutant(source="Dao-AILab/flash-attention#2706", named_by=ALONE, takes=SINKS)
class SinkIgnoredWithoutKeys(TiledAttention):
    """A query that sees no key has the log-sum-exp minus infinity, although it has a sink."""

    def log_sum_exp(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        lse = super().log_sum_exp(m, l)
        return np.where(self.visible(np.arange(self.Sk)).any(axis=-1), lse, -np.inf)


@mutant(source="made up: all keys alike where none is seen", named_by=ALONE, takes=SINKS)
class MeanBesideASinkAlone(TiledAttention):
    """A query that sees no key has the mean of all values beside its sink."""

    def finish(self, acc: np.ndarray, l: np.ndarray) -> np.ndarray:
        out, seen = super().finish(acc, l), self.visible(np.arange(self.Sk)).any(axis=-1, keepdims=True)
        if self.sinks is None or not self.Sk:
            return out
        return np.where(seen, out, self.v[:, self.map_kv_head()].mean(axis=2, keepdims=True))


@mutant(source="made up: the first token as the sink", named_by=KEY, takes=SINKS)
class SinkHasTheFirstValue(TiledAttention):
    """The weight of the sink multiplies the value of the first key."""

    def load_v(self) -> np.ndarray:
        v, at_sink = super().load_v(), self.tile.cols == self.Sk
        if self.sinks is None or not at_sink.any() or not self.Sk:
            return v
        return np.where(at_sink[:, None], self.v[:, self.map_kv_head()][:, :, :1], v)


@mutant(
    source="made up: a bias of m (j - context), as unified_attention of vLLM 0.33.0 has it",
    named_by=POSITIONS,
    order=Order(alibi_from="first"),
    takes=SINKS,
)
class SinkStaysWhereScoresMove(TiledAttention):
    """ALiBi counts keys from the first, which moves all scores of a row, but not its sink."""

    def moved_sink(self) -> np.ndarray:
        return self.load_sink()


@mutant(source="made up: an output that is scaled afterwards", named_by=LSE, takes=SINKS)
class SinkNotInLse(TiledAttention):
    """The log-sum-exp is that of the keys alone."""

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        out, lse = super().__call__()
        if self.sinks is None:
            return out, lse
        self.sinks = None
        return out, super().__call__()[1]


@mutant(source="made up: a convention that is not kept", named_by=LSE, takes=SINKS, conventions={"sink_in_lse": False})
class SinkInLseAgainstTheConvention(TiledAttention):
    """The log-sum-exp has the term of the sink, although the kernel declares that it has not."""


@mutant(source="made up: d/dz of -log N", named_by=GRADIENT, takes=SINKS)
class SinkGradientOfTheWrongSign(TiledGradients):
    """dSinks has the wrong sign."""

    def reduce_sinks(self, dA: np.ndarray) -> np.ndarray:
        return -super().reduce_sinks(dA)


@mutant(source="Dao-AILab/flash-attention#2102, Dao-AILab/flash-attention#1973", named_by=GRADIENT, takes=SINKS)
class SinkGradientOfOneRow(TiledGradients):
    """dSinks is that of the last row alone."""

    def reduce_sinks(self, dA: np.ndarray) -> np.ndarray:
        return super().reduce_sinks(np.where(np.arange(self.Sq)[:, None] == self.Sq - 1, dA, 0.0))


@mutant(source="made up: batch entries that overwrite one another", named_by=GRADIENT, takes=SINKS)
class SinkGradientOfOneEntry(TiledGradients):
    """dSinks is that of the last batch entry alone."""

    def reduce_sinks(self, dA: np.ndarray) -> np.ndarray:
        last = np.arange(len(dA)) == len(dA) - 1
        return super().reduce_sinks(np.where(last[:, None, None, None], dA, 0.0))


@mutant(source="ROCm/aiter#3070, jax-ml/jax#40128", named_by=GRADIENT, takes=SINKS)
class SinkGradientInHalf(TiledGradients):
    """Terms of dSinks are rounded to bfloat16 before they are added up."""

    def reduce_sinks(self, dA: np.ndarray) -> np.ndarray:
        return super().reduce_sinks(rounded(dA, "bfloat16"))


@mutant(source="made up: delta without the cotangent of the log-sum-exp", named_by=COTANGENT, takes=SINKS)
class SinkGradientWithoutLseCotangent(TiledGradients):
    """dSinks lacks the cotangent of the log-sum-exp."""

    def reduce_sinks(self, dA: np.ndarray) -> np.ndarray:
        if self.dL is not None:
            dA = dA - self.exponential(self.subtract_lse(self.sink_score())) * self.dL
        return super().reduce_sinks(dA)


@mutant(source="made up: weights renormalized over keys", named_by=BESIDE, takes=SINKS)
class WeightsWithoutTheSink(TiledGradients):
    """The backward pass divides weights by the sum over keys alone."""

    def subtract_lse(self, s: Any) -> Any:
        if self.sinks is None:
            return super().subtract_lse(s)
        with_sink, z = self.L, self.moved_sink()
        rest = np.log1p(-np.minimum(np.exp(np.where(z == -np.inf, -np.inf, z - with_sink)), 1.0 - 2.0**-20))
        self.L = with_sink + rest
        found = super().subtract_lse(s)
        self.L = with_sink
        return found

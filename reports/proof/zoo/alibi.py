"""Mutants of ALiBi: whose slope multiplies which distance, and where the product is added."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.emulation.arithmetic import Order, rounded
from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.frameworks.framework import values_of

from .mutants import mutant

WITHIN = "positions.alibi_gives_an_answer_within_its_bound"
DISTANCE = "positions.only_the_distance_counts_under_alibi"
GRADIENTS = "positions.gradients_under_alibi_are_within_their_bounds"
PRESS = "arXiv 2108.12409"


@mutant(source="made up: slopes indexed as keys are", named_by=WITHIN)
class SlopeOfTheKvHead(TiledAttention):
    """Query head h has the slope of head h // group."""

    def slope_times(self, d: np.ndarray) -> np.ndarray:
        slopes = values_of(self.slopes)
        return np.take(super().slope_times(d), self.map_kv_head(), 1) if slopes.shape[1] > 1 else super().slope_times(d)


@mutant(source="made up: heads dealt to ranks, slopes not", named_by=WITHIN)
class SlopesOfTheFirstHeads(TiledAttention):
    """Both halves of the heads have the slopes of the first half."""

    def slope_times(self, d: np.ndarray) -> np.ndarray:
        product = super().slope_times(d)
        heads = product.shape[1]
        return product[:, np.arange(heads) % max(heads // 2, 1)]


@mutant(
    source="made up: a query of a cache counted from 0",
    named_by=WITHIN,
    conventions={"causal_alignment": "bottom_right"},
    lacks=("causal_alignment",),
)
class DistanceFromTheTopLeft(TiledAttention):
    """Query i stands at key i, although keys of a cache come before."""

    def alibi_origin(self) -> np.ndarray:
        return np.arange(self.Sq)[:, None]


@mutant(source=f"{PRESS}: m added before the division by sqrt(D)", named_by=WITHIN)
class SlopeScaled(TiledAttention):
    """The term is multiplied by the scale, as q.k is."""

    def slope_times(self, d: np.ndarray) -> np.ndarray:
        return self.times(super().slope_times(d), self.factor(), "score_accumulation")


@mutant(source="ggml-org/llama.cpp#20031", named_by=WITHIN)
class SlopesBeyondAPowerOfTwo(TiledAttention):
    """Heads beyond the largest power of two have the slope of the head before them."""

    def slope_times(self, d: np.ndarray) -> np.ndarray:
        product = super().slope_times(d)
        heads = np.arange(product.shape[1])
        return product[:, heads - (heads >= 2 ** int(np.log2(len(heads))))]


@mutant(source="meta-pytorch/attention-gym#86", named_by=WITHIN)
class FarKeysPreferred(TiledAttention):
    """The term is m |i - j|."""

    def load_alibi(self) -> np.ndarray:
        return -super().load_alibi()


@mutant(source=f"{PRESS} is causal; its formula for others", named_by=WITHIN)
class FutureKeysPreferred(TiledAttention):
    """The term is m (j - i) for keys after the query too."""

    def load_alibi(self) -> np.ndarray:
        return self.slope_times(self.tile.cols - self.alibi_origin())


@mutant(source="made up: every term of a score under the softcap", named_by=WITHIN)
class AlibiUnderTheSoftcap(TiledAttention):
    """The term is added before tanh."""

    def apply_softcap(self, s: np.ndarray) -> np.ndarray:
        if self.softcap is None or self.slopes is None:
            return super().apply_softcap(s)
        return super().apply_softcap(self.add(s, self.load_alibi(), "stored_scores"))

    def apply_alibi(self, s: np.ndarray) -> np.ndarray:
        return super().apply_alibi(s) if self.softcap is None else s


@mutant(source="made up: slopes stored as the model is", named_by=WITHIN)
class SlopesInBfloat16(TiledAttention):
    """The slopes are rounded to bfloat16."""

    def slope_times(self, d: np.ndarray) -> np.ndarray:
        slopes = rounded(values_of(self.slopes), "bfloat16")
        return self.times(slopes, d.astype(np.float64), "score_accumulation")


@mutant(source="made up: positions in the dtype of the model", named_by=DISTANCE)
class PositionsOfFiveBits(TiledAttention):
    """Positions of keys have 5 bits, a scale model of bfloat16: from 32 on some coincide."""

    def load_alibi(self) -> np.ndarray:
        fraction, exponent = np.frexp(self.tile.cols.astype(float))
        cols = np.ldexp(np.rint(fraction * 32) / 32, exponent)
        return self.slope_times(-np.abs(cols - self.alibi_origin()))


@mutant(
    source="made up: log2(e) folded into the scale alone",
    named_by=WITHIN,
    executes=replace(PRECISE, exponent="base2"),
)
class SlopeInNaturalUnits(TiledAttention):
    """Scores are in units of ln 2, the term is not."""

    def apply_alibi(self, s: np.ndarray) -> np.ndarray:
        return s if self.slopes is None else self.add(s, self.load_alibi(), "stored_scores")


@mutant(
    source="made up: m j added to all rows, as where no log-sum-exp is returned",
    named_by=WITHIN,
    order=Order(alibi_from="first"),
)
class LseOfMovedScores(TiledAttention):
    """Keys are counted from the first one, and so is the log-sum-exp."""

    def moved_back(self, lse: np.ndarray) -> np.ndarray:
        return lse


@mutant(source="made up: an index within the tile", named_by=DISTANCE)
class DistanceWithinTheTile(TiledAttention):
    """Keys are counted from the first one of their tile."""

    def load_alibi(self) -> np.ndarray:
        return self.slope_times(-np.abs(self.tile.cols - self.tile.cols[0] - self.alibi_origin()))


@mutant(source="made up: scores computed again without it", named_by=GRADIENTS)
class AlibiForgottenInTheBackwardPass(TiledGradients):
    """Weights are recomputed from scores without the term."""

    def apply_alibi(self, s: np.ndarray) -> np.ndarray:
        return s

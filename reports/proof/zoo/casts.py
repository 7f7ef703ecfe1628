"""Mutants of the cast of scaled probabilities to 8 bits: what saturates, what is flushed, and where the scale goes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import FUSED
from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.sound import PRECISE

from .mutants import mutant, narrow

LSE = "accuracy.log_sum_exp_is_within_its_bound"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
SUM = "softmax.weights_sum_to_one"
SHARE = "sinks.a_sink_takes_its_share_of_the_weight"
#: Probabilities times 2^8 in float8_e4m3fn, whose cast saturates, as FlashAttention-3 has them.
EIGHT: dict[str, Any] = {"probabilities": "float8_e4m3fn", "probability_scale": 2.0**8, "overflow": "saturates"}
UNSCALED: dict[str, Any] = EIGHT | {"probability_scale": 1.0}
LARGEST: dict[str, Any] = EIGHT | {"probability_scale": 448.0}
LEAVING: dict[str, Any] = LARGEST | {"overflow": "leaves"}
DECLARED, EXECUTED = replace(FUSED, **EIGHT), replace(PRECISE, **EIGHT, exponent="base2")
IN_EXPONENT = Order(scale_in_exponent=True)


@mutant(
    source="made up: the scale of probabilities left in the logarithm",
    named_by=LSE,
    contract=DECLARED,
    executes=EXECUTED,
    order=IN_EXPONENT,
)
class ScaleInTheLse(TiledAttention):
    """The log-sum-exp is of the row sum with its scale."""

    def natural_lse(self, m: np.ndarray, l: np.ndarray) -> np.ndarray:
        return self.log_of_sum(m, l)


@mutant(
    source="kekzl/imp#1345",
    named_by=SHARE,
    contract=DECLARED,
    executes=EXECUTED,
    order=IN_EXPONENT,
    takes=("sinks",),
)
class SinkWithoutTheScale(TiledAttention):
    """The sink is added to a row sum that has the scale of probabilities, without it."""

    def weights(self, s: np.ndarray, m: np.ndarray) -> np.ndarray:
        of_sink = self.tile.cols == self.Sk
        return np.where(of_sink, self.exponential(self.subtract(s, m)), super().weights(s, m))


@mutant(
    source="made up: a format's subnormals left out",
    named_by=MAXIMA,
    contract=replace(FUSED, **UNSCALED),
    executes=replace(PRECISE, **UNSCALED),
)
class SubnormalProbabilitiesFlushed(TiledAttention):
    """A probability below the smallest normal number of 8 bits is 0."""

    def held(self, p: np.ndarray) -> np.ndarray:
        return np.where(p < self.c.format("probabilities").smallest_normal, 0.0, super().held(p))


narrow("p_saturates", "Weights reach 2^8 before they are rescaled, times a scale of 2^8, and saturate at 448.",
       source="Dao-AILab/flash-attention#2694", named_by=SUM, dtype="float32",
       contract=DECLARED, **EIGHT, reference_slack=8 * math.log(2))  # fmt: skip
narrow("p_nan_above_448", "A weight that is not yet rescaled exceeds 448 with its scale, and its cast makes NaN.",
       source="made up: the same without saturation", named_by=MAXIMA, dtype="float32",
       contract=replace(FUSED, **LARGEST), **LEAVING, reference_slack=0.5)  # fmt: skip
narrow("flushed_p_in_the_sum", "The row sum has probabilities that their cast flushes; that of cast ones is declared.",
       source="made up: a row sum in registers, beside probabilities in 8 bits", named_by=SUM, dtype="float32",
       contract=replace(FUSED, **UNSCALED, row_sum_of="cast"), **UNSCALED)  # fmt: skip

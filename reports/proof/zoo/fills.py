"""Mutants of finite fills: low numbers that programs add to scores for minus infinity."""

from __future__ import annotations

import numpy as np

from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

FILLED = "masking.a_bias_as_low_as_a_fill_is_a_number"


@mutant(source="made up: a threshold instead of -inf", named_by=FILLED)
class LowBiasHides(TiledAttention):
    """A bias of -1e4 or less is taken for a mask: a query that has it at all keys sees none."""

    def visible(self, cols: np.ndarray) -> np.ndarray:
        seen = super().visible(cols)
        return seen if self.bias is None else seen & (self.option_tile(self.bias, cols) > -1e4)


@mutant(source="tracel-ai/burn#4697", named_by=FILLED)
class MaximumHasFloor(TiledAttention):
    """The running maximum is at least -1e4, so that minus infinity can be taken from it: lower rows all underflow."""

    def update_max(self, m: np.ndarray, tile_max: np.ndarray) -> np.ndarray:
        return np.maximum(super().update_max(m, tile_max), -1e4)


@mutant(source="made up: a bias kept within what exp can bear", named_by=FILLED)
class BiasClipped(TiledAttention):
    """The bias is at least -500, and the log-sum-exp of a row that is filled whole is off by the rest."""

    def load_bias(self) -> np.ndarray:
        return np.maximum(super().load_bias(), -500.0)

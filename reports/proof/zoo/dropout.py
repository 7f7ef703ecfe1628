"""Mutants of dropout: which weights meet values, and what they are multiplied by."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.backward import TiledGradients
from attn_spec.emulation.dropout import DROPOUT
from attn_spec.emulation.forward import TiledAttention

from .mutants import mutant

OUTPUT = "dropout.weights_that_are_kept_alone_meet_values"
VALUES = "dropout.values_that_are_dropped_change_nothing"
GRADIENTS = "dropout.gradients_pass_the_weights_that_are_kept"


@mutant(source="made up: the mask alone", named_by=OUTPUT, takes=DROPOUT)
class KeptWeightsNotRaised(TiledAttention):
    """Kept weights are not multiplied by 1 / (1 - p)."""

    def keep_factor(self, stage: str = "softmax") -> Any:  # noqa: ARG002
        return self.array(np.array(1.0))


@mutant(source="made up: p taken for the share kept", named_by=OUTPUT, takes=DROPOUT)
class RaisedByTheShareDropped(TiledAttention):
    """Weights that are kept are divided by p."""

    def keep_factor(self, stage: str = "softmax") -> Any:
        return self.round(1 / (self.dropout_p or 1.0), stage)


@mutant(source="made up: scores dropped, as a mask does", named_by=OUTPUT, takes=DROPOUT)
class DroppedBeforeTheSoftmax(TiledAttention):
    """The softmax is over the keys that are kept."""

    def visible(self, cols: np.ndarray) -> np.ndarray:
        seen = super().visible(cols)
        return seen if self.keep is None else seen & (self.option_tile(self.keep, cols) != 0)


@mutant(source="made up: the row sum fused with the product", named_by=OUTPUT, takes=DROPOUT)
class KeptWeightsSummed(TiledAttention):
    """The row sum adds the weights that are kept."""

    def accumulate_row_sum(self, l: Any, p: Any) -> Any:
        return super().accumulate_row_sum(l, p if self.keep is None else self.xp.where(self.keeps(), p, 0.0))


@mutant(source="made up: the counter of a tile starts again", named_by=VALUES, takes=DROPOUT)
class MaskOfTheFirstTile(TiledAttention):
    """Every tile keeps what the first one keeps."""

    def keeps(self) -> Any:
        width = len(self.tile.cols)
        return self.array(self.option_tile(self.keep, np.arange(width)) != 0)


@mutant(source="made up: a mask indexed as keys are", named_by=OUTPUT, takes=DROPOUT)
class MaskOfTheKvHead(TiledAttention):
    """Query head h keeps what head h // group keeps."""

    def keeps(self) -> Any:
        return super().keeps()[:, self.map_kv_head()]


@mutant(source="made up: the counter of a row starts one later", named_by=GRADIENTS, takes=DROPOUT)
class BackwardDropsOthers(TiledGradients):
    """The backward pass keeps for a query what the forward pass kept for the one before."""

    def keeps(self) -> Any:
        return np.roll(super().keeps(), 1, axis=2)


@mutant(source="made up: the factor of dV alone", named_by=GRADIENTS, takes=DROPOUT)
class WeightGradientNotRaised(TiledGradients):
    """dP is dropped, and not multiplied by 1 / (1 - p)."""

    def drop_gradient(self, dP: Any) -> Any:
        return dP if self.keep is None else self.xp.where(self.keeps(), dP, 0.0)


@mutant(source="made up: the softmax's own gradient, of all keys", named_by=GRADIENTS, takes=DROPOUT)
class WeightGradientNotDropped(TiledGradients):
    """dP of a weight that is dropped is dO v^T."""

    def drop_gradient(self, dP: Any) -> Any:
        return dP if self.keep is None else self.times(dP, self.keep_factor(), "stored_scores")


@mutant(source="made up: the weights of the softmax kept for dV", named_by=GRADIENTS, takes=DROPOUT)
class AllWeightsInTheValueGradient(TiledGradients):
    """dV is P^T dO, dropped or not."""

    def drop(self, p: Any) -> Any:
        return p


@mutant(source="aws-neuron/nki-samples#81", named_by=GRADIENTS, takes=DROPOUT)
class DroppedWeightsInTheScoreGradient(TiledGradients):
    """dS is made of the weights that dropout left, and of dP of all keys."""

    def weights_of_scores(self, p: Any) -> Any:
        return super().weights_of_scores(self.drop(p))

    def drop_gradient(self, dP: Any) -> Any:
        return dP

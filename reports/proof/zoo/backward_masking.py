"""Mutants of the backward pass that look at the wrong keys: diagonals, windows, masks, tails, heads, strides.

The forward pass is right; what :class:`TiledGradients` inherits from it is overridden for the gradients alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.arithmetic import Order
from attn_spec.emulation.backward import TiledGradients

from .mutants import mutant
from .plumbing import packed

QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
HIDDEN = "gradients.hidden_keys_have_gradient_zero"
REACHED = "gradients.a_query_reaches_exactly_the_keys_it_sees"


@mutant(
    source="Dao-AILab/flash-attention#436",
    named_by="gradients.the_diagonal_of_the_gradients_is_where_the_convention_says",
    lacks=("causal_alignment",),
    conventions={"causal_alignment": "bottom_right"},
)
class GradientCausalTopLeft(TiledGradients):
    """The forward diagonal ends in the bottom-right corner, the backward one starts in the top-left."""

    def diagonal(self) -> np.ndarray:
        return np.arange(self.Sq)[:, None]


@mutant(source="facebookresearch/xformers#923", named_by=REACHED)
class GradientWindowIgnored(TiledGradients):
    """The window is not passed to the backward pass, which sees all keys."""

    def on_band(self, cols: np.ndarray) -> np.ndarray:
        self.window = (None, None)
        return super().on_band(cols)


@mutant(source="Dao-AILab/flash-attention#443", named_by="gradients.queries_that_see_no_key_have_gradient_zero")
class GradientEmptyRowNan(TiledGradients):
    """exp(s - LSE) of a query that sees no key is taken with s = LSE = -inf."""

    def recompute_weights(self) -> np.ndarray:
        return self.exponential(self.round(self.hide(self.scores()) - self.change_base(self.L), "softmax"))


@mutant(
    source="Dao-AILab/flash-attention#1745, vllm-project/vllm#936",
    named_by="gradients.keys_that_no_query_sees_change_no_gradient",
)
class GradientTimesHiddenNan(TiledGradients):
    """dP of masked keys is multiplied by their weight of zero, although it may be NaN."""

    def weight_gradient(self) -> np.ndarray:
        v = self.load_v()
        return self.accumulate(lambda c: self.dO[..., c, None] * v[..., None, :, c], self.Dv, "gradient_accumulation")


@mutant(
    source="pytorch/pytorch#196678, NVIDIA/cudnn-frontend#1072",
    named_by="gradient_laws.a_constant_added_to_all_scores_changes_no_gradient",
    order=Order(kv_tile=64),
)
class PaddedColumnsVisible(TiledGradients):
    """Columns past the end get the weight exp(0 - LSE), which meets zeros only and is harmless until it is infinite."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        return np.where(self.tile.visible | (self.tile.cols >= self.Sk), s, -np.inf)


@mutant(source="Dao-AILab/flash-attention#2623", named_by=REACHED)
class MaskNotTransposed(TiledGradients):
    """The pass over keys uses the mask of the pass over queries as it is, with queries and keys swapped."""

    def option_tile(self, option: np.ndarray, cols: np.ndarray) -> np.ndarray:
        swapped = option.swapaxes(2, 3) if option is self.mask and self.Sq == self.Sk else option
        return super().option_tile(swapped, cols)


@mutant(source="fla-org/flash-linear-attention#836", named_by=HIDDEN)
class GradientMaskTooWeak(TiledGradients):
    """Masked scores are set to -16 instead of minus infinity before the weights are computed again."""

    def hide(self, s: np.ndarray) -> np.ndarray:
        return np.where(self.tile.visible, s, -16.0)


@mutant(source="marin-community/levanter#449", named_by="gradients.a_shared_key_gets_the_sum_of_its_groups_gradients")
class LastHeadOfGroup(TiledGradients):
    """dK and dV of a kv head take only the last query head that reads it."""

    def sum_over_group(self, per_head: np.ndarray) -> np.ndarray:
        group = per_head.shape[1] // self.k.shape[1]
        return per_head[:, group - 1 :: group]


@mutant(source="pytorch/pytorch#133495", named_by=QUERY_AND_KEY)
class CotangentCutAtHeadDim(TiledGradients):
    """Columns of dO and V beyond the head dimension are left out of dP."""

    def load_v(self) -> np.ndarray:
        return np.where(np.arange(self.Dv) < self.D, super().load_v(), 0.0)


@mutant(source="huggingface/diffusers#14341", named_by=QUERY_AND_KEY)
class SavedKeysTransposed(TiledGradients):
    """K was saved with heads and keys swapped, and is swapped again: other numbers of the same shape."""

    def load_k(self) -> np.ndarray:
        saved = np.ascontiguousarray(self.k.swapaxes(1, 2)).reshape(self.k.shape)
        return self.load(saved)


@mutant(
    source="pytorch/pytorch#181133, pytorch/pytorch#112577",
    named_by="gradient_independence.the_layout_of_the_cotangent_has_no_influence",
)
class CotangentAssumedPacked(TiledGradients):
    """dO is addressed as if it were packed, whatever its strides."""

    def read_cotangent(self, dout: Any) -> np.ndarray:
        return packed(dout)


@mutant(source="pytorch/pytorch#163597", named_by="gradient_independence.an_expanded_cotangent_is_read_right")
class CotangentStrideOfZeroMissed(TiledGradients):
    """A dO that is one number expanded with strides of 0 is read as if it were packed."""

    def read_cotangent(self, dout: Any) -> np.ndarray:
        return packed(dout) if 0 in dout.stride() else super().read_cotangent(dout)


@mutant(source="jax-ml/jax#23819", named_by="gradient_laws.keys_carry_their_gradients_along")
class TailKeysAligned(TiledGradients):
    """The last, ragged tile is computed for the last whole tile of keys, but added where it would have started."""

    def load_k(self) -> np.ndarray:
        excess = max(int(self.tile.cols[-1]) + 1 - self.Sk, 0)
        return np.roll(super().load_k(), -excess, axis=2)

"""Mutants of linear attention: features, their sum, states, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.attention.scores import AS_GIVEN, FEATURE_MAPS, Operand
from attn_spec.emulation.arithmetic import Order, rounded
from attn_spec.emulation.kernels import CONVENTIONS, emulate_both
from attn_spec.emulation.linear import SUPPORTS, LinearAttention, LinearGradients, StateAttention
from attn_spec.emulation.operands import Operands
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel

from .mutants import introduce

WEIGHTS = "linear_attention.weights_are_products_of_features"
FACTOR = "linear_attention.a_factor_of_the_features_of_a_query_cancels"
STATES = "linear_attention.a_causal_state_holds_the_keys_so_far"
GRADIENTS = "linear_attention.gradients_pass_features_and_their_sum"


def linear_mutant(*, source: str, named_by: str) -> Callable[[Any], Any]:
    """Register the sound linear kernel with one wrong step, of either pass, or wrong operands."""

    def register(wrong: Any) -> Any:
        steps = wrong if issubclass(wrong, LinearAttention) else LinearAttention
        gradients = wrong if issubclass(wrong, LinearGradients) else LinearGradients
        operands = wrong if issubclass(wrong, Operands) else Operands

        def build(name: str, dtype: str) -> Kernel:
            declared = {"contract": "fused", "supports": SUPPORTS, "always": ("feature_map",)}
            return emulate_both(
                name,
                PRECISE,
                Order(),
                steps=steps,
                gradients=gradients,
                operands=operands,
                dtypes=(dtype,),
                conventions=CONVENTIONS,
                **declared,
            )

        return introduce(wrong, build, source=source, named_by=named_by, dtype="float32")

    return register


class OtherFeatures(Operands):
    """Operands with other formulas than those of the feature map."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.score = replace(self.score, queries=self.of_queries(), keys=self.of_keys())

    def of_queries(self) -> Operand:
        """Return the features of the queries."""
        return self.score.queries

    def of_keys(self) -> Operand:
        """Return the features of the keys."""
        return self.score.keys


@linear_mutant(source="made up: phi of the keys alone", named_by=WEIGHTS)
class QueriesAsGiven(OtherFeatures):
    """Queries are no features: weights may be negative."""

    def of_queries(self) -> Operand:
        return AS_GIVEN


@linear_mutant(source="made up: another map of the same module", named_by=WEIGHTS)
class ReluForEveryMap(OtherFeatures):
    """Every feature map is max(x, 0)."""

    def of_queries(self) -> Operand:
        return FEATURE_MAPS["relu"].queries

    def of_keys(self) -> Operand:
        return FEATURE_MAPS["relu"].keys


@linear_mutant(source="made up: elu for elu + 1", named_by=WEIGHTS)
class EluWithoutOne(OtherFeatures):
    """Features of keys are smaller by 1."""

    def of_keys(self) -> Operand:
        phi = self.score.keys
        # 1 - phi(k) is -elu(k): the sign cancels, since numerator and sum have the same.
        return replace(phi, value=lambda A, x, p: A.complement(phi.value(A, x, p)))


@linear_mutant(source="made up: the slope of a positive entry for all", named_by=GRADIENTS)
class SlopeLeftOut(OtherFeatures):
    """dq is the gradient of the features of q."""

    def of_queries(self) -> Operand:
        return replace(self.score.queries, pull=AS_GIVEN.pull)


@linear_mutant(source="made up: unnormalized linear attention", named_by=WEIGHTS)
class NotDivided(LinearAttention):
    """The output is the sum of w v."""

    def finish(self, acc: Any, l: Any) -> Any:
        return super().finish(acc, self.xp.ones_like(l))


@linear_mutant(source="made up: sum(dim=-2) of all keys, then the mask", named_by=WEIGHTS)
class SumOfHiddenKeys(LinearAttention):
    """The sum of weights includes the masked keys."""

    def accumulate_row_sum(self, l: Any, p: Any) -> Any:
        del p
        s = self.xp.where(self.in_bounds(self.tile.cols), self.scores(), 0.0)
        return super().accumulate_row_sum(l, self.xp.where(self.xp.isfinite(s), s, 0.0))


@linear_mutant(source="made up: eps=1e-6 as a default argument", named_by=FACTOR)
class EpsilonNobodyAskedFor(LinearAttention):
    """1e-6 is added to the sum of weights."""

    def with_epsilon(self, l: Any) -> Any:
        return self.round(super().with_epsilon(l) + 1e-6, "softmax")


@linear_mutant(source="made up: clamp(min=) for a division by zero", named_by=FACTOR)
class LeastSum(LinearAttention):
    """A sum of weights below 1/8 is taken for 1/8."""

    def with_epsilon(self, l: Any) -> Any:
        return self.xp.maximum(super().with_epsilon(l), 0.125)


@linear_mutant(source="made up: an argument that is not passed on", named_by=WEIGHTS)
class EpsilonLeftOut(LinearAttention):
    """Nothing is added to the sum of weights."""

    def with_epsilon(self, l: Any) -> Any:
        return l


@linear_mutant(source="made up: epsilon added inside the loop", named_by=WEIGHTS)
class EpsilonOfEveryTile(LinearAttention):
    """Each tile adds epsilon."""

    def with_epsilon(self, l: Any) -> Any:
        return self.round(l + self.constant(self.epsilon) * -(-self.Sk // (self.order.kv_tile or self.Sk)), "softmax")


@linear_mutant(source="made up: the state of the tile on the diagonal", named_by=STATES)
class StateOfTheOwnTile(StateAttention):
    """Queries meet the state of the tile that they stand in, later keys included."""

    def whole(self) -> Any:
        return self.tile.visible.any(axis=-1, keepdims=True)


@linear_mutant(source="made up: range(len - 1) in the sum of a state", named_by=STATES)
class StateWithoutItsLastKey(StateAttention):
    """The last key of a tile is not in its state."""

    def state(self, values: Any, stage: str) -> Any:
        return super().state(np.concatenate([values[:, :, :-1], np.zeros_like(values[:, :, -1:])], axis=2), stage)


@linear_mutant(source="made up: states kept in the dtype of halves", named_by=WEIGHTS)
class StateInHalf(StateAttention):
    """States are rounded to bfloat16."""

    def state(self, values: Any, stage: str) -> Any:
        return rounded(super().state(values, stage), "bfloat16")


@linear_mutant(source="made up: detach() on the sum of weights", named_by=GRADIENTS)
class SumHeldConstant(LinearGradients):
    """The sum of weights has no gradient."""

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:
        return super().score_gradient(p, dP, self.xp.zeros_like(delta))


@linear_mutant(source="made up: 1 / N for values alone", named_by=GRADIENTS)
class WeightGradientNotDivided(LinearGradients):
    """dw is dP - delta."""

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:
        del p
        return self.xp.where(self.tile.visible, self.round(dP - delta, "stored_scores"), 0.0)


@linear_mutant(source="made up: w saved for the backward pass", named_by=GRADIENTS)
class ValueGradientNotDivided(LinearGradients):
    """dV is w^T dO."""

    def recompute_weights(self) -> Any:
        return self.weights(self.scores(), None)

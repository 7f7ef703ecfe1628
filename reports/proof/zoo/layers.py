"""Mutants of layers: projections of heads, how heads are put together, and the way back to the weights of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.emulation.arithmetic import rounded
from attn_spec.emulation.kernels import CONVENTIONS, SUPPORTS, emulate_both
from attn_spec.emulation.layers import Layer
from attn_spec.emulation.operands import Execution, Number
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel
from attn_spec.problem.options import parameters

from .mutants import introduce

SUM = "layers.the_output_is_the_sum_of_what_each_head_adds"
SILENT = "layers.a_head_without_an_output_projection_has_no_say"
MOVED = "layers.powers_of_two_move_between_projections"
GRADIENTS = "layers.gradients_pass_all_projections"
OUTPUT = "accuracy.output_is_within_its_bound"
DROPPED = "dropout.weights_that_are_kept_alone_meet_values"

LAYER = ("query_projection", *(row.name for row in parameters("query_projection")))
DROPOUT = ("dropout_keep", "dropout_p")


def layer_mutant(*, source: str, named_by: str, dtype: str = "float32") -> Callable[[type[Layer]], type[Layer]]:
    """Register the sound layer with one wrong step of either pass."""

    def register(wrong: type[Layer]) -> type[Layer]:
        def build(name: str, dtype: str) -> Kernel:
            supports = (*(option for option in SUPPORTS if option != "gqa"), *DROPOUT, *LAYER, "head_widths")
            declared = {"contract": "fused", "supports": supports, "conventions": CONVENTIONS}
            always = [name for name in LAYER if not name.endswith("_bias")]
            return emulate_both(name, PRECISE, layer=wrong, dtypes=(dtype,), always=always, **declared)

        return introduce(wrong, build, source=source, named_by=named_by, dtype=dtype)

    return register


def of_all_heads(p: Number, heads: int) -> np.ndarray:
    """Return a tensor of heads, with one that they share repeated for each."""
    return np.broadcast_to(p.values, (1, heads, *p.values.shape[2:]))


class OtherParameters(Layer):
    """A layer with other weights or biases than it is given."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.p |= self.changed(self.p)

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:  # noqa: ARG002 - a mutant reads it
        """Return the changed parameters, by name."""
        return {}


@layer_mutant(source="made up: view(B, S, -1) without the transpose", named_by=SUM)
class OutputsJoinedByAView(Layer):
    """Outputs [B, H, S, U] are viewed as [B, S, H U]: rows of one head become heads of one row."""

    def output_of_all(self, o: Number) -> Number:
        B, H, S, U = o.values.shape
        viewed = o.values.reshape(B, S, H, U).swapaxes(1, 2)
        return super().output_of_all(replace(o, values=viewed))


@layer_mutant(source="made up: tutorials that add heads up before W_O", named_by=OUTPUT)
class HeadsOfALayerSummed(Layer):
    """The outputs of heads are added up, and the sum meets the W_O of the first."""

    def output_of_all(self, o: Number) -> Number:
        total = np.broadcast_to(o.values.sum(axis=1, keepdims=True), o.values.shape)
        first = np.arange(o.values.shape[1])[:, None, None] == 0
        return super().output_of_all(replace(o, values=np.where(first, total, 0.0)))


@layer_mutant(source="made up: heads gathered in another order than they were split", named_by=OUTPUT)
class OutputsInReverse(Layer):
    """The W_O of the last head meets the output of the first."""

    def output_of_all(self, o: Number) -> Number:
        return super().output_of_all(replace(o, values=o.values[:, ::-1]))


@layer_mutant(source="made up: softmax of heads that compete", named_by=SILENT)
class OutputsNormalizedTogether(Layer):
    """Outputs of heads are divided by their mean size over all heads, at least 1."""

    def of_heads(self, o: Any) -> Number:
        found = super().of_heads(o)
        size = np.abs(found.values).mean(axis=(1, 3), keepdims=True)
        return replace(found, values=found.values / np.maximum(size, 1.0))


@layer_mutant(source="made up: d_model under the root, as the width of the model", named_by=OUTPUT)
class ScaledByTheModel(Layer):
    """Scores are divided by sqrt(D) of the model, not by the root of the width of a head."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.options.get("scale") is None:
            self.options["scale"] = self.q.values.shape[-1] ** -0.5


@layer_mutant(source="made up: a linear layer for each head, with one bias", named_by=OUTPUT)
class OutputBiasOfEachHead(OtherParameters):
    """b_O is added once for each head."""

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:
        bias = p.get("output_projection_bias")
        return {} if bias is None else {"output_projection_bias": replace(bias, values=bias.values * self.group)}


@layer_mutant(source="made up: row-parallel projections that each drop their bias", named_by=OUTPUT)
class OutputBiasForgotten(Layer):
    """There is no b_O."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.p.pop("output_projection_bias", None)


@layer_mutant(source="made up: a bias of the packed projection read from the wrong third", named_by=OUTPUT)
class QueryBiasOfTheKeys(OtherParameters):
    """Queries are given b_K."""

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:
        bias = p.get("key_projection_bias")
        return {} if bias is None or "query_projection_bias" not in p else {"query_projection_bias": bias}


@layer_mutant(source="made up: a packed projection cut as q, v, k", named_by=MOVED)
class KeysAndValuesExchanged(OtherParameters):
    """W_K and W_V are exchanged, where their shapes let them."""

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:
        pair = p["key_projection"], p["value_projection"]
        if pair[0].values.shape[2:] != pair[1].values.shape[2:]:
            return {}
        return dict(zip(("value_projection", "key_projection"), pair, strict=True))


@layer_mutant(source="made up: grouped heads in a layer that has none", named_by=OUTPUT)
class KeysOfNeighbours(OtherParameters):
    """Every second head reads the W_K of the one before it."""

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:
        whole = of_all_heads(p["key_projection"], self.group)
        return {"key_projection": replace(p["key_projection"], values=whole[:, np.arange(self.group) // 2 * 2])}


@layer_mutant(source="made up: W stored as [in, out] and read as [out, in]", named_by=OUTPUT)
class QueryWeightTransposed(OtherParameters):
    """W_Q is transposed, where it is square."""

    def changed(self, p: dict[str, Number]) -> dict[str, Number]:
        W = p["query_projection"]
        square = W.values.shape[2] == W.values.shape[3]
        return {"query_projection": replace(W, values=W.values.swapaxes(-1, -2))} if square else {}


@layer_mutant(source="made up: b_V folded into b_O, since weights add up to 1", named_by=DROPPED)
class ValueBiasAddedToTheOutput(Layer):
    """W_O b_V is added to the output: not what dropped weights, or no key at all, make of it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.folded = self.p.pop("value_projection_bias", None)

    def of_heads(self, o: Any) -> Number:
        found = super().of_heads(o)
        return found if self.folded is None else Execution(self.steps).finished(found.values + self.folded.values)


@layer_mutant(source="made up: heads kept in bfloat16 between attention and W_O", named_by=OUTPUT)
class NarrowHeads(Layer):
    """Outputs of heads wait in bfloat16 in a float32 layer."""

    def of_heads(self, o: Any) -> Number:
        found = super().of_heads(o)
        return replace(found, values=rounded(found.values, "bfloat16"))


@layer_mutant(source="made up: projections under autocast", named_by=OUTPUT)
class NarrowProjections(Layer):
    """Queries are projected to bfloat16 in a float32 layer."""

    def stored(self, x: Number) -> np.ndarray:
        return rounded(super().stored(x), "bfloat16")


@layer_mutant(source="made up: W_O out of the graph", named_by=GRADIENTS)
class OutputWeightDetached(Layer):
    """The gradient of W_O is 0."""

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        found = super().over_heads(name, x)
        return found * 0.0 if name == "output_projection" else found


@layer_mutant(source="made up: atomics left out where heads share a bias", named_by=GRADIENTS)
class SharedWeightsOfOneHead(Layer):
    """The gradient of a projection that heads share takes the last of these heads only."""

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        return super().over_heads(name, x[:, -1:] if self.p[name].values.shape[1] == 1 else x)


@layer_mutant(source="made up: gradients of micro-batches not accumulated", named_by=GRADIENTS)
class WeightsOfOneBatchEntry(Layer):
    """The gradients of weights take the last batch entry only."""

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        return super().over_heads(name, x[-1:])


@layer_mutant(source="made up: dX of the last head", named_by=GRADIENTS)
class InputOfOneHead(Layer):
    """The gradients of q, k and v take the last head only."""

    def sum_over_group(self, x: np.ndarray) -> np.ndarray:
        return x[:, -1:]


@layer_mutant(source="made up: dO handed to heads without W_O", named_by=GRADIENTS)
class CotangentOfTheFirstHead(Layer):
    """The cotangent of the first head arrives at every head."""

    def stored_cotangent(self, of_o: Number) -> np.ndarray:
        found = super().stored_cotangent(of_o)
        return np.broadcast_to(found[:, :1], found.shape).copy()


@layer_mutant(source="made up: the bias of the values summed over keys before the weights", named_by=GRADIENTS)
class ValueBiasWithoutGradient(Layer):
    """The gradient of b_V is 0, as if its weights added up to a constant of the loss."""

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        found = super().over_heads(name, x)
        return found * 0.0 if name == "value_projection_bias" else found

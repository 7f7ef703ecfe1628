"""Mutants as tutorials and first implementations print them: functions in plain PyTorch, with one wrong line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import Kernel

from .mutants import DTYPES, introduce

WEIGHTS = "softmax.weights_sum_to_one"
HULL = "softmax.outputs_lie_in_the_hull_of_the_visible_values"
SCALE = "scaling.the_scale_read_from_the_weights_is_the_one_asked_for"
VARIANCE = "scaling.scaled_scores_of_unit_variance_inputs_have_variance_one"
MASKED = "masking.masked_keys_change_nothing"
OPEN = "masking.a_mask_of_true_changes_nothing"
HEADS = "permutation.heads_carry_their_answers_along"
ENTRIES = "permutation.batch_entries_carry_their_answers_along"
BATCH = "independence.batch_companions_have_no_influence"
OUTPUT = "accuracy.output_is_within_its_bound"
GRADIENTS = "gradients.query_and_key_gradients_are_within_their_bounds"


def printed(
    *,
    source: str,
    named_by: str,
    without: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = DTYPES,
    **declared: Any,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function of q, k, v [B, H, S, D] and one mask, which merges causality and the window.

    Each head of q has its own of k. ``without`` are shapes that the function does not take, ``dtypes`` those at which
    it is wrong; it is tried at the first.
    """
    takes = {"mask", "causal", "causal_alignment", "window", "dv", "cross", "backward"} - set(without)

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def build(_: str, dtype: str) -> Kernel:
            facts = {"framework": "torch", "contract": "eager", "conventions": {"empty_row": "nan"}}
            return kernel(dtypes=(dtype,), supports=takes, merge="mask", **facts, **declared)(function)

        told = {"source": source, "named_by": named_by}
        return introduce(function, build, **told, dtype=dtypes[0], dtypes=dtypes)

    return register


def scores(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the masked scores that each of these kernels begins with, when it is right."""
    return hidden(q @ k.mT / math.sqrt(q.size(-1)), mask)


def hidden(s: Tensor, mask: Tensor | None) -> Tensor:
    """Set scores to minus infinity where the mask is False."""
    return s if mask is None else s.masked_fill(~mask, -math.inf)


@printed(source="esceptico/perceiver-io#9", named_by=SCALE)
def scale_divided_away(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Divide scores by a constant that is 1/sqrt(D) already: they grow with D."""
    return hidden(q @ k.mT / q.size(-1) ** -0.5, mask).softmax(-1) @ v


@printed(source="omihub777/ViT-CIFAR#11", named_by=SCALE)
def scale_of_all_heads(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Divide scores by the root of the dimension of the model, which all heads share."""
    return hidden(q @ k.mT / math.sqrt(q.size(1) * q.size(-1)), mask).softmax(-1) @ v


@printed(source="labmlai/annotated_deep_learning_paper_implementations#146", named_by=WEIGHTS)
def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Run the softmax along the queries: the weights of each key add up to 1."""
    return scores(q, k, mask).softmax(-2) @ v


@printed(source="facebookresearch/detr#247", named_by=HEADS)
def softmax_over_heads(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Run the softmax over heads and keys as one axis."""
    s = scores(q, k, mask).transpose(1, 2)
    return s.flatten(2).softmax(-1).view(s.shape).transpose(1, 2) @ v


@printed(source="PetrochukM/PyTorch-NLP#2", named_by=BATCH)
def softmax_over_batch(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Run the softmax along the first axis, the batch: with one entry every weight is 1."""
    return scores(q, k, mask).softmax(0) @ v


@printed(source="made up: one softmax for the whole matrix", named_by=WEIGHTS)
def softmax_over_everything(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Let the weights of all queries and keys of a head add up to 1."""
    s = scores(q, k, mask)
    return s.flatten(2).softmax(-1).view(s.shape) @ v


@printed(source="huggingface/pytorch-image-models#2236", named_by=WEIGHTS)
def mask_after_softmax(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Multiply the weights by the mask, without normalizing them again."""
    weights = scores(q, k).softmax(-1)
    return (weights if mask is None else weights * mask) @ v


@printed(source="georg-wolflein/good-features#1", named_by=MASKED)
def mask_times_scores(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Multiply the scores by the mask: masked keys score zero."""
    s = scores(q, k)
    return (s if mask is None else s * mask).softmax(-1) @ v


@printed(source="tensorflow/tensorflow#43941", named_by=MASKED)
def padding_attended(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Attend to the keys of padding, which are zeros."""
    k = k if mask is None else k * mask.any(dim=(1, 2), keepdim=True).mT
    return scores(q, k).softmax(-1) @ v


@printed(source="openai/gpt-2#122", named_by=OPEN, dtypes=("float16",))
def fill_beyond_half(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Subtract 1e10 from scores where the mask is 0: in half that number is infinite, and 0 times it is NaN."""
    s = scores(q, k)
    if mask is not None:
        seen = mask.to(s.dtype)
        s = s * seen - torch.tensor(1e10, dtype=s.dtype) * (1 - seen)
    return s.softmax(-1) @ v


@printed(source="lsdefine/attention-is-all-you-need-keras#36", named_by=ENTRIES)
def masks_repeated_by_entry(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Repeat masks as if heads lay after batch entries in memory, where they lie before."""
    B, H, S, _ = q.shape
    q, k, v = (x.transpose(0, 1).flatten(0, 1) for x in (q, k, v))
    if mask is not None:
        mask = mask.expand(B, H, S, k.size(1))[:, 0].repeat_interleave(H, dim=0)
    return (scores(q, k, mask).softmax(-1) @ v).unflatten(0, (H, B)).transpose(0, 1)


def _as_heads(x: Tensor, heads: int) -> Tensor:
    """Split [B, S, H D] to [B, H, S, D]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


@printed(source="reczoo/FuxiCTR#30", named_by=HEADS, presentation="BS(HD)")
def heads_viewed(
    q: Tensor, k: Tensor, v: Tensor, *, query_heads: int, kv_heads: int, mask: Tensor | None = None
) -> Tensor:
    """Split heads by a view without a transpose: they share out the rows in place of the columns."""
    q, k, v = (x.reshape(len(x), n, x.size(1), -1) for x, n in ((q, query_heads), (k, kv_heads), (v, kv_heads)))
    return (scores(q, k, mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


@printed(source="jsbaan/transformer-from-scratch#6", named_by=HEADS, presentation="BS(HD)")
def heads_joined_untransposed(
    q: Tensor, k: Tensor, v: Tensor, *, query_heads: int, kv_heads: int, mask: Tensor | None = None
) -> Tensor:
    """Join heads by a reshape without a transpose."""
    q, k, v = (_as_heads(x, heads) for x, heads in ((q, query_heads), (k, kv_heads), (v, kv_heads)))
    out = scores(q, k, mask).softmax(-1) @ v
    return out.reshape(len(out), out.size(2), -1)


@printed(source="made up: a sum over heads where they are concatenated", named_by=HEADS)
def heads_summed(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Return the sum of all heads as each head."""
    out = scores(q, k, mask).softmax(-1) @ v
    return out.sum(dim=1, keepdim=True).expand(out.shape)


@printed(source="made up: attention applied to attention", named_by=OUTPUT, without=("cross",))
def values_weighted_twice(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Multiply the values by the weights twice."""
    weights = scores(q, k, mask).softmax(-1)
    return weights @ (weights @ v)


class _DiagonalSoftmax(torch.autograd.Function):
    """The softmax, whose Jacobian is taken for diagonal."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> Tensor:
        weights = s.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (1 - weights) * grad_outputs[0]


@printed(source="made up: a derivative found for one variable", named_by=GRADIENTS)
def jacobian_diagonal(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Compute dA = P (1 - P) dP: the Jacobian of softmax without its off-diagonal."""
    weights: Any = _DiagonalSoftmax.apply(scores(q, k, mask))
    return weights @ v

"""Mutants that are right when they are called plainly, and wrong in what autograd records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel
from attn_spec.problem.quantities import DIFFERENTIABLE

from .mutants import Attention, introduce

#: (asked, dout, q, k, v, out, lse, **options) -> (dq, dk, dv[, dbias]); asked: which of q, k, v, bias need one.
Gradients = Callable[..., tuple[Any, ...]]


def recorded(attention: Attention, gradients: Gradients) -> Attention:
    """Return the function (q, k, v, **options) -> (out, lse) whose derivative, for autograd, is ``gradients``."""
    import torch

    class Recorded(torch.autograd.Function):
        """One call of the function."""

        @staticmethod
        def forward(ctx: Any, options: dict[str, Any], *inputs: Any) -> tuple[Any, Any]:
            *qkv, bias = inputs
            ctx.options = options if bias is None else {**options, "bias": bias}
            out, lse = attention(*qkv, **ctx.options)
            ctx.save_for_backward(*qkv, out, lse)
            return out, lse

        @staticmethod
        def backward(ctx: Any, *grad_outputs: Any) -> tuple[Any, ...]:
            dout, dlse = grad_outputs
            found = gradients(ctx.needs_input_grad[1:], dout, *ctx.saved_tensors, dlse=dlse, **ctx.options)
            return (None, *found, *[None] * (4 - len(found)))

    def kernel(q: Any, k: Any, v: Any, *, bias: Any = None, **options: Any) -> tuple[Any, Any]:
        return Recorded.apply(options, q, k, v, bias)

    return kernel


def autograd_mutant(*, source: str, named_by: str | None) -> Callable[[Callable[[Kernel], Attention]], Any]:
    """Register a function that turns the sound kernel into one that autograd follows; a control if nothing names it."""

    def register(wrap: Callable[[Kernel], Attention]) -> Callable[[Kernel], Attention]:
        def build(name: str, dtype: str) -> Kernel:
            sound = emulate_both(name, PRECISE, dtypes=(dtype,), contract="fused")
            return replace(sound, function=wrap(sound), backward_function=None)

        return introduce(wrap, build, source=source, named_by=named_by, dtype="float32")

    return register


def explicit(sound: Kernel) -> Gradients:
    """Return the sound kernel's backward pass, with its gradients in the order of their inputs."""

    def gradients(*saved: Any, **options: Any) -> tuple[Any, ...]:
        found: Any = cast("Gradients", sound.backward_function)(*saved, **options)
        return tuple(found[f"d{name}"] for name in DIFFERENTIABLE if f"d{name}" in found)

    return gradients


def all_gradients(sound: Kernel) -> Gradients:
    """Return the sound gradients, whichever are asked for."""
    return lambda asked, *saved, **options: explicit(sound)(*saved, **options)


@autograd_mutant(source="made up: the sound kernel behind autograd", named_by=None)
def recorded_rightly(sound: Kernel) -> Attention:
    """Let autograd call the explicit backward pass."""
    return recorded(sound.function, all_gradients(sound))


@autograd_mutant(
    source="pytorch/pytorch#188302",
    named_by="gradient_independence.each_gradient_may_be_asked_for_without_the_others",
)
def lse_unsaved_for_bias(sound: Kernel) -> Attention:
    """Save no log-sum-exp when only the bias needs a gradient."""

    def gradients(asked: tuple[bool, ...], *saved: Any, **options: Any) -> tuple[Any, ...]:
        *others, lse = saved
        return explicit(sound)(*others, lse if any(asked[:3]) else 0 * lse, **options)

    return recorded(sound.function, gradients)


@autograd_mutant(
    source="made up: one path for training, one for inference",
    named_by="gradient_independence.asking_for_gradients_leaves_the_output_alone",
)
def training_path_differs(sound: Kernel) -> Attention:
    """Return an output one part in a thousand too large when a gradient is needed."""
    right = recorded(sound.function, all_gradients(sound))

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
        out, lse = right(q, k, v, **options)
        return (out * 1.001, lse) if out.requires_grad else (out, lse)

    return kernel


@autograd_mutant(
    source="made up: a workspace of gradients that the forward pass clears",
    named_by="gradient_independence.a_second_pass_through_one_graph_gives_the_same_gradients",
)
def second_pass_adds(sound: Kernel) -> Attention:
    """Add gradients of another pass through one graph to those of the first."""
    passed: set[int] = set()

    def attention(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        out, lse = sound.function(*inputs, **options)
        passed.discard(out.data_ptr())
        return out, lse

    def gradients(asked: tuple[bool, ...], *saved: Any, **options: Any) -> tuple[Any, ...]:
        del asked
        out, found = saved[4], explicit(sound)(*saved, **options)
        is_second = out.data_ptr() in passed
        passed.add(out.data_ptr())
        return tuple(2 * x for x in found) if is_second else found

    return recorded(attention, gradients)

"""Kernels whose memory of one call is overwritten by the next: each answer is right until another problem is solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from attn_spec.emulation.kernels import emulate, emulate_both
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel

from .autograd import Gradients, autograd_mutant, explicit, recorded
from .mutants import CONVENTIONS, Attention, cheat, introduce

ANSWERS = "independence.a_later_call_leaves_an_answer_alone"
GRADIENTS = "gradient_independence.calls_in_between_leave_gradients_alone"

#: Function that returns a tensor in memory that is kept for all tensors of its shape and dtype.
Shelf = Callable[[Any], Any]


def shelf() -> Shelf:
    """Return a new :data:`Shelf`."""
    kept: dict[Any, Any] = {}

    def stored(tensor: Any) -> Any:
        memory = kept.setdefault((tensor.shape, tensor.dtype), tensor.clone())
        memory.copy_(tensor)
        return memory

    return stored


def into_one_buffer(attention: Attention) -> Attention:
    """Return the function with its output in one buffer of each shape."""
    stored = shelf()

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return stored(out), lse

    return kernel


@cheat(source="made up: an output allocated once, as a captured CUDA graph has it", named_by=ANSWERS)
def one_buffer_of_outputs(attention: Attention) -> Attention:
    """Return the output in one buffer of each shape, which the next call overwrites."""
    return into_one_buffer(attention)


@cheat(source="made up: a workspace of log-sum-exps that outlives the call", named_by=ANSWERS)
def one_buffer_of_log_sum_exps(attention: Attention) -> Attention:
    """Return the log-sum-exps in one buffer of each shape, which the next call overwrites."""
    stored = shelf()

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return out, stored(lse)

    return kernel


@autograd_mutant(source="made up: one workspace for all layers of a model", named_by=GRADIENTS)
def saved_log_sum_exp_overwritten(sound: Kernel) -> Attention:
    """Save the log-sum-exps for the backward pass in one buffer, so that the next call's gradients alone are right."""
    stored = shelf()
    last: dict[Any, Any] = {}

    def attention(*inputs: Any, **options: Any) -> tuple[Any, Any]:
        out, lse = sound.function(*inputs, **options)
        last[lse.shape, lse.dtype] = stored(lse)
        return out, lse

    def gradients(asked: tuple[bool, ...], *saved: Any, **options: Any) -> tuple[Any, ...]:
        del asked
        *others, lse = saved
        return explicit(sound)(*others, last[lse.shape, lse.dtype], **options)

    return recorded(attention, gradients)


def kernel_mutant(
    *, source: str, named_by: str | None, sound: Callable[..., Kernel], **declared: Any
) -> Callable[[Callable[[Kernel], Kernel]], Any]:
    """Register a function of the sound kernel that ``sound`` makes; a control if nothing names it."""

    def register(wrap: Callable[[Kernel], Kernel]) -> Callable[[Kernel], Kernel]:
        def build(name: str, dtype: str) -> Kernel:
            return wrap(sound(name, PRECISE, dtypes=(dtype,), contract="fused", **declared))

        return introduce(wrap, build, source=source, named_by=named_by, dtype="float32")

    return register


@kernel_mutant(source="made up: gradients allocated once", named_by=GRADIENTS, sound=emulate_both)
def one_buffer_of_gradients(sound: Kernel) -> Kernel:
    """Return each gradient in one buffer of its shape, which the next backward pass overwrites."""
    kept: dict[str, Shelf] = {}

    def backward(*saved: Any, **options: Any) -> dict[str, Any]:
        found: Any = cast("Gradients", sound.backward_function)(*saved, **options)
        return {name: kept.setdefault(name, shelf())(x) for name, x in found.items()}

    return replace(sound, backward_function=backward)


@kernel_mutant(
    source="made up: the convention overwrites_results",
    named_by=None,
    sound=emulate,
    conventions={**CONVENTIONS, "overwrites_results": True},
)
def overwrites_as_declared(sound: Kernel) -> Kernel:
    """Return the output in one buffer of each shape, and declare that the next call overwrites it."""
    return replace(sound, function=into_one_buffer(sound.function))

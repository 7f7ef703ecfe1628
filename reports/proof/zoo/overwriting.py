"""Kernels whose memory of one call is overwritten by the next: each answer is right until another problem is solved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import emulate_both
from attn_spec.emulation.reused_memory import Reuse, reuse
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import Kernel

from .autograd import Gradients, autograd_mutant, explicit, recorded
from .mutants import Attention, cheat, introduce, mutant

ANSWERS = "independence.a_later_call_leaves_an_answer_alone"
GRADIENTS = "gradient_independence.calls_in_between_leave_gradients_alone"


@cheat(source="made up: an output allocated once, as a captured CUDA graph has it", named_by=ANSWERS)
def one_buffer_of_outputs(attention: Attention) -> Attention:
    """Return the output in one buffer of each shape, which the next call overwrites."""
    stored = reuse()

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return stored(out), lse

    return kernel


@cheat(source="made up: a workspace of log-sum-exps that outlives the call", named_by=ANSWERS)
def one_buffer_of_log_sum_exps(attention: Attention) -> Attention:
    """Return the log-sum-exps in one buffer of each shape, which the next call overwrites."""
    stored = reuse()

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return out, stored(lse)

    return kernel


@autograd_mutant(source="made up: one workspace for all layers of a model", named_by=GRADIENTS)
def saved_log_sum_exp_overwritten(sound: Kernel) -> Attention:
    """Save the log-sum-exps for the backward pass in one buffer, so that the next call's gradients alone are right."""
    stored = reuse()
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


def gradients_mutant(*, source: str, named_by: str) -> Callable[[Callable[[Gradients], Gradients]], Any]:
    """Register a function that changes the backward function of the sound kernel."""

    def register(wrap: Callable[[Gradients], Gradients]) -> Callable[[Gradients], Gradients]:
        def build(name: str, dtype: str) -> Kernel:
            sound = emulate_both(name, PRECISE, dtypes=(dtype,), contract="fused")
            return replace(sound, backward_function=wrap(cast("Gradients", sound.backward_function)))

        return introduce(wrap, build, source=source, named_by=named_by, dtype="float32")

    return register


@gradients_mutant(source="made up: gradients allocated once", named_by=GRADIENTS)
def one_buffer_of_gradients(backward: Gradients) -> Gradients:
    """Return each gradient in one buffer of its shape, which the next backward pass overwrites."""
    kept: dict[str, Reuse] = {}

    def gradients(*saved: Any, **options: Any) -> Any:
        found: Any = backward(*saved, **options)
        return {name: kept.setdefault(name, reuse())(x) for name, x in found.items()}

    return gradients


@mutant(source="made up: the convention overwrites_results", named_by=None, conventions={"overwrites_results": True})
class OverwritesAsDeclared(TiledAttention):
    """Return results in memory that the next call overwrites, as declared."""

"""Kernels that skip the work: what passes a loose tolerance, or looks right once, is still no attention."""

from __future__ import annotations

import itertools
from typing import Any

from .mutants import Attention, cheat

OUTPUT = "accuracy.output_is_within_its_bound"
REPLAYED = "independence.old_answers_are_not_given_again"
WRITTEN = "independence.every_element_of_the_output_is_written"
AGAIN = "independence.equal_calls_give_equal_answers"


@cheat(source="ScalingIntelligence/KernelBench#165", named_by="softmax.weights_sum_to_one")
def zeros(attention: Attention) -> Attention:
    """Return an output of zeros, which is within 0.01 of the truth when the keys are many."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return out * 0, lse

    return kernel


@cheat(source="Xilinx/mlir-air#1427", named_by=OUTPUT)
def mean_of_v(attention: Attention) -> Attention:
    """Return the mean of the visible values, without reading queries and keys."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, _ = attention(q * 0, k * 0, v, **options)
        return out, attention(q, k, v, **options)[1]

    return kernel


@cheat(source="PaddleJitLab/CUDATutorial#69", named_by=OUTPUT)
def all_nan(attention: Attention) -> Attention:
    """Return NaN, which no comparison with a tolerance calls larger than it."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return out + float("nan"), lse

    return kernel


@cheat(source="ScalingIntelligence/KernelBench#82", named_by=OUTPUT)
def inputs_zeroed(attention: Attention) -> Attention:
    """Set the inputs to zero in place, so that a reference computed later is zero too."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q.zero_(), k.zero_(), v.zero_(), **options)
        return out, lse

    return kernel


@cheat(source="arXiv 2507.14111, gpu-mode/reference-kernels#162", named_by=REPLAYED)
def replayed_by_shape(attention: Attention) -> Attention:
    """Store the first answer for each set of shapes and options, and return it again."""
    answers: dict[Any, Any] = {}

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        key = (q.shape, k.shape, v.shape, *((name, str(value)) for name, value in options.items()))
        if key not in answers:
            answers[key] = attention(q, k, v, **options)
        out, lse = answers[key]
        return out.clone(), lse.clone()

    return kernel


@cheat(source="arXiv 2507.14111, wafer.ai: a guide to what passes for fast", named_by=REPLAYED)
def replayed_by_address(attention: Attention) -> Attention:
    """Store answers by the addresses and shapes of the inputs, whatever has been written there since."""
    answers: dict[Any, Any] = {}

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        key = (*((x.data_ptr(), x.shape) for x in (q, k, v)), *((name, str(value)) for name, value in options.items()))
        if key not in answers:
            answers[key] = attention(q, k, v, **options)
        out, lse = answers[key]
        return out.clone(), lse.clone()

    return kernel


@cheat(source="ScalingIntelligence/KernelBench#82", named_by=REPLAYED)
def last_buffer(attention: Attention) -> Attention:
    """Compute nothing: return the memory of the call before when it has the right size."""
    buffer: list[Any] = []

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = buffer[0] if buffer else (None, None)
        buffer[:] = [attention(q, k, v, **options)]
        stale = out is not None and out.shape == buffer[0][0].shape
        return (out, lse) if stale else buffer[0]

    return kernel


@cheat(source="wafer.ai: a case study of memory left over", named_by=WRITTEN)
def tail_unwritten(attention: Attention) -> Attention:
    """Write no queries past the last multiple of 16: memory keeps what it held."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        written = q.shape[2] // 16 * 16
        buffer = out.new_empty(out.shape)
        buffer[:, :, :written] = out[:, :, :written]
        return buffer, lse

    return kernel


@cheat(source="karpathy/llm.c#852", named_by=AGAIN)
def drifts(attention: Attention) -> Attention:
    """Answer rightly for the first three calls, then off by one part in a thousand."""
    calls = itertools.count(1)

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return (out, lse) if next(calls) <= 3 else (out * 1.001, lse)

    return kernel


@cheat(source="arXiv 2509.14279", named_by=OUTPUT)
def special_shape(attention: Attention) -> Attention:
    """Take a fast path for lengths that are a multiple of 16: it drops the last key."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        if k.shape[2] and k.shape[2] % 16 == 0 and not {"mask", "bias"} & set(options):
            k, v = k[:, :, :-1], v[:, :, :-1]
        return attention(q, k, v, **options)

    return kernel


@cheat(source="gpu-mode/reference-kernels#162", named_by=OUTPUT)
def computes_when_looked_at(attention: Attention) -> Attention:
    """Return a subclass of a tensor, which could compute whenever it is compared."""
    import torch

    class Lazy(torch.Tensor):
        """A tensor that is not only data."""

    def kernel(q: Any, k: Any, v: Any, **options: Any) -> Any:
        out, lse = attention(q, k, v, **options)
        return out.as_subclass(Lazy), lse

    return kernel

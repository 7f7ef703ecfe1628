"""Costs of a call: seconds and bytes of kernels that take turns on the same tensors, forward and backward.

On a GPU, CUDA events around the call alone measure the time, and the cache is cleared before each (``triton.testing``).
Memory is the peak of PyTorch's allocator less what it held before. On a CPU, where this file is tested, a clock
measures the time, and memory is not measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_spec.faults import in_one_line
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import resolve

#: Queries, and keys; head dimensions; heads.
LENGTHS, DIMS, HEADS = (1024, 2048, 4096, 8192, 16384), (64, 128), 8
#: Queries of a call in all: shorter sequences come in larger batches, so that each call fills a GPU.
TOKENS = 16384
DTYPE = "bfloat16"
#: Turns that kernels take on one problem; the median of their times counts.
TURNS = 3
PASSES = ("forward", "backward")
#: Kernels to compare others with, by device type: name -> kernel.
REFERENCES = {
    "cuda": {"flash": "torch_sdpa:flash_cuda", "eager": "torch_eager"},
    "cpu": {"flash": "torch_sdpa:flash", "eager": "torch_eager"},
}

Run = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem: causal or not, B of ``heads`` heads, with as many queries as keys."""

    length: int
    head_dim: int
    causal: bool
    batch: int = 1
    heads: int = HEADS


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one call of a kernel: seconds, and bytes beside its inputs; or the reason why it gave no answer."""

    kernel: str
    made: str
    case: Case
    seconds: float | None = None
    bytes: int | None = None
    failure: str = ""


def cases(lengths: Sequence[int] = LENGTHS, dims: Sequence[int] = DIMS, tokens: int = TOKENS) -> list[Case]:
    """Return every length with every head dimension, causal and not."""
    return [
        Case(length=n, head_dim=d, causal=causal, batch=max(tokens // n, 1))
        for d in dims
        for causal in (False, True)
        for n in lengths
    ]


def costs(names: Sequence[str], chosen: Sequence[Case], device: str, turns: int = TURNS) -> Iterator[Cost]:
    """Yield the costs of kernels and of both references on every case; the kernels of one case take turns."""
    references = REFERENCES[device.partition(":")[0]].values()
    kernels = {name: resolve(name) for name in dict.fromkeys([*references, *names])}
    for case in chosen:
        for made in PASSES:
            yield from _of_case(kernels, case, made, device, turns)


def _of_case(kernels: dict[str, Kernel], case: Case, made: str, device: str, turns: int) -> Iterator[Cost]:
    times: dict[str, list[float]] = {name: [] for name in kernels}
    held: dict[str, int | None] = {}
    failed: dict[str, str] = {}
    for turn in range(turns):
        for name in [name for name in kernels if name not in failed]:
            try:
                run = runs(kernels[name], case, device)[made]
                if turn == 0:
                    held[name] = peak(run, device)
                times[name].append(seconds(run, device))
            except Exception as error:
                failed[name] = in_one_line(error)
    for name in kernels:
        if name in failed:
            yield Cost(kernel=name, made=made, case=case, failure=failed[name])
        else:
            yield Cost(kernel=name, made=made, case=case, seconds=statistics.median(times[name]), bytes=held[name])


def runs(kernel: Kernel, case: Case, device: str) -> dict[str, Run]:
    """Return the calls of a kernel that are timed, by pass. All kernels are given equal tensors."""
    generator = torch.Generator(device=device).manual_seed(0)
    shape, dtype = (case.batch, case.heads, case.length, case.head_dim), getattr(torch, DTYPE)
    q, k, v, dout = (torch.randn(shape, generator=generator, device=device).to(dtype) for _ in range(4))
    options = {"causal": True} if case.causal else {}

    def forward() -> Any:
        with torch.no_grad():
            return kernel(q, k, v, **options)

    return {"forward": forward, "backward": _backward(kernel, (q, k, v), dout, options)}


def _backward(kernel: Kernel, inputs: tuple[torch.Tensor, ...], dout: torch.Tensor, options: dict[str, Any]) -> Run:
    """Return a call for the gradients of q, k and v, by the kernel's function or autograd, after one forward pass."""
    saved: list[Any] = []

    def own() -> Any:
        if not saved:
            saved.extend(kernel(*inputs, **options))
        return kernel.backward_function(dout, *inputs, *saved, **options)  # type: ignore[misc]

    def recorded() -> Any:
        if not saved:
            taken = tuple(x.detach().requires_grad_() for x in inputs)
            result = kernel(*taken, **options)
            saved.extend([result[0] if isinstance(result, tuple) else result, taken])
        return torch.autograd.grad(saved[0], saved[1], dout, retain_graph=True)

    return own if kernel.backward_function is not None else recorded


def seconds(run: Run, device: str) -> float:
    """Return the median time of a call, after calls that are not timed."""
    if device.partition(":")[0] == "cuda":
        from triton import testing

        with torch.cuda.device(device):
            return testing.do_bench(run, return_mode="median") / 1000  # type: ignore[operator]
    run()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak(run: Run, device: str) -> int | None:
    """Return the most bytes that a call holds beside what was held before, its result included; None on a CPU.

    A first call, which compiles, chooses tiles and does the forward pass of a backward one, is not measured.
    """
    run()
    if device.partition(":")[0] != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = run()
    torch.cuda.synchronize(device)
    del result
    return torch.cuda.max_memory_allocated(device) - before

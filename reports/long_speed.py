"""How fast long answers are judged, and in how much memory, beside float64 attention of PyTorch on the same data."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from attn_spec.testing import assert_attention

from .statistics.memory import growth

#: Queries, and keys, of the problems that show how time and memory grow.
LENGTHS = (1024, 2048, 4096, 8192, 16384)
#: Rows of each head of these.
ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Size:
    """An answer in bfloat16: heads, rows of q, k and v, and how many rows of each head are looked at, None: all."""

    batch: int = 1
    heads: int = 1
    length: int
    head_dim: int = 64
    causal: bool = True
    rows: int | None = None

    def tensors(self) -> list[torch.Tensor]:
        """q, k and v, normal numbers."""
        source = torch.Generator().manual_seed(0)
        shape = (self.batch, self.heads, self.length, self.head_dim)
        return [torch.randn(shape, generator=source).bfloat16() for _ in range(3)]

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """That of PyTorch, in the dtype of the tensors."""
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def __str__(self) -> str:
        sides = f"B={self.batch} H={self.heads} S={self.length:,} D={self.head_dim}"
        return f"{sides}, {'causal' if self.causal else 'full'}, {self.rows or 'all'} rows a head"


#: What is promised: all rows of a layer of moderate length; a sample of a large one.
WHOLE = Size(heads=8, length=2048)
SAMPLED = Size(batch=2, heads=16, length=4096, head_dim=128, rows=ROWS)


def judging(size: Size) -> Callable[[], object]:
    """The judgement of a sound answer."""
    tensors = size.tensors()
    out = size.attention(*tensors)
    return lambda: assert_attention(out, *tensors, causal=size.causal, contract="fused", rows=size.rows)


def in_float64(size: Size) -> Callable[[], object]:
    """Attention of the same tensors in float64."""
    tensors = [x.double() for x in size.tensors()]
    return lambda: size.attention(*tensors)


def seconds(run: Callable[[], object], rounds: int) -> float:
    """The median of some calls, after one that is not counted."""
    run()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def peak(size: Size) -> int:
    """Bytes that judging takes at most beside the tensors, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_peak, size).result()


def _peak(size: Size) -> int:
    judging(Size(length=16))()  # which loads what it calls
    return growth(judging(size))


def lines(rounds: int, lengths: tuple[int, ...] = LENGTHS, sizes: tuple[Size, ...] = (WHOLE, SAMPLED)) -> Iterator[str]:
    """The report, line by line."""
    for size in sizes:
        judged, float64 = seconds(judging(size), rounds), seconds(in_float64(size), rounds)
        yield f"{size}: {judged:.2f} s, {judged / float64:.2f} of float64 attention, {peak(size) / 2**20:,.0f} MiB"
    yield f"{ROWS} rows of one head of more and more keys"
    for length in lengths:
        size = Size(length=length, rows=ROWS)
        yield f"  S={length:<7,}{seconds(judging(size), rounds):>9.3f} s{peak(size) / 2**20:>8,.0f} MiB"

"""Time and memory of judging long answers, beside float64 attention of PyTorch on the same data."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import torch

from attn_spec.contract.presets import PRESETS
from attn_spec.judgement.long.blocks import MEMORY
from attn_spec.numbers.formats import DTYPES
from attn_spec.testing import assert_attention, assert_attention_gradients

from .side_by_side import side_by_side
from .statistics.memory import growth

#: Queries, and keys, of the problems that show how time and memory grow.
LENGTHS = (1024, 2048, 4096, 8192, 16384)
#: Rows of each head of these, and keys.
ROWS = 256
#: Bytes that judging is allowed, where it shall take little.
LITTLE = 2**24
#: Number of times that each call is timed.
ROUNDS = 3
#: At most how many times as long as float64 attention judging an output takes, of any dtype and contract.
LIMIT = 15.0


@dataclass(frozen=True, kw_only=True)
class Size:
    """An answer: its dtype, heads, rows of q, k and v, and how many rows of each head are looked at, None: all."""

    batch: int = 1
    heads: int = 1
    length: int
    head_dim: int = 64
    causal: bool = True
    rows: int | None = None
    dtype: str = "bfloat16"

    def tensors(self) -> list[torch.Tensor]:
        """Draw q, k and v, normal numbers."""
        source = torch.Generator().manual_seed(0)
        shape = (self.batch, self.heads, self.length, self.head_dim)
        return [torch.randn(shape, generator=source).to(getattr(torch, self.dtype)) for _ in range(3)]

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Call the attention of PyTorch, in the dtype of the tensors."""
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def __str__(self) -> str:
        sides = f"B={self.batch} H={self.heads} S={self.length:,} D={self.head_dim}"
        return f"{sides}, {'causal' if self.causal else 'full'}, {self.rows or 'all'} rows a head"


#: Promised sizes: all rows of a layer of moderate length, and a sample of the rows of a large one.
WHOLE = Size(heads=8, length=2048)
SAMPLED = Size(batch=2, heads=16, length=4096, head_dim=128, rows=ROWS)


def judging(size: Size, memory: int = MEMORY) -> Callable[[], object]:
    """Return a call that judges a sound answer."""
    tensors = size.tensors()
    out, words = size.attention(*tensors), {"causal": size.causal, "contract": "fused", "rows": size.rows}
    return lambda: assert_attention(out, *tensors, **words, memory=memory)


def judging_under(contract: str | None, size: Size) -> Callable[[], object]:
    """Return a call that judges float64 attention, rounded to the dtype, under a contract: it is sound under each."""
    tensors = size.tensors()
    out = size.attention(*(x.double() for x in tensors)).to(tensors[0].dtype)
    return lambda: assert_attention(out, *tensors, causal=size.causal, contract=contract, rows=size.rows)


def in_float64(size: Size) -> Callable[[], object]:
    """Return a call of attention on equal tensors in float64."""
    tensors = [x.double() for x in size.tensors()]
    return lambda: size.attention(*tensors)


def judging_gradients(size: Size) -> Callable[[], object]:
    """Return a call that judges sound gradients: computed in float32, stored in bfloat16."""
    tensors = size.tensors()
    wide, dout = [x.float().requires_grad_() for x in tensors], torch.ones_like(tensors[0])
    gradients = torch.autograd.grad(size.attention(*wide), wide, dout.float())
    found = {f"d{name}": x.bfloat16() for name, x in zip("qkv", gradients, strict=True)}
    words = {"causal": size.causal, "contract": "fused", "rows": size.rows, "keys": size.rows}
    return lambda: assert_attention_gradients(found, dout, *tensors, **words)


def differentiated_in_float64(size: Size) -> Callable[[], object]:
    """Return a call of attention on equal tensors in float64, and of its gradients."""
    tensors = [x.double().requires_grad_() for x in size.tensors()]
    dout = torch.ones_like(tensors[0])
    return lambda: torch.autograd.grad(size.attention(*tensors), tensors, dout)


def seconds(run: Callable[[], object]) -> float:
    """Return the median seconds of some calls, after one that is not counted."""
    return side_by_side({"": run}, ROUNDS)[""]


def peak(judged: Callable[[Size], Callable[[], object]], size: Size) -> int:
    """Return the most bytes that judging takes beside the tensors, in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(_peak, judged, size).result()


def _peak(judged: Callable[[Size], Callable[[], object]], size: Size) -> int:
    judged(Size(length=16))()  # a first call loads the operators
    return growth(judged(size))


def compared(
    name: str, judged: Callable[[Size], Callable[[], object]], beside: Callable[[], object], size: Size
) -> str:
    """Return one line: the time of judging, its ratio to ``beside``, and its memory."""
    taken = side_by_side({"judged": judged(size), "beside": beside}, ROUNDS)
    ratio, mebibytes = taken["judged"] / taken["beside"], peak(judged, size) / 2**20
    return f"  {name}, {size}: {taken['judged']:.2f} s, {ratio:.2f} of float64 attention, {mebibytes:,.0f} MiB"


def cells(size: Size) -> Iterator[str]:
    """Yield the times of judging an output, of each dtype and under each contract."""
    yield f"  output, {size}, by dtype and contract, times of float64 attention (at most {LIMIT:g} wanted)"
    for dtype in DTYPES:
        of_dtype = replace(size, dtype=dtype)
        judged: dict[str, Callable[[], object]] = {
            name or "undeclared": judging_under(name, of_dtype) for name in (None, *PRESETS)
        }
        taken = side_by_side({"": in_float64(of_dtype)} | judged, ROUNDS)
        yield f"    {dtype:<10}" + "".join(f"{name:>12} {taken[name] / taken['']:4.1f}" for name in judged)


def lines(lengths: tuple[int, ...] = LENGTHS, whole: Size = WHOLE, sampled: Size = SAMPLED) -> Iterator[str]:
    """Yield the report, line by line."""
    yield "judging answers by assert_attention, beside float64 attention of PyTorch"
    for size in (whole, sampled):
        yield compared("output", judging, in_float64(size), size)
    yield compared("gradients", judging_gradients, differentiated_in_float64(whole), whole)
    yield from cells(whole)
    allowed = " and ".join(str(amount // 2**20) for amount in (MEMORY, LITTLE))
    yield f"  output, {ROWS} rows of one head of more and more keys: time, and memory with {allowed} MiB allowed"
    for length in lengths:
        size = Size(length=length, rows=ROWS)
        most = [peak(partial(judging, memory=amount), size) / 2**20 for amount in (MEMORY, LITTLE)]
        yield f"    S={length:<7,}{seconds(judging(size)):>9.3f} s" + "".join(f"{each:>8,.0f} MiB" for each in most)

"""Attention over ranks, each of which holds a shard of the sequence: a ring and a tree, in torch.

Ring (Liu et al., arXiv 2310.01889): queries stay, keys and values circulate, and a rank merges a part at every hop.
Tree (Shyam et al., arXiv 2408.04093): all ranks know the few queries, keys stay, and parts are merged two by two.

The contract's ``lse_merges`` is the largest number of merges that one key passes. In a ring it is the number of ranks
minus one, because the first part waits for all others. In a tree it is the depth, the logarithm of the number of ranks.

The backward pass merges nothing. Its weights are exp(s - M), whose error follows from that of M. dQ, dK and dV are sums
over the hops in float32, which the theorem of sums covers in any order. If dK and dV were sent in half precision,
``gradient_stores`` would count the hops.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import FP64, FUSED
from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.kernel import Kernel

from .ranks import Exchange, Layout, Program, Run, Work, contiguous, in_turn
from .shards import Part, Rank, wide

SUPPORTS = ("scale", "causal", "causal_alignment", "gqa", "dv", "cross", "empty", "lse", "lse_backward")
DTYPES = ("float64", "float32", "float16", "bfloat16")
Sending = Generator[Exchange, None, list[Tensor]]


class RingRank(Rank):
    """A rank that sends keys and values on to the next rank."""

    @staticmethod
    def merges(ranks: int) -> int:
        return ranks - 1

    def hops(self) -> Iterable[int]:
        return range(self.ranks)

    def owner(self, hop: int) -> int:
        """Return the rank whose keys are here after this many hops."""
        return (self.number - hop) % self.ranks

    def passed_on(self, held: Sequence[Tensor], hop: int) -> Sending:
        """Send the held tensors to the next rank, and return those of the previous rank."""
        if self.ranks == 1:  # a process sends no message to itself
            return list(held)
        length = len(self.keys(self.owner(hop)))
        arriving = [x.new_empty(*x.shape[:2], length, x.shape[3]) for x in held]
        yield Exchange({(self.number + 1) % self.ranks: held}, {(self.number - 1) % self.ranks: arriving})
        return arriving

    def waiting(self, part: Part, stored: torch.dtype) -> Part:  # noqa: ARG002 - a seam
        """Return a part as it is stored until the next hop, for inputs of dtype ``stored``."""
        return part

    def added(self, held: Sequence[Tensor], found: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return dQ, dK and dV of the hops before plus those of this hop."""
        return [x + more for x, more in zip(held, found, strict=True)]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Program:
        """Pass keys and values around the ring, and merge a part at every hop."""
        answer = self.nothing(q, v)
        for hop in self.hops():
            if hop:
                k, v = yield from self.passed_on((k, v), hop)
            answer = self.waiting(self.merge(answer, self.part(q, k, v, self.owner(hop))), q.dtype)
        out, lse = answer
        return out.to(q.dtype), lse

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *results: Any) -> Program:
        """Pass dK and dV around the ring with the keys; one more hop returns dK and dV to their owner."""
        saved = self.saved(*results)
        dq, dk, dv = (torch.zeros_like(wide(x)) for x in (q, k, v))
        for hop in range(self.ranks):
            if hop:
                k, v, dk, dv = yield from self.passed_on((k, v, dk, dv), hop)
            found = self.part_gradients(q, k, v, *saved, owner=self.owner(hop))
            dq, dk, dv = self.added((dq, dk, dv), found)
        dk, dv = yield from self.passed_on((dk, dv), self.ranks)
        return tuple(x.to(q.dtype) for x in (dq, dk, dv))


class TreeRank(Rank):
    """A rank that knows all queries, and sends its keys' part to a rank of a lower number."""

    @staticmethod
    def merges(ranks: int) -> int:
        return (ranks - 1).bit_length()

    def queries(self) -> Tensor:
        return torch.arange(self.query_length)

    def reduced(self, held: Sequence[Tensor], combine: Callable[..., Sequence[Tensor]]) -> Sending:
        """Combine what all ranks hold, two by two, at rank 0; return an empty list at other ranks."""
        reach = 1
        while reach < self.ranks:
            if self.number % (2 * reach):
                yield Exchange(send={self.number - reach: held})
                return []
            if self.number + reach < self.ranks:
                arriving = [x.new_empty(x.shape) for x in held]
                yield Exchange(receive={self.number + reach: arriving})
                held = combine(held, arriving)
            reach *= 2
        return list(held)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Program:
        """Return output and log-sum-exp at rank 0, and None at other ranks."""
        answer = yield from self.reduced(self.part(q, k, v, self.number), self.merge)
        return (answer[0].to(q.dtype), answer[1]) if answer else (None, None)

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *results: Any) -> Program:
        """Return dQ at rank 0, and dK and dV at each rank."""
        dq, dk, dv = self.part_gradients(q, k, v, *self.saved(*results), owner=self.number)
        total = yield from self.reduced([dq], lambda one, other: [one[0] + other[0]])
        return total[0].to(q.dtype) if total else None, dk.to(q.dtype), dv.to(q.dtype)


def merging(merges: int) -> dict[str, Contract]:
    """Return the contracts of parts that are computed in one tile, in PyTorch, and pass this many merges."""
    facts: dict[str, Any] = {"exponent": "natural", "matrix_rounding": None, "kv_tile": None, "lse_merges": merges}
    return {dtype: replace(FP64 if dtype == "float64" else FUSED, **facts) for dtype in DTYPES}


def over_ranks(
    name: str, program: type[Rank], ranks: int, *, layout: Layout = contiguous, run: Run = in_turn, **declared: Any
) -> Kernel:
    """Return a kernel that deals a problem to ranks, runs them and joins their answers; it has a backward pass.

    ``declared`` are arguments of :func:`attn_spec.kernel`.
    """

    def dealt(q: Tensor, k: Tensor, *, scale: float | None = None, causal: bool = False,
              causal_alignment: str = "top_left") -> list[Rank]:  # fmt: skip
        (*_, Sq, D), Sk = q.shape, k.shape[2]
        first = Sk - Sq if causal_alignment == "bottom_right" else 0
        sigma = D**-0.5 if scale is None else scale
        return [program(number, ranks, layout, Sq, Sk, sigma, causal, first) for number in range(ranks)]

    def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        team = dealt(q, k, **options)
        outs, lses = zip(*run([Work(rank, "forward", rank.shards(q, k, v)) for rank in team]), strict=True)
        places = [rank.answered() for rank in team]
        return joined(outs, places, q.shape[2]), joined(lses, places, q.shape[2])

    facts = {"framework": "torch", "dtypes": DTYPES, "contract": merging(program.merges(ranks)), "supports": SUPPORTS}
    made = kernel(name=name, **{**facts, "devices": ("cpu",), **declared})(attention)

    @made.backward
    def gradients(
        dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *results: Tensor, dlse: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, ...]:
        team = dealt(q, k, **options)
        saved = (dout, *results, dlse)
        works = [Work(rank, "backward", (*rank.shards(q, k, v), *rank.rows_of(*saved))) for rank in team]
        dq, dk, dv = zip(*run(works), strict=True)
        homes = [rank.brought_home() for rank in team]
        rows = joined(dq, [rank.answered() for rank in team], q.shape[2])
        return rows, joined(dk, homes, k.shape[2]), joined(dv, homes, k.shape[2])

    return made


def joined(parts: Sequence[Tensor | None], places: Sequence[Tensor], length: int) -> Tensor:
    """Return a tensor with parts [B, H, rows, ..] written to their places on the third axis."""
    found = [(part, place) for part, place in zip(parts, places, strict=True) if part is not None]
    whole = found[0][0].new_empty(*found[0][0].shape[:2], length, *found[0][0].shape[3:])
    for part, place in found:
        whole[:, :, place] = part
    return whole

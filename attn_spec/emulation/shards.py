"""Work of a rank on shards of a problem, forward and backward, and the merge of its parts, in torch.

A part is the result of one shard of keys for some queries: an output, divided by its row sum, and its log-sum-exp. Both
are in float32, or in float64 for float64 inputs. Parts o, L and o', L' are merged as

    M = log(e^L + e^L')    e^(L - M) o + e^(L' - M) o'
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .ranks import Layout, Program

#: Output [B, Hq, rows, Dv] and log-sum-exp [B, Hq, rows].
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Rank(ABC):
    """One rank. Its steps are methods, which a mutant overrides; its programs exchange tensors with other ranks."""

    number: int
    ranks: int
    layout: Layout
    query_length: int
    key_length: int
    scale: float
    causal: bool
    #: Key that the first query is aligned with.
    first: int

    @staticmethod
    @abstractmethod
    def merges(ranks: int) -> int:
        """Return the largest number of merges that a key passes."""

    @abstractmethod
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Program:
        """Return output and log-sum-exp of the queries that this rank answers for."""

    @abstractmethod
    def backward(self, q: Tensor, k: Tensor, v: Tensor, *results: Any) -> Program:
        """Return dQ of the queries that this rank answers for, and dK and dV of its own keys.

        ``results`` are dO, O, the log-sum-exp, and its cotangent or None.
        """

    def queries(self) -> Tensor:
        """Return the positions of the queries that this rank holds."""
        return self.layout(self.query_length, self.ranks)[self.number]

    def keys(self, owner: int) -> Tensor:
        """Return the positions of the keys that rank ``owner`` holds at first."""
        return self.layout(self.key_length, self.ranks)[owner]

    def answered(self) -> Tensor:
        """Return the positions of the queries that this rank answers for."""
        return self.queries()

    def brought_home(self) -> Tensor:
        """Return the positions of the keys whose gradients this rank answers with."""
        return self.keys(self.number)

    def shards(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's shards of q, k and v."""
        cols = self.keys(self.number)
        return q[:, :, self.queries()], k[:, :, cols], v[:, :, cols]

    def rows_of(self, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the rows of tensors [B, Hq, Sq, ..] for the queries that this rank holds."""
        return tuple(None if x is None else x[:, :, self.queries()] for x in tensors)

    # One shard of keys

    def visible(self, owner: int) -> Tensor:
        """Return which keys of rank ``owner`` each query of this rank sees, [rows, cols]."""
        diagonal, j = self.queries()[:, None] + self.first, self.keys(owner)
        return j <= diagonal if self.causal else torch.ones(len(diagonal), len(j), dtype=torch.bool)

    def met(self, owner: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries that see a key of rank ``owner``, the keys they see, and which query sees which key.

        Other pairs cost nothing. In a causal zigzag half of the pairs of any two ranks are left, in a contiguous layout
        all or none.
        """
        seen = self.visible(owner)
        rows, cols = seen.any(1), seen.any(0)
        return rows, cols, seen[rows][:, cols]

    def scores(self, q: Tensor, k: Tensor, seen: Tensor) -> Tensor:
        """Return scores of wide q and k, minus infinity where masked."""
        return (q @ k.mT * self.scale).masked_fill(~seen, -math.inf)

    def nothing(self, q: Tensor, v: Tensor) -> Part:
        """Return the part of no keys."""
        rows = q.shape[:3]
        work = torch.promote_types(q.dtype, torch.float32)
        return q.new_zeros(*rows, v.shape[-1], dtype=work), q.new_full(rows, -math.inf, dtype=work)

    def part(self, q: Tensor, k: Tensor, v: Tensor, owner: int) -> Part:
        """Return the part of these queries and the keys of rank ``owner``."""
        out, lse = self.nothing(q, v)
        rows, cols, seen = self.met(owner)
        if len(seen):
            k, v = (per_query_head(x[:, :, cols], q.shape[1]) for x in (k, v))
            s = self.scores(wide(q[:, :, rows]), k, seen)
            m = s.amax(-1, keepdim=True)
            p = torch.exp(s - m)
            l = p.sum(-1, keepdim=True)
            out[:, :, rows] = wide(p.to(q.dtype)) @ v / l
            lse[:, :, rows] = self.log_sum_exp(m, l).squeeze(-1)
        return out, lse

    def log_sum_exp(self, m: Tensor, l: Tensor) -> Tensor:
        return m + torch.log(l)

    def part_gradients(self, q: Tensor, k: Tensor, v: Tensor, *saved: Tensor, owner: int) -> list[Tensor]:
        """Return dQ, dK and dV, wide, of these queries and the keys of a rank, from dO, delta and the log-sum-exp."""
        dout, delta, lse = saved
        dq, dk, dv = (torch.zeros_like(wide(x)) for x in (q, k, v))
        rows, cols, seen = self.met(owner)
        if len(seen):
            heads = q.shape[1]
            at, dO = wide(q[:, :, rows]), wide(dout[:, :, rows])
            keys, values = (per_query_head(x[:, :, cols], heads) for x in (k, v))
            p = torch.exp(self.scores(at, keys, seen) - lse[:, :, rows, None])
            ds = p * (dO @ values.mT - delta[:, :, rows, None])
            p, ds = (wide(x.to(q.dtype)) for x in (p, ds))
            dq[:, :, rows] = self.scale * (ds @ keys)
            dk[:, :, cols] = over_group(self.scale * (ds.mT @ at), k.shape[1])
            dv[:, :, cols] = over_group(p.mT @ dO, k.shape[1])
        return [dq, dk, dv]

    def saved(self, dout: Tensor, out: Tensor, lse: Tensor, dlse: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the gradients of every shard need: dO, delta = rowsum(dO O) - dLSE [B, Hq, rows], and the LSE."""
        delta = (wide(dout) * wide(out)).sum(-1)
        return dout, delta if dlse is None else delta - dlse, lse

    # Several shards

    def merge(self, one: Part, other: Part) -> Part:
        """Return two parts merged into one."""
        (o, L), (o_other, L_other) = one, other
        M = torch.logaddexp(L, L_other)
        return self.share(L, M) * o + self.share(L_other, M) * o_other, M

    def share(self, L: Tensor, M: Tensor) -> Tensor:
        """Return e^(L - M), [B, Hq, rows, 1]; 0 where no part saw a key: -inf - -inf would be NaN."""
        return torch.exp(L - M.masked_fill(M.isneginf(), 0.0))[..., None]


def wide(x: Tensor) -> Tensor:
    """Return a float64 tensor unchanged, and any other in float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def per_query_head(x: Tensor, query_heads: int) -> Tensor:
    """Return k or v, wide, once for each query head that reads it."""
    return wide(x).repeat_interleave(query_heads // x.shape[1], dim=1)


def over_group(x: Tensor, kv_heads: int) -> Tensor:
    """Return the sum over the query heads that share a kv head."""
    return x.unflatten(1, (kv_heads, -1)).sum(2)

"""Mutants of attention over ranks: shards that are left out, masked, merged or sent home wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec.emulation.ranks import Exchange, striped, zigzag
from attn_spec.emulation.ring import RingRank, Sending, TreeRank
from attn_spec.emulation.shards import Part, wide

from .mutants import rank_mutant

OUTPUT = "accuracy.output_is_within_its_bound"
DIAGONAL = "causality.the_diagonal_is_where_the_convention_says"
FUTURE = "causality.future_keys_change_nothing"
MAXIMA = "online_rescaling.the_maximum_may_move_anywhere"
COUNTED = "temperature.equal_scores_give_the_mean_of_the_visible_values"
QUERY_AND_KEY = "gradients.query_and_key_gradients_are_within_their_bounds"
VALUE = "gradients.value_gradients_are_within_their_bounds"
HALVES = ("float16", "bfloat16")


@rank_mutant(source="made up: a ring whose ranks do what they should", named_by=None, ranks=4, layout=zigzag)
class RingOverRanks(RingRank):
    """Queries, keys and values lie in a zigzag over four ranks, and keys and values go round."""


@rank_mutant(source="made up: a tree whose ranks do what they should", named_by=None)
class TreeOverRanks(TreeRank):
    """Keys lie on three ranks, whose outputs are merged two by two."""


@rank_mutant(source="made up: hops counted where ranks were meant", named_by=COUNTED)
class LastHopSkipped(RingRank):
    """A rank never meets the keys of the next one, which would be the last to arrive."""

    def hops(self) -> Iterable[int]:
        return range(self.ranks - 1)


@rank_mutant(source="made up: a hop for each rank after a rank's own keys", named_by=COUNTED)
class OwnShardTwice(RingRank):
    """A rank meets its own keys again when they have been all round."""

    def hops(self) -> Iterable[int]:
        return range(self.ranks + 1)


@rank_mutant(source="made up: the offset of a rank's own keys", named_by=DIAGONAL)
class MaskOfOwnShard(RingRank):
    """The causal mask treats arriving keys as the keys that the rank had at first."""

    def visible(self, owner: int) -> Tensor:
        i, j = self.queries()[:, None] + self.first, self.keys(owner)
        start = [int(self.keys(rank)[0]) if len(self.keys(rank)) else 0 for rank in (owner, self.number)]
        return (j - start[0] + start[1] <= i) if self.causal else super().visible(owner)


@rank_mutant(source="made up: one triangle for all stripes", named_by=FUTURE, layout=striped)
class StripesMaskedAlike(RingRank):
    """Query n of a stripe sees key n of all stripes, later keys of the sequence included."""

    def visible(self, owner: int) -> Tensor:
        i, j = self.queries()[:, None] + self.first, self.keys(owner)
        return (j // self.ranks <= i // self.ranks) if self.causal else super().visible(owner)


@rank_mutant(source="made up: outputs put together in the order of ranks", named_by=OUTPUT, layout=zigzag)
class ZigzagNotRestored(RingRank):
    """Outputs of a zigzag are written one rank after the other."""

    def answered(self) -> Tensor:
        own = self.layout(self.query_length, self.ranks)
        start = sum(len(places) for places in own[: self.number])
        return torch.arange(start, start + len(own[self.number]))


@rank_mutant(source="sgl-project/sglang#35045, vllm-project/vllm#28840", named_by=MAXIMA)
class HopsMixBases(RingRank):
    """Log-sum-exps are natural, and the shares of two parts are powers of 2."""

    def share(self, L: Tensor, M: Tensor) -> Tensor:
        return torch.exp2(L - M.masked_fill(M.isneginf(), 0.0))[..., None]


@rank_mutant(source="made up: row sums exchanged without their maxima", named_by=MAXIMA)
class MaximaNotExchanged(TreeRank):
    """A rank hands over the logarithm of its row sum, which is relative to its own maximum."""

    def log_sum_exp(self, m: Tensor, l: Tensor) -> Tensor:
        return super().log_sum_exp(torch.zeros_like(m), l)


@rank_mutant(source="made up: the log-sum-exp of no keys less itself", named_by=OUTPUT)
class EmptyShardIsNan(RingRank):
    """The share of two parts without a visible key is exp(-inf - -inf)."""

    def share(self, L: Tensor, M: Tensor) -> Tensor:
        return torch.exp(L - M)[..., None]


@rank_mutant(source="made up: a shard of no keys given the log-sum-exp of one", named_by=OUTPUT)
class EmptyShardCounts(TreeRank):
    """The log-sum-exp of a shard without keys is 0, as if it had one of score 0."""

    def part(self, q: Tensor, k: Tensor, v: Tensor, owner: int) -> Part:
        out, lse = super().part(q, k, v, owner)
        return out, lse if k.shape[2] else torch.zeros_like(lse)


@rank_mutant(
    source="zhuzilin/ring-flash-attention#22, zhuzilin/ring-flash-attention#42",
    named_by=MAXIMA,
    ranks=8,
    dtype="bfloat16",
    dtypes=HALVES,
)
class RingOutputsNarrow(RingRank):
    """The output waits for the next hop in the dtype of the inputs."""

    def waiting(self, part: Part, stored: torch.dtype) -> Part:
        out, lse = part
        return wide(out.to(stored)), lse


@rank_mutant(source="huggingface/diffusers#14265", named_by=QUERY_AND_KEY, ranks=2)
class BackwardOfOwnKeys(RingRank):
    """The backward pass finds the gradients of a rank's own keys and values in every hop."""

    def passed_on(self, held: Sequence[Tensor], hop: int) -> Sending:
        arrived = yield from super().passed_on(held, hop)
        same = len(held) == 4 and held[0].shape == arrived[0].shape
        return [*held[:2], *arrived[2:]] if same else arrived


@rank_mutant(source="made up: the log-sum-exp of a hop for that of the row", named_by=VALUE)
class WeightsOfTheHop(RingRank):
    """The backward pass takes weights that add up to 1 over the keys of each hop."""

    def part_gradients(self, q: Tensor, k: Tensor, v: Tensor, *saved: Tensor, owner: int) -> list[Tensor]:
        _, lse = self.part(q, k, v, owner)
        return super().part_gradients(q, k, v, *saved[:2], lse, owner=owner)


@rank_mutant(source="made up: a buffer that is overwritten", named_by=QUERY_AND_KEY)
class QueryGradientOfTheLastHop(RingRank):
    """dQ takes the last hop only."""

    def added(self, held: Sequence[Tensor], found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [found[0], *super().added(held, found)[1:]]


@rank_mutant(source="made up: a hop too few for gradients", named_by=VALUE)
class GradientsOfTheNeighbour(RingRank):
    """dK and dV stay with the rank before the owner, where it holds as many keys."""

    def brought_home(self) -> Tensor:
        own, other = (self.keys(rank % self.ranks) for rank in (self.number, self.number + 1))
        every = {len(self.keys(rank)) for rank in range(self.ranks)}
        return other if len(every) == 1 else own


@rank_mutant(
    source="made up: partial gradients sent as the gradients are returned",
    named_by=VALUE,
    ranks=8,
    dtype="bfloat16",
    dtypes=HALVES,
)
class GradientsTravelNarrow(RingRank):
    """dK and dV travel in the dtype of the inputs."""

    def passed_on(self, held: Sequence[Tensor], hop: int) -> Sending:
        arrived = yield from super().passed_on(held, hop)
        return [wide(x.to(held[0].dtype)) if x.dtype != held[0].dtype else x for x in arrived]


@rank_mutant(source="made up: a tree for powers of 2", named_by=COUNTED)
class OddRankLeftOut(TreeRank):
    """Ranks beyond the largest power of 2 find no partner and are forgotten."""

    def reduced(self, held: Sequence[Tensor], combine: Callable[..., Sequence[Tensor]]) -> Sending:
        paired = replace(self, ranks=1 << (self.ranks.bit_length() - 1))
        if self.number >= paired.ranks:
            return []
        return (yield from TreeRank.reduced(paired, held, combine))


@rank_mutant(source="made up: gradients that nobody adds up", named_by=QUERY_AND_KEY)
class QueryGradientOfOneRank(TreeRank):
    """dQ takes the keys of rank 0 only."""

    def backward(self, q: Tensor, k: Tensor, v: Tensor, *results: Any) -> Any:
        dq, dk, dv = self.part_gradients(q, k, v, *self.saved(*results), owner=self.number)
        yield Exchange()
        return None if self.number else dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)

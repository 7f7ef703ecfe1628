"""Attention whose keys are dealt to splits that know nothing of one another, and merged: the shape of FlashDecoding.

:class:`SplitAttention` merges maxima, row sums and unnormalized outputs, a tree of the accumulators that
:class:`~attn_spec.emulation.forward.TiledAttention` keeps in a chain. :class:`NormalizedSplitAttention` merges outputs
and log-sum-exps, as Dao et al., "Flash-Decoding for long-context inference" (2023), which rounds more often;
:class:`RingAttention` does so after every part (Liu et al., arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .forward import TiledAttention
from .scores import Tile


class Part(NamedTuple):
    """What the keys of a split make of every query."""

    #: The maximum [B, Hq, Sq, 1], minus infinity where no key was visible.
    m: Any
    #: The row sum [B, Hq, Sq, 1].
    l: Any
    #: The output before its division by l, [B, Hq, Sq, Dv].
    acc: Any


class SplitAttention(TiledAttention):
    """One call; dealing and merging are seams too."""

    #: How many splits the keys are dealt to; some are empty when there are few tiles.
    splits = 3

    def __call__(self) -> tuple[Any, Any]:
        """Output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            return self.combine([Part(*self.fold(tiles)) for tiles in self.deal(list(self.tiles()))])

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        """The tiles of each split, equally many but in the last ones."""
        share = -(-len(tiles) // self.splits)
        return [tiles[n * share : (n + 1) * share] for n in range(self.splits)]

    def combine(self, parts: Sequence[Part]) -> tuple[Any, Any]:
        """Output and log-sum-exp of all parts."""
        m, l, acc = reduce(self.merge, parts)
        return self.finish(acc, l), self.log_sum_exp(m, l)

    def merge(self, one: Part, other: Part) -> Part:
        """Two parts as one, by the larger maximum."""
        m = self.merged_max(one.m, other.m)
        a, b = self.merge_factor(one.m, m), self.merge_factor(other.m, m)
        l = self.add(self.merge_row_sum(one.l, a), self.merge_row_sum(other.l, b), "row_sum")
        acc = self.add(self.merge_output(one.acc, a), self.merge_output(other.acc, b), "output_accumulation")
        return Part(m, l, acc)

    def merge_row_sum(self, l: Any, factor: Any) -> Any:
        """A part's row sum as it enters the merged one."""
        return self.rescale_row_sum(l, factor)

    def merge_output(self, acc: Any, factor: Any) -> Any:
        """A part's output as it enters the merged one."""
        return self.rescale_output(acc, factor)

    def merged_max(self, one: Any, other: Any) -> Any:
        return self.xp.maximum(one, other)

    def merge_factor(self, m: Any, merged: Any) -> Any:
        """What a part of maximum m is multiplied by."""
        return self.rescale_factor(m, merged)


class NormalizedSplitAttention(SplitAttention):
    """Splits hand over their outputs, divided by their row sums, and their log-sum-exps, each rounded."""

    def combine(self, parts: Sequence[Part]) -> tuple[Any, Any]:
        """Output and log-sum-exp; each part counts as one key, its log-sum-exp for a score, its output for a value."""
        natural_lse = super(SplitAttention, self).natural_lse
        return super().combine([self.arrive(self.normalized(part, natural_lse(*part[:2]))) for part in parts])

    def natural_lse(self, m: Any, l: Any) -> Any:
        """Of merged parts, whose references are log-sum-exps."""
        return self.log_of_sum(m, l)

    def normalized(self, part: Part, lse: Any) -> Part:
        """The part with a row sum of 1, or of 0 where it saw no key, and its log-sum-exp for a maximum."""
        value = self.divide(self.convert(part.acc, "softmax", "output_accumulation"), self.nonzero(part.l))
        return Part(self.change_base(lse[..., None]), self.xp.where(part.l == 0, 0.0, 1.0), value)

    def arrive(self, part: Part) -> Part:
        """A normalized part of which the merge is told."""
        return self.waiting(part)

    def waiting(self, part: Part) -> Part:
        """A normalized part as it waits for the next one."""
        return part._replace(acc=self.convert(part.acc, "partial_outputs", "softmax"))

    def merge_row_sum(self, l: Any, factor: Any) -> Any:
        return self.rescale(l, factor, "row_sum")

    def merge_output(self, acc: Any, factor: Any) -> Any:
        return self.rescale(acc, factor, "output_accumulation")

    def merge_factor(self, m: Any, merged: Any) -> Any:
        """e^(L_t - L); both are log-sum-exps, -inf for parts that saw no key."""
        return self.exponential(self.round(m - self.xp.where(merged == -np.inf, 0.0, merged), "softmax"))


class RingAttention(NormalizedSplitAttention):
    """Parts arrive one after the other; after each the running output waits, normalized, with its log-sum-exp."""

    #: The log-sum-exp of the parts that have arrived, [B, Hq, Sq].
    lse: Any

    def log_sum_exp(self, m: Any, l: Any) -> Any:  # noqa: ARG002 - a sum of parts that have been merged already
        """The one that the last merge stored; it is not stored again, unless it is moved."""
        return self.moved_back(self.lse)

    def arrive(self, part: Part) -> Part:
        """A part waits once, with the output that it meets."""
        return part

    def merge(self, one: Part, other: Part) -> Part:
        one, other = self.waiting(one), self.waiting(other)
        merged = super().merge(one, other)
        self.lse = self.natural_lse(merged.m, merged.l)
        if self.c.merging == "weighted":
            return self.normalized(merged, self.lse)
        seen = self.xp.where(merged.l == 0, 0.0, 1.0)
        return Part(self.change_base(self.lse[..., None]), seen, self.by_difference(one, other))

    def by_difference(self, one: Part, other: Part) -> Any:
        """o - b (o - o') for b = 1/(1 + exp(L - L'))."""
        gap = self.round(self.xp.where(one.l * other.l == 0, 0.0, one.m - other.m), "softmax")
        b = self.round(1 / self.round(1 + self.exponential(gap), "softmax"), "softmax")
        o = self.round(one.acc - other.acc, "output_accumulation")
        o = self.round(one.acc - self.round(o * b, "output_accumulation"), "output_accumulation")
        o = self.xp.where(other.l == 0, one.acc, self.xp.where(one.l == 0, other.acc, o))
        return self.convert(o, "softmax", "output_accumulation")

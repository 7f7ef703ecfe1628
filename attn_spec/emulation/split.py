"""Attention over splits of the keys that are computed independently, then merged: the structure of FlashDecoding.

:class:`SplitAttention` merges maxima, row sums and unnormalized outputs: a tree of the accumulators that
:class:`~attn_spec.emulation.forward.TiledAttention` keeps in a chain. :class:`NormalizedSplitAttention` merges outputs
and log-sum-exps, which rounds more often (Dao et al., "Flash-Decoding for long-context inference", 2023).
:class:`RingAttention` merges after every part (Liu et al., arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from .forward import TiledAttention
from .tile import Tile


class Part(NamedTuple):
    """The result of one split of keys for every query."""

    #: Maximum [B, Hq, Sq, 1], minus infinity if no key was visible.
    m: Any
    #: Row sum [B, Hq, Sq, 1].
    l: Any
    #: Output before its division by l, [B, Hq, Sq, Dv].
    acc: Any


class SplitAttention(TiledAttention):
    """One forward call over splits; dealing and merging are seams too."""

    #: Number of splits that the keys are dealt to; some splits are empty if there are few tiles.
    splits = 3

    @property
    def adds_sink_last(self) -> bool:
        """False: the maximum of one split may be far below that of all keys."""
        return False

    def __call__(self) -> tuple[Any, Any]:
        """Return output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            return self.combine([Part(*self.fold(tiles)) for tiles in self.deal(list(self.tiles()))])

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        """Return the tiles of each split, equally many except in the last ones."""
        share = -(-len(tiles) // self.splits)
        return [tiles[n * share : (n + 1) * share] for n in range(self.splits)]

    def combine(self, parts: Sequence[Part]) -> tuple[Any, Any]:
        """Return output and log-sum-exp of all parts."""
        m, l, acc = reduce(self.merge, parts)
        return self.finish(acc, l), self.log_sum_exp(m, l)

    def merge(self, one: Part, other: Part) -> Part:
        """Return two parts merged into one, by the larger maximum."""
        m = self.merged_max(one.m, other.m)
        a, b = self.merge_factor(one.m, m), self.merge_factor(other.m, m)
        l = self.add(self.merge_row_sum(one.l, a), self.merge_row_sum(other.l, b), "row_sum")
        acc = self.add(self.merge_output(one.acc, a), self.merge_output(other.acc, b), "output_accumulation")
        return Part(m, l, acc)

    def merge_row_sum(self, l: Any, factor: Any) -> Any:
        """Return a part's row sum as it enters the merged one."""
        return self.rescale_row_sum(l, factor)

    def merge_output(self, acc: Any, factor: Any) -> Any:
        """Return a part's output as it enters the merged one."""
        return self.rescale_output(acc, factor)

    def merged_max(self, one: Any, other: Any) -> Any:
        return self.xp.maximum(one, other)

    def merge_factor(self, m: Any, merged: Any) -> Any:
        """Return the factor of a part of maximum m."""
        return self.rescale_factor(m, merged)


class NormalizedSplitAttention(SplitAttention):
    """Splits that hand over their outputs, divided by their row sums, and their log-sum-exps, each rounded."""

    def combine(self, parts: Sequence[Part]) -> tuple[Any, Any]:
        """Return output and log-sum-exp; a part is a key with its log-sum-exp as score and its output as value."""
        natural_lse = super(SplitAttention, self).natural_lse
        lses = [natural_lse(part.m, part.l) for part in parts]
        unscaled = [part._replace(acc=self.unscaled(part.acc)) for part in parts]
        return super().combine([self.arrive(self.normalized(*each)) for each in zip(unscaled, lses, strict=True)])

    def finish(self, acc: Any, l: Any) -> Any:
        """Return acc / l of merged parts, which have no scale of probabilities any more."""
        return self.finish_unscaled(acc, l)

    def natural_lse(self, m: Any, l: Any) -> Any:
        """Return the natural log-sum-exp of merged parts, whose references are log-sum-exps."""
        return self.log_of_sum(m, l)

    def normalized(self, part: Part, lse: Any) -> Part:
        """Return the part with a row sum of 1, or of 0 if it saw no key, and with its log-sum-exp as maximum."""
        value = self.divide(self.convert(part.acc, "softmax", "output_accumulation"), self.nonzero(part.l))
        return Part(self.change_base(lse[..., None]), self.xp.where(part.l == 0, 0.0, 1.0), value)

    def arrive(self, part: Part) -> Part:
        """Return a normalized part as the merge receives it."""
        return self.waiting(part)

    def waiting(self, part: Part) -> Part:
        """Return a normalized part as it is stored until the next one arrives."""
        return part._replace(acc=self.convert(part.acc, "partial_outputs", "softmax"))

    def merge_row_sum(self, l: Any, factor: Any) -> Any:
        return self.rescale(l, factor, "row_sum")

    def merge_output(self, acc: Any, factor: Any) -> Any:
        return self.rescale(acc, factor, "output_accumulation")

    def merge_factor(self, m: Any, merged: Any) -> Any:
        """Return e^(L_t - L); both are log-sum-exps, -inf for parts that saw no key."""
        return self.exponential(self.round(m - self.xp.where(merged == -np.inf, 0.0, merged), "softmax"))


class RingAttention(NormalizedSplitAttention):
    """Parts arrive one after the other; after each the running output is stored, normalized, with its log-sum-exp."""

    #: Log-sum-exp of the parts that have arrived, [B, Hq, Sq].
    lse: Any

    def log_sum_exp(self, m: Any, l: Any) -> Any:  # noqa: ARG002 - the parts have been merged already
        """Return the log-sum-exp that the last merge stored; it is rounded again only if a row shift moves it."""
        return self.moved_back(self.lse)

    def arrive(self, part: Part) -> Part:
        """Return the part unchanged: it is stored once, together with the output that it is merged with."""
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
        """Return o - b (o - o') for b = 1/(1 + exp(L - L'))."""
        gap = self.round(self.xp.where(one.l * other.l == 0, 0.0, one.m - other.m), "softmax")
        b = self.round(1 / self.round(1 + self.exponential(gap), "softmax"), "softmax")
        o = self.round(one.acc - other.acc, "output_accumulation")
        o = self.round(one.acc - self.round(o * b, "output_accumulation"), "output_accumulation")
        o = self.xp.where(other.l == 0, one.acc, self.xp.where(one.l == 0, other.acc, o))
        return self.convert(o, "softmax", "output_accumulation")

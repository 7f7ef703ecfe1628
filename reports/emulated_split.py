"""Attention whose keys are dealt to splits that know nothing of one another, and merged: the shape of FlashDecoding.

:class:`SplitAttention` merges maxima, row sums and unnormalized outputs, a tree of the accumulators that
:class:`~attn_spec.reports.emulated.TiledAttention` keeps in a chain. :class:`NormalizedSplitAttention` merges outputs
and log-sum-exps, as Dao et al., "Flash-Decoding for long-context inference" (2023), which rounds more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from .emulated import Tile, TiledAttention


class Part(NamedTuple):
    """What the keys of a split make of every query."""

    #: The maximum [B, Hq, Sq, 1], minus infinity where no key was visible.
    m: np.ndarray
    #: The row sum [B, Hq, Sq, 1].
    l: np.ndarray
    #: The output before its division by l, [B, Hq, Sq, Dv].
    acc: np.ndarray


class SplitAttention(TiledAttention):
    """One call; dealing and merging are seams too."""

    #: How many splits the keys are dealt to; some are empty when there are few tiles.
    splits = 3

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            return self.combine([Part(*self.fold(tiles)) for tiles in self.deal(list(self.tiles()))])

    def deal(self, tiles: list[Tile]) -> list[list[Tile]]:
        """The tiles of each split, equally many but in the last ones."""
        share = -(-len(tiles) // self.splits)
        return [tiles[n * share : (n + 1) * share] for n in range(self.splits)]

    def combine(self, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
        """Output and log-sum-exp of all parts."""
        m, l, acc = reduce(self.merge, parts)
        return self.finish(acc, l), self.log_sum_exp(m, l)

    def merge(self, one: Part, other: Part) -> Part:
        """Two parts as one, by the larger maximum."""
        m = self.merged_max(one.m, other.m)
        a, b = self.merge_factor(one.m, m), self.merge_factor(other.m, m)
        l = self.round(self.rescale_row_sum(one.l, a) + self.rescale_row_sum(other.l, b), "row_sum")
        acc = self.rescale_output(one.acc, a) + self.rescale_output(other.acc, b)
        return Part(m, l, self.round(acc, "output_accumulation"))

    def merged_max(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.maximum(one, other)

    def merge_factor(self, m: np.ndarray, merged: np.ndarray) -> np.ndarray:
        """What a part of maximum m is multiplied by."""
        return self.rescale_factor(m, merged)


class NormalizedSplitAttention(SplitAttention):
    """Splits hand over their outputs, divided by their row sums, and their log-sum-exps, each rounded."""

    def combine(self, parts: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
        """Output and log-sum-exp; each part counts as one key, its log-sum-exp for a score, its output for a value."""
        return super().combine([self.normalized(part) for part in parts])

    def normalized(self, part: Part) -> Part:
        """The part with a row sum of 1, or of 0 where it saw no key."""
        score = self.round(part.m + self.logarithm(self.nonzero(part.l)), "softmax")
        value = self.round(part.acc * self.round(1 / self.nonzero(part.l), "softmax"), "softmax")
        return Part(score, np.where(part.l == 0, 0.0, 1.0), value)

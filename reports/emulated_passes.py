"""Attention in two passes over the keys: the first finds the reference and the row sum, the second sums p v.

Weights are computed again in the second pass and never rescaled. They are divided by the row sum
(normalize="before_product", what compilers make of eager attention) or are exp(s - LSE) at once ("by_lse").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.contract import Contract

from .arithmetic import Order
from .emulated import TiledAttention


class TwoPasses(TiledAttention):
    """One call; the second pass is a seam too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Scores by the first key of their tile.
        self.kept: dict[int, Any] = {}

    def __call__(self) -> tuple[Any, Any]:
        """Output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            m, l, _ = self.fold(self.tiles())
            self.L = self.natural_lse(m, l)[..., None]
            return self.finish(self.second_pass(m, l), l), self.log_sum_exp(m, l)

    def scores(self) -> Any:
        """Scores that are kept for the second pass, or computed again for weights exp(s - LSE)."""
        first = int(self.tile.cols[0])
        if self.c.normalize == "by_lse" or first not in self.kept:
            self.kept[first] = super().scores()
        return self.kept[first]

    def accumulate_output(self, acc: Any, w: Any, v: Any) -> Any:  # noqa: ARG002 - the row sum is not known yet
        """Nothing: the first pass has no use for values."""
        return acc

    def second_pass(self, m: Any, l: Any) -> Any:
        """The sum of p v for normalized p."""
        acc = self.nothing_seen()[2]
        for self.tile in self.tiles():  # noqa: B020 - the current tile, which every step reads
            acc = super().accumulate_output(acc, self.final_weights(m, l), self.load_v())
        return acc

    def final_weights(self, m: Any, l: Any) -> Any:
        """The weights of a tile as they enter the product."""
        s = self.hide(self.scores())
        if self.c.normalize == "by_lse":
            return self.cast(self.exponential(self.subtract_lse(s)))
        return self.cast_probabilities(self.weights(s, m), l)


def steps_of(contract: Contract, order: Order) -> type[TiledAttention]:
    """The plain kernel that executes a contract: one pass, or two where normalized weights meet v tile by tile."""
    tiled = contract.normalize == "before_product" and order.kv_tile is not None
    return TwoPasses if tiled or contract.normalize == "by_lse" else TiledAttention

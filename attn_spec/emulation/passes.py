"""Attention whose weights are normalized before they multiply v.

In two passes over the keys, the first finds the reference and the row sum, and the second sums p v. The second pass
computes the weights again and never rescales them. Variants by the contract's ``normalize``:

- "before_product": weights are divided by the row sum, as in compiled eager attention;
- "by_lse": weights are exp(s - LSE) at once;
- "every_tile": one pass divides by the row sum so far, and rescales the output by the ratio of row sums (Dao et al.,
arXiv 2205.14135, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from attn_spec.bounds.forward.score_bounds import narrows_scores
from attn_spec.contract.contract import Contract

from .arithmetic import Order
from .forward import TiledAttention
from .tile import Tile


class TwoPasses(TiledAttention):
    """One forward call in two passes; the second pass is a seam too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        #: Scores by the first key of their tile.
        self.kept: dict[int, Any] = {}

    def __call__(self) -> tuple[Any, Any]:
        """Return output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        with np.errstate(all="ignore"):
            m, l, _ = self.fold(self.tiles())
            self.L = self.natural_lse(m, l)[..., None]
            return self.finish(self.second_pass(m, l), l), self.log_sum_exp(m, l)

    def scores(self) -> Any:
        """Return the scores of the tile: the first pass's, or new ones for exp(s - LSE) unless storing rounds them."""
        first = int(self.tile.cols[0])
        again = self.c.normalize == "by_lse" and not narrows_scores(self.c)
        if again or first not in self.kept:
            self.kept[first] = super().scores()
        return self.kept[first]

    def accumulate_output(self, acc: Any, w: Any, v: Any) -> Any:  # noqa: ARG002 - the row sum is not known yet
        """Return ``acc`` unchanged: the first pass does not use values."""
        return acc

    def second_pass(self, m: Any, l: Any) -> Any:
        """Return the sum of p v for normalized p."""
        acc = self.nothing_seen()[2]
        for self.tile in self.tiles():  # noqa: B020 - every step reads the current tile
            acc = super().accumulate_output(acc, self.final_weights(m, l), self.load_v())
        return acc

    def final_weights(self, m: Any, l: Any) -> Any:
        """Return the weights of a tile as they enter the product."""
        s = self.hide(self.scores())
        if self.c.normalize == "by_lse":
            return self.cast(self.drop(self.exponential(self.subtract_lse(s))))
        return self.cast_probabilities(self.weights(s, m), l)


class Renormalized(TiledAttention):
    """One forward call in one pass; the output so far is normalized after every tile."""

    def fold(self, tiles: Iterable[Tile]) -> tuple[Any, ...]:
        m, l, acc = self.nothing_seen()
        divisor = l
        for self.tile in tiles:  # every step reads the current tile
            s = self.scores()
            m_new = self.update_max(m, self.tile_max(s))
            p, alpha = self.weights(self.hide(s), m_new), self.rescale_factor(m, m_new)
            l_new = self.accumulate_row_sum(self.rescale_row_sum(l, alpha), p)
            stored = self.nonzero(l_new)
            kept = self.divide(divisor, stored)
            kept = kept if self.c.reference != "maximum" else self.rescale(kept, alpha, "softmax")
            w = self.cast(self.drop(self.divide(p, stored)))
            acc = self.accumulate_output(self.rescale(acc, kept, "output_accumulation"), w, self.load_v())
            m, l, divisor = m_new, l_new, self.xp.where(l_new == 0, 0.0, stored)
        return m, l, acc


def steps_of(contract: Contract, order: Order) -> type[TiledAttention]:
    """Return the plain kernel that executes a contract: one pass, or two if weights need the whole row sum."""
    if contract.normalize == "every_tile":
        return Renormalized
    tiled = contract.normalize == "before_product" and order.kv_tile is not None
    return TwoPasses if tiled or contract.normalize == "by_lse" else TiledAttention

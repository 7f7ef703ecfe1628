"""Dropout under any arithmetic: which weights meet values, and what is multiplied by 1 / (1 - p).

Each step is a seam: a mutant (``mutants``) is a subclass that overrides a single one. Forward and backward share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.contract.stages import contains
from attn_spec.kernels.frameworks.framework import values_of

from .scores import Scores

#: What a kernel declares that does this: with a mask that it is given, or that it draws.
DROPOUT = ("dropout_keep", "dropout_p")
BY_CHANCE = ("dropout_by_chance", "dropout_seed")


class Dropout(Scores):
    """One call. Weights of a tile are [B, Hq, Sq, tile]."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        keep = options.get("dropout_keep")
        self.dropout_p = options.get("dropout_p") or 0.0
        if keep is None and self.dropout_p:
            keep = self.draw_keep(options.get("dropout_seed"))
        #: bool [B, Hq, Sq, Sk], or None without dropout.
        self.keep: Any = None if keep is None else self.broadcast(values_of(keep))

    def dropout_options(self) -> dict[str, Any]:
        """What makes another call drop the same weights."""
        return {"dropout_keep": self.keep, "dropout_p": self.dropout_p}

    def draw_keep(self, seed: int | None) -> np.ndarray:
        """A mask by chance, which a backward pass draws again from the same seed."""
        return self.random_numbers(seed, *self.q.shape[:3], self.Sk) >= self.dropout_p

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        """Independent numbers, uniform from 0 up to 1; without a seed, others in each call."""
        return np.random.default_rng(seed).random(shape)

    def keeps(self) -> Any:
        """Which weights of the tile are kept."""
        return self.array(self.option_tile(self.keep, self.tile.cols) != 0)

    def share_kept(self, stage: str = "softmax") -> Any:
        """1 - p, as the kernel holds it."""
        p = self.constant(self.dropout_p, stage=stage) if self.dropout_p else 0.0
        return self.round(1 - p, stage)

    def keep_factor(self, stage: str = "softmax") -> Any:
        """1 / (1 - p), as the kernel holds it."""
        return self.round(1 / self.share_kept(stage), stage)

    @property
    def multiplied(self) -> str:
        """What 1 / (1 - p) multiplies: values whose product needs no rounding, probabilities that are normalized."""
        possible = {
            "values": contains(self.c.format("multiplicands"), self.c.format("softmax")),
            "probabilities": self.c.normalize == "before_product",
        }
        return self.order.dropout_on if possible.get(self.order.dropout_on, True) else "weights"

    def drop(self, p: Any) -> Any:
        """The weights of a tile as they meet values, before their cast."""
        if self.keep is None:
            return p
        if self.multiplied == "probabilities":
            p = self.raised(self.convert(p, "probabilities", "softmax"), "probabilities", "probabilities")
        return self.xp.where(self.keeps(), self.raised(p, "weights"), 0.0)

    def raises(self, *what: str) -> bool:
        """Whether one of these is what 1 / (1 - p) multiplies, see ``Order.dropout_on``."""
        return self.keep is not None and self.multiplied in what

    def raised(self, x: Any, what: str, stage: str = "softmax") -> Any:
        """x, times 1 / (1 - p) if that is what the kernel multiplies; one that does so to gradients does to outputs."""
        multiplied = self.raises(what, "gradients") if what == "output" else self.raises(what)
        return self.times(x, self.keep_factor(stage), stage) if multiplied else x

    def drop_gradient(self, dP: Any) -> Any:
        """The gradient of the weights of a tile from that of what values met."""
        if self.keep is None:
            return dP
        if not self.raises("values", "gradients"):
            dP = self.times(dP, self.keep_factor(), "weight_gradients")
        return self.xp.where(self.keeps(), dP, 0.0)

    def shrunk(self, delta: Any) -> Any:
        """(1 - p) delta, where 1 / (1 - p) is kept for the end; delta may be that of dL alone."""
        late = self.raises("gradients")
        return self.times(delta, self.share_kept("score_accumulation"), "score_accumulation") if late else delta

    def last_factor(self, rest: Any) -> Any:
        """What the scale left to multiply gradients with, together with 1 / (1 - p) where that is kept for the end."""
        stage = "score_accumulation"
        return self.times(self.keep_factor(stage), rest, stage) if self.raises("gradients") else rest

    def finish_dv(self, dv: Any) -> Any:
        """dV from the sums over queries, which weights may have been multiplied for."""
        multiplied = self.raises("values", "output", "gradients")
        return self.times(dv, self.keep_factor(), "softmax") if multiplied else dv

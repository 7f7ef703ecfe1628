"""Dropout under any arithmetic: which weights multiply values, and what 1 / (1 - p) multiplies.

Each step is a seam: a mutant (``reports.proof.zoo``) is a subclass that overrides one step. Forward and backward share
all steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.contract.stages import contains
from attn_spec.kernels.frameworks.framework import values_of

from .scores import Scores

#: Options and abilities that a kernel with these steps declares: for a given mask, and for a drawn one.
DROPOUT = ("dropout_keep", "dropout_p")
BY_CHANCE = ("dropout_by_chance", "dropout_seed")


class Dropout(Scores):
    """The dropout of one call. Weights of a tile are [B, Hq, Sq, tile]."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        keep = options.get("dropout_keep")
        self.dropout_p = options.get("dropout_p") or 0.0
        if keep is None and self.dropout_p:
            keep = self.draw_keep(options.get("dropout_seed"))
        #: Keep mask, bool [B, Hq, Sq, Sk], or None without dropout.
        self.keep: Any = None if keep is None else self.broadcast(values_of(keep))

    def dropout_options(self) -> dict[str, Any]:
        """Return the options by which another call multiplies weights by the same factors."""
        found = {"dropout_keep": self.keep, "dropout_p": self.dropout_p}
        return found | {name: x for name, x in self.given_descales.items() if name == "v_descale"}

    def draw_keep(self, seed: int | None) -> np.ndarray:
        """Return a random keep mask, which a backward pass draws again from the same seed."""
        return self.random_numbers(seed, *self.q.shape[:3], self.Sk) >= self.dropout_p

    def random_numbers(self, seed: int | None, *shape: int) -> np.ndarray:
        """Return independent uniform numbers from [0, 1); without a seed, each call returns other numbers."""
        return np.random.default_rng(seed).random(shape)

    def keeps(self) -> Any:
        """Return which weights of the tile are kept."""
        return self.array(self.option_tile(self.keep, self.tile.cols) != 0)

    def share_kept(self, stage: str = "softmax") -> Any:
        """Return 1 - p as the kernel holds it."""
        p = self.constant(self.dropout_p, stage=stage) if self.dropout_p else 0.0
        return self.round(1 - p, stage)

    def keep_factor(self, stage: str = "softmax") -> Any:
        """Return 1 / (1 - p) as the kernel holds it."""
        return self.round(1 / self.share_kept(stage), stage)

    @property
    def multiplied(self) -> str:
        """Tensor that 1 / (1 - p) multiplies: the order's choice if it is possible, else the "weights".

        "values" needs a product that no rounding changes, "probabilities" needs weights normalized before p.v, which no
        scale multiplies.
        """
        possible = {
            "values": contains(self.c.format("multiplicands"), self.c.format("softmax")),
            "probabilities": self.c.normalize == "before_product" and self.c.probability_scale == 1,
        }
        return self.order.dropout_on if possible.get(self.order.dropout_on, True) else "weights"

    def drop(self, p: Any) -> Any:
        """Return the weights of a tile as they multiply values, before their cast."""
        p = self.descaled_weights(p)
        if self.keep is None:
            return p
        if self.multiplied == "probabilities":
            p = self.raised(self.convert(p, "probabilities", "softmax"), "probabilities", "probabilities")
        return self.xp.where(self.keeps(), self.raised(p, "weights"), 0.0)

    @property
    def changes_weights(self) -> bool:
        """True if weights are not what the row sum adds when they multiply values."""
        return self.keep is not None or self.value_descale_on == "probabilities"

    def raises(self, *what: str) -> bool:
        """Return whether 1 / (1 - p) multiplies one of these tensors, see ``Order.dropout_on``."""
        return self.keep is not None and self.multiplied in what

    def raised(self, x: Any, what: str, stage: str = "softmax") -> Any:
        """Return x, times 1 / (1 - p) if the kernel multiplies this tensor; "gradients" includes the output."""
        multiplied = self.raises(what, "gradients") if what == "output" else self.raises(what)
        return self.times(x, self.keep_factor(stage), stage) if multiplied else x

    def drop_gradient(self, dP: Any) -> Any:
        """Return the gradient of a tile's weights before dropout, from the gradient of the dropped weights."""
        dP = self.descaled_weight_gradient(dP)
        if self.keep is None:
            return dP
        if not self.raises("values", "gradients"):
            dP = self.times(dP, self.keep_factor(), "weight_gradients")
        return self.xp.where(self.keeps(), dP, 0.0)

    def shrunk(self, delta: Any) -> Any:
        """Return (1 - p) delta if 1 / (1 - p) is multiplied at the end, else delta; ``delta`` may be dL."""
        late = self.raises("gradients")
        return self.times(delta, self.share_kept("score_accumulation"), "score_accumulation") if late else delta

    def last_factor(self, rest: Any) -> Any:
        """Return the rest of the scale for gradients, times 1 / (1 - p) if the kernel multiplies by that at the end."""
        stage = "score_accumulation"
        return self.times(self.keep_factor(stage), rest, stage) if self.raises("gradients") else rest

    def finish_dv(self, dv: Any) -> Any:
        """Return dV from the sums over queries, times 1 / (1 - p) unless it multiplied the weights in these sums."""
        multiplied = self.raises("values", "output", "gradients")
        dv = self.times(dv, self.keep_factor(), "softmax") if multiplied else dv
        return self.descaled_value_gradient(dv)

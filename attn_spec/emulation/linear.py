"""Linear attention under any arithmetic: weights a_i.b_j over their sum, where a and b are features of q and k.

The steps are those of ``forward`` and ``backward`` without exponentials: nothing is subtracted or rescaled. In
:class:`StateAttention`, rows that see all keys of a tile use the tile's state sum_j b_j v_j^T in place of its scores.
Sources: Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236), section 3.2; for tiles, Hua et al. (arXiv
2202.10447), section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .backward import TiledGradients
from .forward import TiledAttention
from .tile import Tile

#: Options and abilities that a kernel with these steps declares.
SUPPORTS = (
    *("feature_map", "feature_epsilon", "causal", "causal_alignment", "window", "mask"),
    *("gqa", "dv", "cross", "empty", "lse"),
)


class Linear(TiledAttention):
    """Steps that both passes share."""

    def __init__(self, *arguments: Any, epsilon: float = 0.0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.epsilon = epsilon

    def change_base(self, s: Any) -> Any:
        return s

    def weights(self, s: Any, m: Any) -> Any:  # noqa: ARG002 - nothing is subtracted
        """Return the scores, and 0 where masked."""
        return self.convert(self.xp.where(self.tile.visible, s, 0.0), "softmax", "stored_scores")


class LinearAttention(Linear):
    """One call of the forward pass."""

    def fold(self, tiles: Iterable[Tile]) -> tuple[Any, ...]:
        """Fold as softmax attention does; the row sum of rows that see a key includes epsilon."""
        self.some: Any = False
        m, l, acc = super().fold(tiles)
        return m, self.xp.where(self.some, self.with_epsilon(l), 0.0), acc

    def with_epsilon(self, l: Any) -> Any:
        return self.round(
            self.convert(l, "softmax", "row_sum") + self.constant(self.epsilon, stage="softmax"), "softmax"
        )

    def update_max(self, m: Any, tile_max: Any) -> Any:  # noqa: ARG002
        self.some = self.some | self.tile.visible.any(axis=-1, keepdims=True)
        return self.xp.zeros_like(m)

    def rescale_factor(self, m: Any, m_new: Any) -> Any:  # noqa: ARG002
        return 1.0

    def rescale(self, x: Any, alpha: Any, stage: str) -> Any:  # noqa: ARG002
        return x


class StateAttention(LinearAttention):
    """Linear attention in which a tile acts as a state on queries that see all its keys."""

    def accumulate_row_sum(self, l: Any, p: Any) -> Any:
        ones = self.xp.ones_like(self.load_v()[..., :1])
        return self.xp.where(self.whole(), self.of_state(l, ones, "row_sum"), super().accumulate_row_sum(l, p))

    def accumulate_output(self, acc: Any, w: Any, v: Any) -> Any:
        of_state = self.of_state(acc, self.enter(v), "output_accumulation")
        return self.xp.where(self.whole(), of_state, super().accumulate_output(acc, w, v))

    def whole(self) -> Any:
        """Return which rows see all keys of the tile, [.., Sq, 1]."""
        return self.tile.visible.all(axis=-1, keepdims=True)

    def state(self, values: Any, stage: str) -> Any:
        """Return sum_j b_j v_j^T of the tile, [B, Hq, D, ..]."""
        b = self.enter(self.load_k(), "operands")
        total = self.add_products(lambda j: (b[..., j, :, None], values[..., j, None, :]), values.shape[2], stage)
        return self.convert(total, "partial_outputs", stage)

    def of_state(self, start: Any, values: Any, stage: str) -> Any:
        """Return start + a times the state."""
        a, state = self.enter(self.q, "operands"), self.enter(self.state(values, stage), "partial_outputs")
        return self.add_products(lambda d: (a[..., d, None], state[:, :, None, d]), a.shape[-1], stage, start)


class LinearGradients(Linear, TiledGradients):
    """One call of the backward pass; 1 / N is exp(-L)."""

    def inverse(self) -> Any:
        """Return 1 / N of each row, 0 where the row sees no key, [.., Sq, 1]."""
        seen = self.xp.isfinite(self.L)
        x = -self.xp.where(seen, self.L, 0.0)
        if self.is_base2:
            x = self.times(x, self.constant(math.log2(math.e), stage="softmax"), "softmax")
        return self.xp.where(seen, self.exponential(x), 0.0)

    def recompute_weights(self) -> Any:
        return self.round(self.weights(self.scores(), None) * self.inverse(), "softmax")

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:  # noqa: ARG002
        """Return dw = (dP - delta) / N."""
        X = self.round(dP - delta, "score_accumulation")
        return self.xp.where(self.tile.visible, self.round(X * self.inverse(), "stored_scores"), 0.0)


class QuotientGradients(LinearGradients):
    """Steps that differentiate w / N as it is written: dw = dP / N - sum_j dP_j (w_j / N) / N.

    With a contract whose delta is from the output, the steps are those of :class:`LinearGradients`. Source: PyTorch,
    torch/csrc/autograd/FunctionsManual.cpp, div_tensor_other_grad.
    """

    def term_of_delta(self, p: Any, dP: Any) -> Any:
        """Return dP * (P / N), of which the sum is delta / N."""
        return self.round(dP * self.round(p * self.inverse(), "softmax"), "stored_scores")

    def add_lse_cotangent(self, delta: Any) -> Any:
        if self.dL is None or self.c.delta != "probabilities":
            return super().add_lse_cotangent(delta)
        return self.round(delta - self.round(self.dL * self.inverse(), "softmax"), "score_accumulation")

    def score_gradient(self, p: Any, dP: Any, delta: Any) -> Any:
        if self.c.delta != "probabilities":
            return super().score_gradient(p, dP, delta)
        first = self.round(dP * self.inverse(), "softmax")
        return self.xp.where(self.tile.visible, self.round(first - delta, "stored_scores"), 0.0)

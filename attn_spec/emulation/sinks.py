"""Attention with sinks by a factor: the output without sinks, times 1 / (1 + exp(z - L)), as a merge with (0, z)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .forward import TiledAttention


class SinkFactor(TiledAttention):
    """One forward call whose output waits, normalized, for the factor of the sink."""

    def __call__(self) -> tuple[Any, Any]:
        """Return output [B, Hq, Sq, Dv] and log-sum-exp [B, Hq, Sq]."""
        if self.sinks is None:
            return super().__call__()
        with np.errstate(all="ignore"):
            z, sinks, self.sinks = self.moved_sink(), self.sinks, None
            m, l, acc = self.fold(self.tiles())
            acc = self.convert(self.unscaled(acc), "softmax", "output_accumulation")
            value = self.divide(acc, self.nonzero(l))
            value = self.convert(value, "partial_outputs", "softmax")
            L = self.natural_lse(m, l)[..., None]
            out = self.round(value * self.factor_beside(z, L), "softmax")
            lse = self.moved_back(self.joined_lse(z, L)[..., 0])
            out, self.sinks = self.stored_output(self.raised(out, "output"), "softmax"), sinks
            return self.handed_over(out, lse)

    def handed_over(self, out: Any, lse: Any) -> tuple[Any, Any]:
        """Return output and log-sum-exp as the caller gets them."""
        return out, lse

    def factor_beside(self, z: Any, L: Any) -> Any:
        """Return 1 / (1 + exp(z - L)), the share of the keys in the row sum."""
        gap = self.change_base(self.round(self.xp.where(z == -np.inf, -np.inf, z - L), "softmax"))
        return self.round(1 / self.round(1 + self.exponential(gap), "softmax"), "softmax")

    def joined_lse(self, z: Any, L: Any) -> Any:
        """Return log(exp(L) + exp(z)), by the larger of both."""
        z, L = self.xp.broadcast_arrays(z, L)
        m = self.xp.maximum(z, L)
        gap = self.xp.where(m == -np.inf, 0.0, -abs(z - L))
        share = self.exponential(self.change_base(self.round(gap, "softmax")))
        log = self.logarithm(self.round(1 + share, "softmax"))
        log = self.times(log, self.ln2, "softmax") if self.is_base2 else log
        found = self.xp.where(m == -np.inf, m, self.round(m + log, "softmax"))
        return self.convert(found, "lse", "softmax")

"""Layers that multiply, add and store in other orders."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.layers import Layer
from attn_spec.emulation.operands import Execution, Number


class HeadByHead(Layer):
    """The products of heads with W_O are stored, then added up."""

    def output_of_all(self, o: Number) -> Number:
        return self.output_one_by_one(o)


class FromTheBias(Execution):
    """Sums of a projection begin with its bias."""

    factors: tuple[Any, Any]

    def product(self, x: Number, y: Number) -> Number:
        self.factors = self.steps.enter(x.values, x.source), self.steps.enter(y.values, y.source)
        return super().product(x, y)

    def shifted(self, y: Number, b: Number, x: Number) -> Number:
        (rows, columns), length = self.factors, x.values.shape[-1]
        start = self.steps.xp.broadcast_to(b.values, y.values.shape)
        return self.stored(
            self.steps.add_products(
                lambda t: (rows[..., t, None], columns[..., None, t, :]), length, "score_accumulation", start
            )
        )


class BiasFirst(Layer):
    """Sums of q, k and v begin with the bias."""

    execution = FromTheBias

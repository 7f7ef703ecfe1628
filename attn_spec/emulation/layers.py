"""A layer under any arithmetic: projections of q, k and v, attention of every head, and the projection of its outputs.

A projection rounds as operands of a score do. The output projection is made in one of two ways: one product of all
heads' outputs side by side, or a product for each head and a sum of these products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of

from .operands import Number, Operands, finite, unrounded


class Layer(Operands):
    """One call of a layer: q and k, the projected operands and values, and the projection of the heads' outputs."""

    made_values: np.ndarray | None = None

    def values(self, v: Any) -> np.ndarray:
        """Return v' [B, Hq, Sk, U] as it is stored, which both passes read."""
        if self.made_values is None:
            self.v = self.given(np.repeat(values_of(v), self.group, axis=1))
            self.made_values = self.stored(self.score.values.value(self.execution(self.steps), self.v, self.p))
        return self.made_values

    def joined(self, o: Any) -> np.ndarray:
        """Return the output [B, 1, Sq, O] from the outputs of heads."""
        heads, bias = self.of_heads(o), self.p.get("output_projection_bias")
        total = self.output_one_by_one(heads) if self.steps.order.sums == "pairwise" else self.output_of_all(heads)
        if bias is not None:
            A = self.execution(self.steps)
            total = A.shifted(A.as_operand(total, "output"), bias, heads)
        return self.steps.convert(total.values, "output", total.source)

    def output_one_by_one(self, o: Number) -> Number:
        """Return the sum of W_O o over heads, [B, 1, Sq, O], each a product of its own."""
        parts = self.output_of_each(o).values
        return self.execution(self.steps).summed(self.steps.xp.moveaxis(parts, 1, 0)[:, :, None], 0)

    def output_of_each(self, o: Number) -> Number:
        """Return W_O o of each head, [B, Hq, Sq, O]."""
        assert self.score.outputs is not None
        return self.score.outputs.value(self.execution(self.steps), o, self.p)

    def output_of_all(self, o: Number) -> Number:
        """Return the sum of W_O o over heads as one product, [B, 1, Sq, O]."""
        heads, weight = o.values.shape[1], self.p["output_projection"]
        whole = self.steps.xp.broadcast_to(weight.values, (len(weight.values), heads, *weight.values.shape[2:]))
        assert self.score.outputs is not None
        p = {"output_projection": replace(weight, values=side_by_side(whole))}
        return self.score.outputs.value(self.execution(self.steps), replace(o, values=side_by_side(o.values)), p)

    def of_heads(self, o: Any) -> Number:
        """Return the outputs of heads as the projection reads them."""
        return Number(self.steps.as_array(o), "operands", self.steps)

    @np.errstate(all="ignore")
    def layer_backward(self, run: Callable[..., Any], attend: Callable[..., Any], v: Any, lse: Any, dO: Any) -> Any:
        """Return all gradients by input; ``attend`` makes the forward call of the heads again."""
        outputs = self.score.outputs
        assert outputs is not None
        (q, k), v_, A = self(), self.values(v), self.execution(self.steps)
        c = heads_contract(self.steps.c)
        o = self.of_heads(attend(c, (q, k, v_), self.options)[0])
        of_o, by_outputs = outputs.pull(A, o, self.p, of_output := self.cotangent(dO))
        call = run(unrounded(c), (q, k, v_, o.values, lse), self.options, self.stored_cotangent(of_o))
        found, dv = self.pulled(call, q, k)
        found["q"] = self.sum_over_group(found["q"])
        of_v = Number(self.stored_gradient(dv), "operands", self.steps)
        of_v, by_values = self.score.values.pull(A, finite(self.v), self.p, of_v)
        found["v"] = self.sum_over_group(of_v.values)
        if "output_projection_bias" in self.p:
            by_values["output_projection_bias"] = A.transposed(A.total(A.transposed(of_output)))
        found |= {name: self.over_heads(name, of.values) for name, of in (by_values | by_outputs).items()}
        return self.finished(found)

    def cotangent(self, dO: Any) -> Number:
        """Return the cotangent of the layer's output."""
        return replace(self.given(values_of(dO)), source="output")

    def stored_cotangent(self, of_o: Number) -> np.ndarray:
        """Return the cotangent of each head's output, as it is stored."""
        return self.steps.convert(of_o.values, "operands", of_o.source)


def side_by_side(per_head: np.ndarray) -> np.ndarray:
    """Return [B, H, rows, columns] as [B, 1, rows, H columns]."""
    B, H, rows, columns = per_head.shape
    return per_head.swapaxes(1, 2).reshape(B, 1, rows, H * columns)


def heads_contract(c: Any) -> Any:
    """Return the contract of heads, whose outputs are operands of the projection."""
    return replace(c, output=c.operands)

"""Layers that multiply, add and store in other orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.emulation.layers import Layer
from attn_spec.emulation.operands import Execution, Number


class HeadByHead(Layer):
    """The products of heads with W_O are added to b_O, if there is one, and each sum is stored."""

    def joined(self, o: Any) -> Any:
        parts, bias = self.output_of_each(self.of_heads(o)), self.p.get("output_projection_bias")
        first, *others = [replace(parts, values=parts.values[:, h, None]) for h in range(parts.values.shape[1])]
        if bias is not None:
            first = self.execution(self.steps).loaded(bias) + first
        total = sum(others, start=first)
        return self.steps.convert(total.values, "output", total.source)


class FromTheBias(Execution):
    """Sums of a projection of q, k or v begin with its bias."""

    factors: tuple[Any, Any] | None = None

    def product(self, x: Number, y: Number) -> Number:
        self.factors = self.steps.enter(x.values, x.source), self.steps.enter(y.values, y.source)
        return super().product(x, y)

    def shifted(self, y: Number, b: Number, x: Number) -> Number:
        if self.factors is None:  # the outputs of heads were multiplied before
            return super().shifted(y, b, x)
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


class Remembered(Execution):
    """Products whose factors are known to those who add them up."""

    def product(self, x: Number, y: Number) -> Number:
        found = super().product(x, y)
        factors = self.steps.enter(x.values, x.source), self.steps.enter(y.values, y.source)
        # The array is stored with its factors, so that no other array gets its id.
        vars(self.steps).setdefault("factors", {})[id(found.values)] = (found.values, *factors)
        return found


class InOneSum(Layer):
    """Gradients are one sum each, of the products of all rows and heads, which is stored after each head."""

    execution = Remembered

    def sum_over_group(self, x: Any) -> Any:
        return self.one_sum(x, apart=False)

    def over_heads(self, name: str, x: Any) -> Any:
        return self.one_sum(x, apart=self.p[name].values.shape[1] > 1)

    def one_sum(self, x: Any, *, apart: bool) -> Any:
        """Sum ``x`` [B, Hq, ..] over heads, one after another, unless they are ``apart``: then keep the heads."""
        steps, total, heads = self.steps, 0.0, range(x.shape[1])
        for chosen in [slice(None)] if apart else [slice(h, h + 1) for h in heads]:
            total = steps.convert(self.grown(total, x, chosen), "partial_gradients", "gradient_accumulation")
        return total

    def grown(self, total: Any, x: Any, heads: slice) -> Any:
        """Return the total plus the share of some heads."""
        if (found := vars(self.steps).get("factors", {}).get(id(x))) is None:
            return self.steps.add(total, x[:, heads], "gradient_accumulation")
        _, a, b = found
        a, b = (part[:, heads if part.shape[1] > 1 else slice(None)] for part in (a, b))
        count, stage = a.shape[-1], "gradient_accumulation"
        return self.steps.add_products(lambda t: (a[..., t, None], b[..., None, t, :]), count, stage, total)

"""Descales under any arithmetic: what multiplies scores, and weights, outputs or values.

Each step is a seam: a mutant (``reports.proof.zoo``) is a subclass that overrides one step. Forward and backward share
the steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.attention.terms import DESCALES
from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.options import FACTORS

from .arithmetic import Order
from .matrix_products import MatrixProducts
from .tile import Tile

#: Options that multiply stored numbers: those of q, k and v, and of the output.
SCALES = (*FACTORS, "o_scale")


class Descales(MatrixProducts):
    """The descales of one call, [B, Hkv, Sk or 1, 1], and the tensors that they multiply."""

    #: The current tile.
    tile: Tile
    #: Queries, [B, Hq, Sq, D].
    q: Any

    def __init__(self, contract: ResolvedContract, order: Order, **options: Any) -> None:
        super().__init__(contract, order)
        #: Descales by option.
        self.given_descales: dict[str, np.ndarray] = {
            name: np.asarray(values_of(options[name]), dtype=np.float64)
            for name in SCALES
            if options.get(name) is not None
        }

    # Loading

    def descales(self, name: str) -> Any:
        """Return a descale for each query head and key of the tile, [B, Hq, 1, tile], or broadcast."""
        x = self.per_query_head(self.of_keys_of_tile(self.read_descale(name)))
        return self.held_descale(name, x.swapaxes(2, 3))

    def read_descale(self, name: str) -> np.ndarray:
        """Return the numbers of a descale as they are given, [B, Hkv, Sk, 1], or broadcast."""
        return self.given_descales[name]

    def per_query_head(self, x: np.ndarray) -> np.ndarray:
        """Return numbers of kv heads, or one of all heads, as numbers of query heads."""
        return repeated(x, self.q.shape[1])

    def of_keys_of_tile(self, x: np.ndarray) -> np.ndarray:
        """Return the numbers [B, Hkv, tile, 1] of the keys of the tile, or broadcast; those past the end are unused."""
        if x.shape[2] == 0:  # a sink alone
            return np.ones((*x.shape[:2], len(self.tile.cols), 1))
        return x[:, :, np.minimum(self.tile.cols, x.shape[2] - 1)] if x.shape[2] > 1 else x

    def held_descale(self, name: str, x: np.ndarray) -> Any:
        """Return a descale as the kernel holds it; a power of 2 is a number of every format."""
        exact = bool((np.frexp(x)[0] == 0.5).all())
        return self.array(x) if exact else self.round(self.array(x), self.descale_stage(name))

    def descale_stage(self, name: str) -> str:
        """Return the stage in whose format a descale is loaded."""
        return "softmax" if self.value_descale_on != "operands" and name == "v_descale" else "score_accumulation"

    # Operands

    @property
    def operand_source(self) -> str:
        """Stage that rounded q and k last, before a scale multiplies them."""
        return "operands" if self.descales_operands else "input"

    @property
    def descales_operands(self) -> bool:
        """True if descales multiply q or k before their product."""
        return self.c.descale_on == "operands" and any(name in DESCALES for name in self.given_descales)

    def descaled_operands(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Return q, and k of the tile, times their descales if the kernel multiplies operands by them."""
        if not self.descales_operands:
            return q, k
        found = []
        for name, x in zip(DESCALES, (q, k), strict=True):
            d = self.descales(name).swapaxes(2, 3) if name in self.given_descales else 1.0
            product = self.round(x * d, "score_accumulation")
            found.append(self.convert(product, "operands", "score_accumulation"))
        return found[0], found[1]

    # Values

    @property
    def value_descale_on(self) -> str:
        """Tensor that a descale of values multiplies, see the contract; empty if there is none."""
        if "v_descale" not in self.given_descales:
            return ""
        on, is_one = self.c.value_descale_on, self.given_descales["v_descale"].shape[2] == 1
        return "probabilities" if on == "output" and not is_one else on

    def descaled_weights(self, p: Any) -> Any:
        """Return the weights of a tile, times the descales of the values if the kernel multiplies weights by them."""
        return self.times(p, self.descales("v_descale"), "softmax") if self.value_descale_on == "probabilities" else p

    def descaled_values(self, v: Any) -> tuple[Any, str]:
        """Return the values of a tile [B, Hq, tile, ..], and the stage that rounded them last."""
        if self.value_descale_on != "operands":
            return v, "input"
        product = self.round(v * self.descales("v_descale").swapaxes(2, 3), "score_accumulation")
        return self.convert(product, "operands", "score_accumulation"), "operands"

    def descaled_output(self, o: Any) -> Any:
        """Return the normalized output, times the descale of values if the kernel multiplies the output by it."""
        if self.value_descale_on != "output":
            return o
        d = self.held_descale("v_descale", self.per_query_head(self.read_descale("v_descale")))
        return self.times(o, d, "softmax")

    def stored_output(self, o: Any, source: str) -> Any:
        """Return the normalized output as it is stored: descaled, divided by its own scale, and rounded once more.

        ``source`` is the stage that rounded it last.
        """
        scaled = self.scaled_output(self.descaled_output(o))
        return self.convert(self.held_output(scaled), "output", source if scaled is o else "softmax")

    def scaled_output(self, o: Any) -> Any:
        """Return an output divided by its scale, or times the reciprocal of that; itself without a scale."""
        if "o_scale" not in self.given_descales:
            return o
        d = self.output_scale()
        if self.order.divides:
            return self.round(o / d, "softmax")
        return self.times(o, self.constant(1 / d, stage="softmax"), "softmax")

    def output_scale(self) -> float:
        """Return the scale of the output."""
        return float(self.given_descales["o_scale"].reshape(-1)[0])

    def held_output(self, o: Any) -> Any:
        """Return an output before its cast, within the numbers of its dtype if the cast saturates."""
        if self.c.output_overflow != "saturates":
            return o
        largest = self.c.format("output").largest
        return self.xp.where(o > largest, largest, self.xp.where(o < -largest, -largest, o))

    def descaled_value_gradient(self, dv: Any) -> Any:
        """Return dV [B, Hkv, Sk, Dv] from its sums over queries, times the descale if no weight had that factor."""
        if self.value_descale_on in ("", "probabilities"):
            return dv
        of_heads = repeated(self.read_descale("v_descale"), dv.shape[1])
        return self.times(dv, self.held_descale("v_descale", of_heads), "softmax")

    def descaled_weight_gradient(self, dP: Any) -> Any:
        """Return the gradient of a tile's weights from the products of cotangents and values as these were read."""
        if self.value_descale_on in ("", "operands"):
            return dP
        return self.times(dP, self.descales("v_descale"), "weight_gradients")


def repeated(x: np.ndarray, heads: int) -> np.ndarray:
    """Return numbers of kv heads, or one of all heads, for so many heads, each kv head for heads beside one another."""
    return x if x.shape[1] == 1 else np.repeat(x, heads // x.shape[1], axis=1)

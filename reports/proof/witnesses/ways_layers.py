"""Ways of computing a layer in which one rounding decides."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.emulation.passes import TwoPasses

from ..adversary.cases import Way
from ..adversary.layer_steps import BiasFirst, HeadByHead, InOneSum
from ..adversary.problems import NARROW, small_layer

_KEPT: dict[str, Any] = {"float16_subnormals": "kept"}
#: A matrix unit that sums any number of products with one truncation.
_UNIT: dict[str, Any] = {
    "multiplicands": NARROW,
    "matrix_rounding": "toward_zero",
    "matrix_block": 128,
    "matrix_extra_bits": 10,
}
_FLUSHED: dict[str, Any] = {"float16_subnormals": "flushed"}
#: One head of one number, one query and one key; two of such heads; and more of their keys and rows.
_ONE: dict[str, Any] = {"heads": 1, "n": 1, "Sq": 1, "width": 1, "head_width": 1}


def _way(name: str, contract: dict[str, Any] = _KEPT, **fields: Any) -> Way:
    return Way(name=name, contract=contract, made_by=small_layer, **fields)


LAYER_WAYS = (
    _way("layer of one head, one key", _KEPT, problem=_ONE | {"seed": 1}),
    _way(
        "layer of one head, two keys, tiny values, tiny biases, tiny cotangents, delta of P",
        _KEPT | {"delta": "probabilities"},
        problem=_ONE | {"n": 2, "biases": 2.0**-15, "values": 2.0**-18},
        cotangent=2.0**-12,
        layer=HeadByHead,
    ),
    _way(
        "layer of one head, two keys, tiny inputs, biases",
        _KEPT,
        problem=_ONE | {"n": 2, "seed": 4, "biases": 1.0, "inputs": 2.0**-15},
    ),
    _way(
        "layer of one head, one key, large outputs, large cotangents",
        _KEPT,
        problem=_ONE | {"seed": 3, "outputs": 8.0},
        cotangent=8.0,
    ),
    _way(
        "layer of two heads, three keys, small values, rounded, multiplicands and output",
        _KEPT | {"multiplicands": NARROW, "output": NARROW},
        problem={"seed": 1, "form": "float64", "values": 0.125},
    ),
    _way(
        "layer of one head, two keys, tiny queries, tiny keys, biases, large cotangents",
        _KEPT,
        problem=_ONE | {"n": 2, "Sq": 2, "seed": 4, "biases": 1.0, "queries": 2.0**-18, "keys": 2.0**-18},
        cotangent=8.0,
        layer=HeadByHead,
    ),
    _way(
        "layer of two heads, one key, tiny keys, biases, large cotangents, head by head",
        _KEPT,
        problem=_ONE | {"heads": 2, "seed": 4, "biases": 1.0, "keys": 2.0**-18},
        cotangent=8.0,
        layer=HeadByHead,
    ),
    _way(
        "layer of three heads, one key, small keys, biases, dL, bias first",
        _KEPT,
        problem=_ONE | {"heads": 3, "shared": True, "seed": 5, "keys": 2.0**-6, "biases": 1.0},
        lse_cotangent=1.0,
        layer=BiasFirst,
    ),
    _way(
        "layer of one head, one key, tiny queries, large keys, by LSE, rounded",
        _KEPT | {"normalize": "by_lse"},
        problem=_ONE | {"seed": 1, "form": "float64", "inputs": 2.0**-15, "queries": 2.0**-9, "keys": 8.0},
        steps=TwoPasses,
    ),
    _way(
        "layer of two heads, three keys, tiny inputs, small queries, large cotangents, flushed",
        _FLUSHED,
        problem={"seed": 5, "inputs": 2.0**-9, "queries": 0.125},
        cotangent=8.0,
    ),
    _way(
        "layer of two heads, three keys, biases, large cotangents, bias first, flushed",
        _FLUSHED,
        problem={"seed": 1, "inputs": 0.125, "queries": 2.0**-9, "outputs": 8.0, "biases": 1.0},
        cotangent=8.0,
        layer=BiasFirst,
    ),
    _way(
        "layer of one head, one key, large values, large cotangents",
        _KEPT,
        problem=_ONE | {"seed": 2, "values": 8.0},
        cotangent=8.0,
    ),
    _way(
        "layer of two heads, three keys, dL, gradient accumulation and partial gradients",
        _KEPT | {"gradient_accumulation": NARROW, "partial_gradients": NARROW},
        problem={"seed": 2},
        lse_cotangent=1.0,
    ),
    _way(
        "layer of two heads, three keys, biases, tiny cotangents, bias first, rounded",
        _KEPT,
        problem={"seed": 5, "form": "float64", "inputs": 0.125, "biases": 1.0},
        cotangent=2.0**-12,
        layer=BiasFirst,
    ),
    _way(
        "layer of four heads, one key, tiny cotangents",
        _KEPT,
        problem=_ONE | {"heads": 4, "seed": 5},
        cotangent=2.0**-12,
    ),
    _way(
        "layer of one head, three keys, tiny keys, tiny cotangents",
        _KEPT,
        problem=_ONE | {"n": 3, "seed": 4, "keys": 2.0**-9},
        cotangent=2.0**-12,
    ),
    _way(
        "layer of one head, one key, wide heads, delta of P",
        _KEPT | {"delta": "probabilities"},
        problem=_ONE | {"head_width": 3},
    ),
    _way(
        "layer of two heads, three keys, tiny keys, normalized weights, flushed",
        _FLUSHED | {"normalize": "before_product"},
        problem={"seed": 2, "keys": 2.0**-15},
        steps=TwoPasses,
    ),
    _way(
        "layer of one head, one key, large inputs, tiny values, delta of P",
        _KEPT | {"delta": "probabilities"},
        problem=_ONE | {"seed": 2, "inputs": 8.0, "values": 2.0**-18},
        layer=HeadByHead,
    ),
    _way(
        "layer of two heads, one key, tiny cotangents, by LSE, bias first, rounded",
        _KEPT | {"normalize": "by_lse"},
        problem=_ONE | {"heads": 2, "form": "float64", "biases": 1.0, "keys": 8.0},
        cotangent=2.0**-15,
        steps=TwoPasses,
        layer=BiasFirst,
    ),
    _way(
        "layer of one head, two keys, tiny keys, rounded, cotangents too",
        _KEPT | {"operands": NARROW, "multiplicands": NARROW},
        problem=_ONE | {"n": 2, "form": "float64", "keys": 2.0**-15},
    ),
    _way(
        "layer of eight heads, two keys, tiny values, small outputs, tiny biases, in one sum, rounded",
        problem=_ONE
        | {"heads": 8, "n": 2, "Sq": 2, "seed": 6, "form": "float64"}
        | {"outputs": 2.0**-9, "values": 2.0**-9, "biases": 2.0**-15},
        layer=InOneSum,
    ),
    _way(
        "layer of one head, two keys, large values, delta of P, rounded, cotangents too",
        _KEPT | {"delta": "probabilities"},
        problem=_ONE | {"n": 2, "Sq": 2, "seed": 4, "form": "float64", "values": 8.0},
    ),
    _way(
        "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too",
        _KEPT | {"operands": NARROW},
        problem=_ONE | {"n": 3, "Sq": 2, "form": "float64", "values": 8.0, "queries": 0.125},
    ),
    _way(
        "layer of five heads, one key, tiny outputs, head by head",
        problem=_ONE | {"heads": 5, "seed": 3, "outputs": 2.0**-17},
        layer=HeadByHead,
    ),
    _way(
        "layer of five heads, one key, large outputs, head by head",
        problem=_ONE | {"heads": 5, "seed": 1, "outputs": 8.0},
        layer=HeadByHead,
    ),
    _way(
        "layer of three heads, one key, large bias of the output, head by head",
        problem=_ONE | {"heads": 3, "seed": 1, "output_projection_bias": np.full((1, 1, 1, 1), 1000.5)},
        layer=HeadByHead,
    ),
    _way(
        "layer of one head, one key, coarse exponentials",
        _KEPT | {"exp_error": 2.0**49},
        problem=_ONE,
    ),
    _way("layer of two wide heads, one key", problem=_ONE | {"heads": 2, "head_width": 3, "seed": 18}),
    _way(
        "layer of sixteen heads, one key, matrix unit, head by head",
        _KEPT | _UNIT,
        problem=_ONE | {"heads": 16, "seed": 32},
        layer=HeadByHead,
    ),
    _way(
        "layer of one head, five queries, biases, tiny cotangents, rounded",
        problem=_ONE | {"Sq": 5, "seed": 10, "biases": 1.0},
    ),
    _way(
        "layer of one head, two queries, biases, cotangents rounded",
        problem=_ONE | {"Sq": 2, "seed": 7, "biases": 1.0},
    ),
    _way(
        "layer of four wide heads, one key, shared, dL alone, in one sum",
        problem=_ONE | {"heads": 4, "head_width": 4, "shared": True, "seed": 2},
        cotangent=0.0,
        lse_cotangent=1.0,
        layer=InOneSum,
    ),
    _way(
        "layer of two wide heads, four keys, large queries, biases, in one sum",
        _KEPT | {"gradient_accumulation": NARROW, "partial_gradients": NARROW},
        problem=_ONE | {"heads": 2, "n": 4, "Sq": 4, "head_width": 4, "seed": 7, "queries": 8.0, "biases": 1.0},
        layer=InOneSum,
    ),
    _way(
        "layer of eight heads, four keys, shared, large queries, in one sum",
        _KEPT | {"gradient_accumulation": NARROW, "partial_gradients": NARROW},
        problem=_ONE | {"heads": 8, "n": 4, "width": 2, "shared": True, "seed": 2, "queries": 8.0},
        layer=InOneSum,
    ),
    _way(
        "layer of two heads, one key, tiny cotangents, in one sum, flushed",
        _FLUSHED,
        problem=_ONE | {"heads": 2, "width": 2, "seed": 9, "queries": 0.125},
        cotangent=2.0**-12,
        layer=InOneSum,
    ),
    _way(
        "layer of one head, two keys, half, wide operands",
        _KEPT | {"operands": "float64", "output": "float64", "gradients": "float64"},
        problem=_ONE | {"n": 2, "seed": 4, "dtype": NARROW, "inputs": 0.125, "values": 8.0, "queries": 2.0**-6},
    ),
    _way(
        "layer of one head, two keys, small queries, large values",
        problem=_ONE | {"n": 2, "Sq": 2, "seed": 8, "queries": 2.0**-6, "values": 8.0},
    ),
    _way(
        "layer of one head, one key, large biases, rounded first, small outputs",
        problem=_ONE | {"seed": 9, "form": "float64", "outputs": 2.0**-15, "biases": 8.0},
        order={"bias_rounded": True},
    ),
    _way(
        "layer of one head, two keys, tiny inputs, tiny biases, rounded first, head by head",
        problem=_ONE
        | {"n": 2, "seed": 7, "form": "float64", "inputs": 2.0**-9, "outputs": 2.0**-15, "biases": 2.0**-17},
        order={"bias_rounded": True},
        layer=HeadByHead,
    ),
    _way(
        "layer of one wide row, one key, small inputs, large biases, bias first",
        problem=_ONE | {"width": 5, "seed": 3, "inputs": 0.125, "biases": 8.0},
        layer=BiasFirst,
    ),
    _way(
        "layer of two wide heads, three keys, biases, rounded, multiplicands and output",
        _KEPT | {"multiplicands": NARROW, "output": NARROW},
        problem=_ONE | {"heads": 2, "n": 3, "head_width": 2, "seed": 1, "form": "float64", "biases": 1.0},
    ),
    _way(
        "layer of one head, two queries, biases, delta of P, rounded, multiplicands and output",
        _KEPT | {"delta": "probabilities", "multiplicands": NARROW, "output": NARROW},
        problem=_ONE | {"Sq": 2, "seed": 4, "form": "float64", "biases": 1.0},
    ),
    _way(
        "layer of one head, two queries, rounded, two pieces",
        _KEPT | {"multiplicand_pieces": 2},
        problem=_ONE | {"Sq": 2, "seed": 6, "form": "float64"},
    ),
    _way(
        "layer of two heads, four keys, tiny values, tiny biases, rounded",
        problem=_ONE | {"heads": 2, "n": 4, "seed": 11, "form": "float64", "values": 2.0**-15, "biases": 2.0**-15},
    ),
)

#: Fields of an attack beside its way: a cotangent that no narrow format holds.
LAYER_ATTACKS: dict[str, dict[str, Any]] = {
    "layer of one head, two keys, tiny keys, rounded, cotangents too": {"cotangent": np.full((1, 1, 1, 1), 4 / 3)},
    "layer of one head, two keys, large values, delta of P, rounded, cotangents too": {
        "cotangent": np.full((1, 1, 2, 1), 4 / 3)
    },
    "layer of one head, three keys, large values, small queries, narrow operands, rounded, cotangents too": {
        "cotangent": np.full((1, 1, 2, 1), 4 / 3)
    },
    "layer of one head, five queries, biases, tiny cotangents, rounded": {
        "cotangent": np.full((1, 1, 5, 1), 2.0**-19 * 4 / 3)
    },
    "layer of one head, two queries, biases, cotangents rounded": {"cotangent": np.full((1, 1, 2, 1), 4 / 3)},
}

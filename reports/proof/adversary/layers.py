"""Ways of computing a layer: its heads apart or together, its biases first or last, its gradients in one sum."""

from __future__ import annotations

from typing import Any

from attn_spec.emulation.backward import DifferentiatedProduct, StoredWeights
from attn_spec.emulation.passes import TwoPasses

from .layer_steps import BiasFirst, HeadByHead, InOneSum
from .problems import small_layer
from .way import Way

_BIASES: dict[str, Any] = {"biases": 1.0}
#: One head, and one or more keys, of one number each.
_ONE: dict[str, Any] = {"heads": 1, "n": 1, "width": 1, "head_width": 1}
_STORED: dict[str, Any] = {
    "backward_weights": "stored",
    "normalize": "before_product",
    "kv_tile": None,
    "delta": "probabilities",
}


def _way(name: str, problem: dict[str, Any], **fields: Any) -> Way:
    return Way(name=name, made_by=small_layer, problem=problem, **fields)


LAYERS = (
    _way("layer", _BIASES),
    _way("layer, dL", _BIASES | {"seed": 2}, lse_cotangent=1.0),
    _way("layer, dL alone, one key", _BIASES | {"n": 1, "seed": 3}, cotangent=0.0, lse_cotangent=1.0),
    _way("layer, one head, one key", _ONE | _BIASES),
    _way("layer, one row", _ONE | {"heads": 2, "n": 2, "Sq": 1}),
    _way(
        "layer, differentiated product",
        _BIASES | {"n": 5},
        contract={"backward_weights": "stored", "kv_tile": None},
        order={"kv_tile": None},
        gradients=DifferentiatedProduct,
    ),
    _way("layer, heads that share keys", _BIASES | {"heads": 3, "shared": True}, layer=InOneSum),
    _way("layer, gradients in one sum", _BIASES | {"n": 1, "seed": 4}, layer=InOneSum, lse_cotangent=1.0),
    _way("layer, head by head", _BIASES | {"heads": 4, "head_width": 1}, layer=HeadByHead),
    _way("layer, biases first", _BIASES | {"width": 3, "inputs": 0.25}, layer=BiasFirst),
    _way("layer, biases rounded", _BIASES | {"form": "float64"}, order={"bias_rounded": True}),
    _way("layer, results stored", _BIASES | {"seed": 8}, order={"results_stored": True}),
    _way("layer, numbers rounded", _BIASES | {"form": "float64", "seed": 1}),
    _way(
        "layer, eager",
        _BIASES | {"seed": 5},
        contract=_STORED,
        order={"kv_tile": None},
        gradients=StoredWeights,
        layer=HeadByHead,
    ),
    _way("layer, by LSE", _BIASES | {"seed": 6}, contract={"normalize": "by_lse"}, steps=TwoPasses),
    _way("layer, delta of P", {"seed": 7, "values": 4.0}, contract={"delta": "probabilities"}),
    _way("layer, two pieces", {"form": "float64"}, contract={"multiplicand_pieces": 2}),
    *(
        _way(
            f"layer, {what}, {kept}",
            _BIASES | sizes,
            contract={"float16_subnormals": kept},
            cotangent=size,
            layer=layer,
        )
        for kept in ("kept", "flushed")
        for what, sizes, size, layer in (
            ("tiny outputs", {"heads": 3, "outputs": 2.0**-16, "biases": 2.0**-15}, 1.0, HeadByHead),
            ("tiny values, tiny cotangents", {"values": 2.0**-15, "biases": 2.0**-15}, 2.0**-12, InOneSum),
            ("tiny queries, biases first", {"queries": 2.0**-15, "biases": 2.0**-13}, 1.0, BiasFirst),
        )
    ),
)

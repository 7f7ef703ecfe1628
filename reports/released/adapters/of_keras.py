"""Keras: ``keras.ops.dot_product_attention`` on the backend that KERAS_BACKEND names."""

from __future__ import annotations

from typing import Any

from keras import ops

from attn_spec import kernel


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    least_keys=1,
    signatures=2,
)
def attention(
    q: Any, k: Any, v: Any, *, scale: Any = None, causal: bool = False, mask: Any = None, bias: Any = None
) -> Any:
    """Call the function with its own names."""
    return ops.dot_product_attention(q, k, v, bias=bias, mask=mask, scale=scale, is_causal=causal)

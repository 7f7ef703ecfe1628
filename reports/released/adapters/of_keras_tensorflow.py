"""Keras on TensorFlow: ``keras.ops.dot_product_attention``, in TensorFlow's operators."""

from __future__ import annotations

from typing import Any

from keras import ops

from attn_spec import kernel


@kernel(
    framework="numpy",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    kv_heads=tuple(range(2, 33)),
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, **options: Any) -> Any:
    """Call the function on NumPy arrays."""
    return ops.convert_to_numpy(ops.dot_product_attention(q, k, v, is_causal=causal, **options))


@kernel(
    framework="numpy",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("gqa", "cross"),
    kv_heads=(1,),
    least_keys=1,
)
def of_one_kv_head(q: Any, k: Any, v: Any) -> Any:
    """Call the function on NumPy arrays."""
    return ops.convert_to_numpy(ops.dot_product_attention(q, k, v))

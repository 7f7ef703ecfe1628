"""Keras on JAX: ``keras.ops.dot_product_attention``, whose options have the names that attn-spec reads."""

from __future__ import annotations

from keras import ops

from attn_spec import kernel

attention = kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    least_keys=1,
    signatures=2,
)(ops.dot_product_attention)

"""Keras on PyTorch: ``keras.ops.dot_product_attention``, which calls PyTorch's own function."""

from __future__ import annotations

from keras import ops

from attn_spec import kernel

attention = kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "zero"},
    exclusive=(("mask", "bias"), ("causal", "bias")),
    positive_scale=True,
    least_keys=1,
)(ops.dot_product_attention)

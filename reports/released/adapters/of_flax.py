"""Flax: ``dot_product_attention`` of ``flax.nnx`` and of ``flax.linen``."""

from __future__ import annotations

from flax import linen, nnx

from attn_spec import kernel

attention = kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    presentation="BSHD",
    supports=("causal", "mask", "bias", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    least_keys=1,
    signatures=2,
)(nnx.dot_product_attention)

of_linen = kernel(
    framework="jax",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("mask", "bias", "cross", "dv", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    least_keys=1,
    signatures=2,
)(linen.dot_product_attention)

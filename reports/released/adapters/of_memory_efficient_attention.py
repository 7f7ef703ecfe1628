"""memory-efficient-attention: the attention of Rabe and Staats in chunks, in JAX."""

from __future__ import annotations

import importlib

import jax

from attn_spec import kernel

_in_jax = importlib.import_module("memory_efficient_attention.attention_jax").efficient_dot_product_attention

attention = kernel(
    framework="jax",
    dtypes=("float32",),
    contract="fused",
    presentation="BSHD",
    supports=("cross", "dv", "backward"),
    least_keys=1,
    signatures=2,
)(jax.jit(_in_jax))

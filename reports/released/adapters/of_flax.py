"""Flax: ``flax.nnx.dot_product_attention``."""

from __future__ import annotations

from typing import Any

from flax import nnx

from attn_spec import kernel


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    presentation="BSHD",
    supports=("causal", "mask", "bias", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    least_keys=1,
    signatures=2,
)
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, mask: Any = None, bias: Any = None) -> Any:
    """Call the function, which gives calls without dropout to ``jax.nn``."""
    return nnx.dot_product_attention(q, k, v, bias, mask, is_causal=causal)

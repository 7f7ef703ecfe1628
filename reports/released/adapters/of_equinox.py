"""Equinox: the attention of one head in ``equinox.nn.MultiheadAttention``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from equinox.nn._attention import dot_product_attention

from attn_spec import kernel


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    presentation="SD",
    supports=("mask", "cross", "dv", "backward"),
    conventions={"empty_row": "mean_of_v"},
    least_keys=1,
    signatures=2,
)
def attention(q: Any, k: Any, v: Any, *, mask: Any = None) -> Any:
    """Call the function on one head."""
    full = None if mask is None else jnp.broadcast_to(mask, (q.shape[0], k.shape[0]))
    return dot_product_attention(q, k, v, full)

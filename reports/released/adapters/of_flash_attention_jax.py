"""flash-attention-jax: its tiled functions, with the backward pass that they define."""

from __future__ import annotations

import importlib
from typing import Any

import jax.numpy as jnp

from attn_spec import kernel

_tiled = importlib.import_module("flash_attention_jax.flash_attention").flash_attention
_causal = importlib.import_module("flash_attention_jax.causal_flash_attention").causal_flash_attention


@kernel(
    framework="jax", dtypes=("float32",), contract="fused", supports=("cross", "backward"), least_keys=1, signatures=2
)
def attention(q: Any, k: Any, v: Any) -> Any:
    """Call ``flash_attention``, whose mask of keys is all True here."""
    return _tiled(q, k, v, jnp.ones((k.shape[0], k.shape[2]), bool))


@kernel(
    framework="jax",
    dtypes=("float32",),
    contract="fused",
    supports=("causal", "backward"),
    always=("causal",),
    least_keys=1,
    signatures=2,
)
def causal_attention(q: Any, k: Any, v: Any, *, causal: bool = True) -> Any:
    """Call ``causal_flash_attention``."""
    del causal
    return _causal(q, k, v)

"""memory-efficient-attention-pytorch: its chunked attention, and its flash attention with a backward of its own."""

from __future__ import annotations

import importlib
from typing import Any

from attn_spec import kernel

_chunked = importlib.import_module("memory_efficient_attention_pytorch").memory_efficient_attention
_flash = importlib.import_module("memory_efficient_attention_pytorch.flash_attention").FlashAttentionFunction

#: Sizes of the tiles of queries and keys.
TILE = 32


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="fused",
    supports=("causal", "mask", "cross", "backward"),
    exclusive=(("causal", "mask"),),
    least_keys=1,
)
def flash(q: Any, k: Any, v: Any, *, causal: bool = False, mask: Any = None) -> Any:
    """Call the function with tiles of ``TILE`` queries and keys."""
    full = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
    return _flash.apply(q, k, v, full, causal, TILE, TILE)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="fused",
    supports=("causal", "cross", "dv", "backward"),
    least_keys=1,
)
def chunked(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Call ``memory_efficient_attention`` with chunks of ``TILE`` queries and keys."""
    return _chunked(q, k, v, causal=causal, q_bucket_size=TILE, k_bucket_size=TILE)

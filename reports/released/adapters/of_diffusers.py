"""Diffusers: ``dispatch_attention_fn``, through which its models attend."""

from __future__ import annotations

from typing import Any

from diffusers.models.attention_dispatch import dispatch_attention_fn

from attn_spec import kernel


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "dv", "backward"),
    exclusive=(("causal", "mask"), ("causal", "bias"), ("mask", "bias")),
    positive_scale=True,
)
def attention(
    q: Any, k: Any, v: Any, *, scale: Any = None, causal: bool = False, mask: Any = None, bias: Any = None
) -> Any:
    """Call the function with its default backend."""
    seen = bias if mask is None else mask
    grouped = q.shape[2] != k.shape[2]
    return dispatch_attention_fn(q, k, v, attn_mask=seen, is_causal=causal, scale=scale, enable_gqa=grouped)

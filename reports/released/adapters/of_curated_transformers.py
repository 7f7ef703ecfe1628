"""Curated Transformers: ``ScaledDotProductAttention`` in its own arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from curated_transformers.layers.attention import AttentionMask, ScaledDotProductAttention

from attn_spec import kernel

_attention = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="eager",
    supports=("causal", "mask", "cross", "dv", "backward"),
    conventions={"empty_row": "mean_of_v", "causal_alignment": "bottom_right"},
    keys_reach_queries=True,
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False) -> Any:
    """Call the module, whose mask is required."""
    seen = AttentionMask(torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask)
    return _attention(query=q, key=k, value=v, attention_mask=seen, use_causal_mask=causal)

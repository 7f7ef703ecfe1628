"""Whisper: ``MultiHeadAttention.qkv_attention``, in its own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from whisper.model import MultiHeadAttention, disable_sdpa

from attn_spec import kernel


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="eager",
    presentation="BS(HD)",
    supports=("causal", "dv", "backward"),
    equal_lengths=True,
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, query_heads: int, kv_heads: int, causal: bool = False) -> Any:
    """Call the method with the mask that the decoder has."""
    del kv_heads
    mask = torch.full((q.shape[1], q.shape[1]), -torch.inf).triu(1) if causal else None
    with disable_sdpa():
        return MultiHeadAttention.qkv_attention(SimpleNamespace(n_head=query_heads), q, k, v, mask)[0]

"""ring-attention-pytorch: the attention of one device that its tests compare rings with."""

from __future__ import annotations

import importlib
from typing import Any

from attn_spec import kernel

_attention = importlib.import_module("ring_attention_pytorch.ring_attention").default_attention


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("causal", "cross", "dv", "backward"),
    conventions={"causal_alignment": "bottom_right"},
    keys_reach_queries=True,
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    """Call ``default_attention``."""
    return _attention(q, k, v, causal=causal)

"""local-attention: ``LocalAttention`` with the exact window, and without rotary positions."""

from __future__ import annotations

import math
from typing import Any

from local_attention import LocalAttention

from attn_spec import kernel


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="eager",
    supports=("causal", "window", "scale", "dv", "backward"),
    equal_lengths=True,
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, window: Any = (None, None), causal: bool = False, scale: Any = None) -> Any:
    """Call the module in blocks of the greatest size that divides both sides of the window."""
    left, right = (q.shape[2] if side is None else side for side in window)
    right = 0 if causal else right
    block = math.gcd(left, right) or 1
    sides = {"look_backward": left // block, "look_forward": right // block, "exact_windowsize": True}
    module = LocalAttention(block, causal, **sides, scale=scale, autopad=True, use_rotary_pos_emb=False)
    return module(q, k, v)

"""ExecuTorch: the operator ``llama::custom_sdpa`` of its kernels for language models."""

from __future__ import annotations

from typing import Any

import executorch.extension.llm.custom_ops.custom_ops  # noqa: F401 -- registers the operator
import torch

from attn_spec import kernel


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "gqa", "cross"),
    conventions={"causal_alignment": "bottom_right"},
    keys_reach_queries=True,
    positive_scale=True,
    least_keys=1,
)
def attention(q: Any, k: Any, v: Any, *, scale: Any = None, causal: bool = False) -> Any:
    """Call the operator with all keys in the cache; the queries are the last positions."""
    return torch.ops.llama.custom_sdpa(q, k, v, k.shape[1] - q.shape[1], None, 0.0, causal, scale)

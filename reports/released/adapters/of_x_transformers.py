"""x-transformers: the module ``Attend``, without and with PyTorch's own attention."""

from __future__ import annotations

import importlib
from typing import Any

from attn_spec import kernel

_Attend = importlib.import_module("x_transformers.attend").Attend


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="eager",
    supports=("scale", "causal", "mask", "bias", "cross", "dv", "backward"),
    conventions={"causal_alignment": "bottom_right", "empty_row_by_bias": "nan"},
    keys_reach_queries=True,
    least_keys=1,
)
def attend(
    q: Any, k: Any, v: Any, *, scale: Any = None, causal: bool = False, mask: Any = None, bias: Any = None
) -> Any:
    """Call ``Attend`` as its ``Attention`` does without ``attn_flash``."""
    return _Attend(causal=causal, scale=scale)(q, k, v, mask=mask, attn_bias=bias)[0]


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="fused",
    supports=("causal", "mask", "cross", "dv", "backward"),
    conventions={"causal_alignment": "bottom_right"},
    keys_reach_queries=True,
    least_keys=1,
)
def attend_flash(q: Any, k: Any, v: Any, *, causal: bool = False, mask: Any = None) -> Any:
    """Call ``Attend`` as its ``Attention`` does with ``attn_flash``."""
    return _Attend(causal=causal, flash=True)(q, k, v, mask=mask)[0]

"""flash-linear-attention: softmax attention in PyTorch and in Triton."""

from __future__ import annotations

import importlib
from typing import Any

from attn_spec import kernel

_parallel = importlib.import_module("fla.ops.attn.parallel").parallel_attn
_naive = importlib.import_module("fla.ops.attn.naive").naive_parallel_attn


def _of_heads(sinks: Any, q: Any) -> Any:
    """Return the sinks as [Hq], or None."""
    return None if sinks is None else sinks.expand(1, q.shape[2], 1, 1).reshape(-1)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "gqa", "dv", "sinks", "backward"),
    least_keys=1,
    equal_lengths=True,
)
def naive(q: Any, k: Any, v: Any, *, scale: Any = None, causal: bool = False, sinks: Any = None) -> Any:
    """Call ``naive_parallel_attn``."""
    return _naive(q, k, v, scale=scale, causal=causal, sink_bias=_of_heads(sinks, q))[0]


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "gqa", "dv", "sinks", "backward"),
    always=("causal",),
    head_dims=tuple(range(1, 257)),
    least_keys=1,
    equal_lengths=True,
    slowness=100,
)
def parallel(q: Any, k: Any, v: Any, *, causal: bool = True, scale: Any = None, sinks: Any = None) -> Any:
    """Call ``parallel_attn``, whose calls are causal, in Triton's interpreter."""
    del causal
    return _parallel(q, k, v, scale=scale, sink_bias=_of_heads(sinks, q))

"""ejkernel: its attention in JAX, at once and in tiles, as it runs without a GPU and without a TPU."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from ejkernel.kernels._xla.attention import attention as at_once
from ejkernel.kernels._xla.flash_attention import flash_attention
from ejkernel.ops import FwdParams

from attn_spec import kernel

#: Tiles of 16 queries and 16 keys, which are 128 by default.
TILES = FwdParams(q_blocksize=16, kv_blocksize=16)
#: Keys on a side of a window without an edge there.
ALL = 1 << 20


def _named(q: Any, k: Any, mask: Any = None, bias: Any = None, window: Any = None, **options: Any) -> dict[str, Any]:
    """Return the options by the names of the package, whose masks and biases are [B, Hq, Sq, Sk]."""
    shape = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    full = {"attention_mask": mask, "bias": bias}
    return {
        "causal": options.get("causal", False),
        "softmax_scale": options.get("scale"),
        "logits_soft_cap": options.get("softcap"),
        "sliding_window": window and tuple(ALL if side is None else side for side in window),
        **{name: None if x is None else jnp.broadcast_to(x, shape) for name, x in full.items()},
    }


@kernel(
    framework="jax",
    dtypes=("float32",),
    contract="eager",
    presentation="BSHD",
    supports=("scale", "causal", "window", "mask", "bias", "softcap", "sinks", "gqa", "cross", "dv", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    exclusive=(("mask", "bias"),),
    least_keys=1,
    signatures=2,
)
def attention(q: Any, k: Any, v: Any, *, sinks: Any = None, **options: Any) -> Any:
    """Call ``attention`` in the dtype of the queries."""
    of_heads = None if sinks is None else sinks.reshape(-1)
    return at_once(q, k, v, softmax_aux=of_heads, dtype=q.dtype, **_named(q, k, **options))[0]


@kernel(
    framework="jax",
    dtypes=("float32",),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "window", "mask", "bias", "softcap", "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan"},
    exclusive=(("bias", "softcap"),),
    forward_only=("bias",),
    least_keys=1,
    signatures=2,
)
def tiled(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Call ``flash_attention`` with ``TILES``."""
    return flash_attention(q, k, v, fwd_params=TILES, **_named(q, k, **options))


@kernel(
    framework="jax",
    dtypes=("float32",),
    contract="fused",
    presentation="BSHD",
    supports=("scale", "causal", "sinks", "cross"),
    query_heads=(1,),
    least_keys=1,
    signatures=2,
)
def tiled_with_sinks(q: Any, k: Any, v: Any, *, sinks: Any = None, **options: Any) -> Any:
    """Call ``flash_attention`` with ``TILES`` and a sink of the one head."""
    of_head = None if sinks is None else sinks.reshape(-1)
    return flash_attention(q, k, v, softmax_aux=of_head, fwd_params=TILES, **_named(q, k, **options))

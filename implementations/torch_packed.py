"""Attention over packed sequences (THD), forward and backward: the tiles of ``torch_tiled``, one sequence at a time.

Sequences lie one behind the other in buffers that may be longer than all of them. Slot t of q belongs to sequence b if
cu_seqlens_q[b] <= t < cu_seqlens_q[b + 1]. Each sequence is read as a view of its own slots, so that nothing behind the
last one is read. Output and log-sum-exp of these slots are not written.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel

from .rotary import OPTIONS as ROTARY
from .torch_tiled import CONTRACTS, DESCALES, SHAPES, TiledAttention

OPTIONS = (
    *("scale", "causal", "causal_alignment", "window", "alibi_slopes", "softcap", "sinks"),
    *(name for name in ROTARY if not name.endswith("positions")),
)


def spans(bounds: Tensor) -> Iterator[slice]:
    """Yield the slots of each sequence, from the bounds [B + 1] of all."""
    ends = bounds.tolist()
    yield from map(slice, ends[:-1], ends[1:])


def of_entry(slopes: Tensor | None, entry: int) -> Tensor | None:
    """Return the ALiBi slopes [1, H, 1, 1] of a sequence from those of all, or from those that all share."""
    return None if slopes is None else slopes[entry : entry + 1] if len(slopes) > 1 else slopes


def descales_of_entry(options: dict[str, Any], entry: int) -> dict[str, Tensor]:
    """Return the descales [1, Hkv, 1, 1] of a sequence from those of all, [B, Hkv]."""
    return {name: options[name][entry][None, :, None, None] for name in DESCALES if name in options}


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract=CONTRACTS,
    supports=(*OPTIONS, *DESCALES, "descale_by_head", *SHAPES, "lse", "backward", "lse_backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread"},
    presentation="THD",
    slowness=8.0,  # sequences are taken one after the other, in Python
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv] to out [Tq, Hq, Dv], lse [Hq, Tq].

    Descales are [B, Hkv]. The largest lengths, by which kernels of a GPU choose their grids, have no influence.
    """
    del max_seqlen_q, max_seqlen_k
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[1], len(q), dtype=wide)
    for entry, (rows, keys) in enumerate(zip(spans(cu_seqlens_q), spans(cu_seqlens_k), strict=True)):
        heads_first = (x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys]))
        own = {"alibi_slopes": of_entry(alibi_slopes, entry), **descales_of_entry(options, entry)}
        found = TiledAttention.apply(*heads_first, None, sinks, options | own)
        out[rows], lse[:, rows] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse

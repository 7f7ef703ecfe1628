"""Attention that appends: new keys and values are written to a cache, and the queries attend to all keys in it.

The cache is a rectangle with a row for each sequence, or has pages that a table lists. It is changed in place, as in
engines that decode: the numbers behind the new keys, and those of other sequences, stay as they are.
"""

from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel

from .torch_packed import OPTIONS, of_entry
from .torch_paged import gathered
from .torch_tiled import SHAPES, Scores, online_softmax

DECLARED: dict[str, Any] = {
    "framework": "torch",
    "dtypes": ("float64", "float32", "float16", "bfloat16"),
    "contract": {"float64": "fp64", "float32": "fused", "float16": "fused", "bfloat16": "fused"},
    "conventions": {"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread"},
}


def places(cache_seqlens: Tensor, count: int) -> Tensor:
    """Return the places [B, count] of the new keys of each sequence, behind those in the cache."""
    return cache_seqlens.long()[:, None] + torch.arange(count, device=cache_seqlens.device)


@kernel(**DECLARED, supports=(*OPTIONS, *SHAPES, "lse", "leftpad_k"), presentation="append")
def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cache_seqlens: Tensor,
    leftpad_k: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [B, n, Hq, D] to out [B, n, Hq, Dv], lse [B, Hq, n]: over caches [B, most, Hkv, D] and new k, v.

    The new k [B, n, Hkv, D] and v are written behind the first ``cache_seqlens`` [B] keys of the caches.
    """
    new = places(cache_seqlens, k.shape[1])
    entries = torch.arange(len(k), device=k.device)[:, None]
    k_cache[entries, new], v_cache[entries, new] = k, v
    ends = cache_seqlens.long() + k.shape[1]
    longest = max(ends.tolist(), default=0)
    queries, keys, values = (x.transpose(1, 2) for x in (q, k_cache[:, :longest], v_cache[:, :longest]))
    pads = None if leftpad_k is None else leftpad_k.view(-1, 1, 1, 1)
    scores = Scores(queries, keys, None, seqused_k=ends.view(-1, 1, 1, 1), leftpad_k=pads, **options)
    out, lse = online_softmax(scores, values, sinks)
    return out.transpose(1, 2), lse


@kernel(**DECLARED, supports=(*OPTIONS, *SHAPES, "lse"), presentation="append_paged")
def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_table: Tensor,
    cache_seqlens: Tensor,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [B, n, Hq, D] to out [B, n, Hq, Dv], lse [B, Hq, n]: over caches [pages, size, Hkv, D] and new k, v.

    Place j of sequence b is in the page ``block_table[b, j // size]``, at the offset j % size.
    """
    new, size = places(cache_seqlens, k.shape[1]), k_cache.shape[1]
    if new.numel():
        pages = block_table.long().gather(1, new // size)
        k_cache[pages, new % size], v_cache[pages, new % size] = k, v
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(len(q), q.shape[2], q.shape[1], dtype=wide)
    for entry, before in enumerate(cache_seqlens.tolist()):
        keys, values = (gathered(cache, block_table[entry], before + k.shape[1]) for cache in (k_cache, v_cache))
        queries, slopes = q[entry].transpose(0, 1)[None], of_entry(alibi_slopes, entry)
        scores = Scores(queries, keys, None, alibi_slopes=slopes, **options)
        found = online_softmax(scores, values, sinks)
        out[entry], lse[entry] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse

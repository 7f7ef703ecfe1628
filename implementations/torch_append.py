"""Attention that appends: new keys and values are written to a cache, and the queries attend to all keys in it.

The cache is a rectangle with a row for each sequence, or has pages that a table lists. It is changed in place, as in
engines that decode: the numbers behind the new keys, and those of other sequences, stay as they are. With rotary
positions it holds rotated keys: queries and new keys are rotated by tables of cosines and sines, once for all.
"""

from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel

from .lengths import first_aligned
from .torch_packed import OPTIONS, of_entry
from .torch_paged import gathered
from .torch_rotary import turned_by
from .torch_tiled import SHAPES, Scores, online_softmax, wide

DECLARED: dict[str, Any] = {
    "framework": "torch",
    "dtypes": ("float64", "float32", "float16", "bfloat16"),
    "contract": {"float64": "fp64", "float32": "fused", "float16": "fused", "bfloat16": "fused"},
    "conventions": {"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread"},
}


class Turn:
    """Rotary positions as a call that appends has them: tables [rows, R/2], and which columns are a pair."""

    def __init__(
        self,
        *,
        rotary_cos: Tensor | None = None,
        rotary_sin: Tensor | None = None,
        rotary_interleaved: bool = False,
        **others: Any,
    ) -> None:
        self.cos, self.sin, self.others = rotary_cos, rotary_sin, others
        self.pairs = "interleaved" if rotary_interleaved else "half"

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn the rows of x [B, n, H, D] by their positions [B, n], and round to the dtype of x."""
        if self.cos is None or self.sin is None:
            return x
        cos, sin = (wide(table[positions])[:, :, None] for table in (self.cos, self.sin))
        return turned_by(wide(x), cos, sin, self.pairs).to(x.dtype)


def of_queries(count: int, ends: Tensor, leftpad_k: Tensor | None, causal_alignment: str = "top_left") -> Tensor:
    """Return the positions [B, n] of the queries of sequences that end at ``ends`` [B]: of the keys they belong to."""
    lengths, pads = (None if x is None else x.view(-1, 1, 1, 1) for x in (ends, leftpad_k))
    first = first_aligned(causal_alignment, count, 0, None, lengths, pads)
    first = first if isinstance(first, int) else first.view(-1, 1)
    return (torch.arange(count, device=ends.device) + first).expand(len(ends), count)


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
    new, ends = places(cache_seqlens, k.shape[1]), cache_seqlens.long() + k.shape[1]
    turn = Turn(**options)
    options, aligned = turn.others, turn.others.get("causal_alignment", "top_left")
    q, k = turn(q, of_queries(q.shape[1], ends, leftpad_k, aligned)), turn(k, new)
    entries = torch.arange(len(k), device=k.device)[:, None]
    k_cache[entries, new], v_cache[entries, new] = k, v
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
    turn = Turn(**options)
    options, aligned = turn.others, turn.others.get("causal_alignment", "top_left")
    q, k = turn(q, of_queries(q.shape[1], cache_seqlens.long() + k.shape[1], None, aligned)), turn(k, new)
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

"""Attention that appends: new keys and values are written to a cache, and the queries attend to all keys in it.

The cache is a rectangle with a row for each sequence, or has pages that a table lists. It is changed in place, as in
engines that decode: the numbers behind the new keys, and those of other sequences, stay as they are. With rotary
positions it holds rotated keys: queries and new keys are rotated by tables of cosines and sines, once for all.

``eight_bits`` writes to pages of float8_e4m3fn: new keys and values are divided by descales, and rounded once.
"""

from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel

from .lengths import first_aligned
from .torch_packed import OPTIONS, descales_of_entry, of_entry
from .torch_paged import gathered
from .torch_rotary import turned_by
from .torch_tiled import DESCALES, SHAPES, Scores, online_softmax, wide

#: Caches of keys and of values, or new keys and values.
Caches = tuple[Tensor, Tensor]
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
    turn = Turn(**options)
    options, aligned = turn.others, turn.others.get("causal_alignment", "top_left")
    new, ends = places(cache_seqlens, k.shape[1]), cache_seqlens.long() + k.shape[1]
    q, k = turn(q, of_queries(q.shape[1], ends, None, aligned)), turn(k, new)
    write_to_pages((k_cache, v_cache), (k, v), new, block_table)
    return over_pages(q, (k_cache, v_cache), block_table, ends, alibi_slopes=alibi_slopes, sinks=sinks, **options)


@kernel(
    framework="torch",
    dtypes=({"q": "bfloat16", "kv": "float8_e4m3fn"},),
    contract="fused",
    supports=("scale", "causal", "causal_alignment", *DESCALES[1:], "descale_by_head", *SHAPES, "lse"),
    option_dtypes=dict.fromkeys(DESCALES[1:], "float32"),
    conventions={**DECLARED["conventions"], "cache_overflow": "saturates"},
    presentation="append_paged",
)
def eight_bits(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_table: Tensor,
    cache_seqlens: Tensor,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Append as :func:`paged` to caches of float8_e4m3fn, of new k and v in bfloat16 over their descales [B, Hkv]."""
    new, ends = places(cache_seqlens, k.shape[1]), cache_seqlens.long() + k.shape[1]
    codes = rounded(k, k_descale, k_cache.dtype), rounded(v, v_descale, v_cache.dtype)
    write_to_pages((k_cache, v_cache), codes, new, block_table)
    given = {name: x for name, x in (("k_descale", k_descale), ("v_descale", v_descale)) if x is not None}
    return over_pages(q, (k_cache, v_cache), block_table, ends, **given, **options)


def rounded(x: Tensor, descale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return new keys or values [B, n, Hkv, D] over their descales [B, Hkv] in a dtype of 8 bits, which saturates."""
    quotient = x.float() if descale is None else x.float() / descale[:, None, :, None]
    largest = torch.finfo(dtype).max
    return quotient.clamp(-largest, largest).to(dtype)


def write_to_pages(caches: Caches, new: Caches, at: Tensor, block_table: Tensor) -> None:
    """Write new keys and values [B, n, Hkv, D] to the places ``at`` [B, n] of their sequences, in pages."""
    if not at.numel():
        return
    size = caches[0].shape[1]
    pages = block_table.long().gather(1, at // size)
    for cache, x in zip(caches, new, strict=True):
        cache[pages, at % size] = x


def over_pages(
    q: Tensor,
    caches: Caches,
    block_table: Tensor,
    ends: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return out and lse of queries over the first ``ends`` [B] keys of the pages of each sequence.

    Keys and values are read in the dtype of q, which has all numbers of 8 bits.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = q.new_empty(*q.shape[:3], caches[1].shape[-1]), q.new_empty(len(q), *q.shape[2:0:-1], dtype=wide)
    for entry, end in enumerate(ends.tolist()):
        keys, values = (gathered(cache, block_table[entry], end).to(q.dtype) for cache in caches)
        own = {"alibi_slopes": of_entry(alibi_slopes, entry), **descales_of_entry(options, entry)}
        scores = Scores(q[entry].transpose(0, 1)[None], keys, None, **options | own)
        found = online_softmax(scores, values, sinks)
        out[entry], lse[entry] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse

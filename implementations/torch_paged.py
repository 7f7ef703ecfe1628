"""Attention of packed queries over a paged cache of keys and values, one sequence at a time, with an online softmax.

Key j of sequence b is in the page block_table[b, j // size], at the place j % size. Pages are gathered, and what lies
behind the last key in its page is left out before anything is computed.

``eight_bits`` reads a cache of float8_e4m3fn, and writes its output in that format, divided by a scale.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel
from attn_spec.contract.presets import FUSED

from .torch_packed import OPTIONS, descales_of_entry, of_entry, spans
from .torch_tiled import CONTRACTS, DESCALES, SHAPES, Scores, online_softmax

#: Descales of which ``quantized`` takes a number for each key.
SCALE_CACHES = ("k_descale", "v_descale")


def gathered(cache: Tensor, pages: Tensor, length: int) -> Tensor:
    """Return the first ``length`` keys [1, Hkv, length, D] of a sequence from its pages of the cache."""
    needed = -(-length // cache.shape[1])
    return cache[pages[:needed].long()].flatten(0, 1)[:length].transpose(0, 1)[None]


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract=CONTRACTS,
    supports=(*OPTIONS, *DESCALES, "descale_by_head", *SHAPES, "lse"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread", "table_tail": "any"},
    presentation="paged",
    slowness=8.0,  # sequences are taken one after the other, in Python
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    block_table: Tensor,
    seqused_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [Tq, Hq, D] and caches [pages, page size, Hkv, D], [pages, page size, Hkv, Dv] to out and lse [Hq, Tq].

    The output is [Tq, Hq, Dv]. Descales are [B, Hkv]. The largest lengths have no influence.
    """
    del max_seqlen_q, max_seqlen_k
    placed = {"cu_seqlens_q": cu_seqlens_q, "block_table": block_table, "seqused_k": seqused_k}
    return each_sequence(q, k, v, **placed, alibi_slopes=alibi_slopes, sinks=sinks, **options)


def each_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    block_table: Tensor,
    seqused_k: Tensor,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    scale_caches: Mapping[str, Tensor] = MappingProxyType({}),
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return out [Tq, Hq, Dv] in the dtype of the values, and lse [Hq, Tq], one sequence after the other.

    Descales lie by sequence in ``options``, [B, Hkv], or by key in ``scale_caches``, [pages, page size, Hkv].
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    out, lse = v.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[1], len(q), dtype=wide)
    for entry, (rows, length) in enumerate(zip(spans(cu_seqlens_q), seqused_k.tolist(), strict=True)):
        pages, queries = block_table[entry], q[rows].transpose(0, 1)[None]
        keys, values = (gathered(cache, pages, length) for cache in (k, v))
        own = {"alibi_slopes": of_entry(alibi_slopes, entry), **descales_of_entry(options, entry)}
        own |= {name: gathered(cache[..., None], pages, length) for name, cache in scale_caches.items()}
        found = online_softmax(Scores(queries, keys, None, **options | own), values, sinks)
        out[rows], lse[:, rows] = found[0][0].transpose(0, 1), found[1][0]
    return out, lse


@kernel(
    framework="torch",
    dtypes=("float16", "bfloat16", {"q": "bfloat16", "kv": "float8_e4m3fn"}, {"q": "bfloat16", "kv": "int8"}),
    contract=CONTRACTS["bfloat16"],
    supports=("scale", "causal", "causal_alignment", *SCALE_CACHES, "descale_by_head", "descale_by_key", *SHAPES),
    option_dtypes=dict.fromkeys(SCALE_CACHES, "float32"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread", "table_tail": "any"},
    presentation="paged",
    slowness=8.0,  # sequences are taken one after the other, in Python
)
def quantized(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    block_table: Tensor,
    seqused_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **options: Any,
) -> Tensor:
    """Attend to caches with caches of scales beside them, [pages, page size, Hkv]: descales of each key and head.

    Keys and values of 8 bits, integers too, are numbers of the dtype of q, in which they are read.
    """
    del max_seqlen_q, max_seqlen_k
    placed = {"cu_seqlens_q": cu_seqlens_q, "block_table": block_table, "seqused_k": seqused_k}
    scale_caches = {name: options.pop(name) for name in SCALE_CACHES if name in options}
    return each_sequence(q, k.to(q.dtype), v.to(q.dtype), **placed, scale_caches=scale_caches, **options)[0]


@kernel(
    framework="torch",
    dtypes=({"q": "bfloat16", "kv": "float8_e4m3fn"},),
    contract=replace(FUSED, output="float8_e4m3fn", output_overflow="saturates"),
    supports=(*OPTIONS, *SHAPES, "lse", "o_scale"),
    option_dtypes={"o_scale": "float32"},
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread", "table_tail": "any"},
    presentation="paged",
    slowness=8.0,  # sequences are taken one after the other, in Python
)
def eight_bits(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    o_scale: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend as :func:`attention` to caches of float8_e4m3fn; the output is divided by ``o_scale``, and saturates."""
    del max_seqlen_q, max_seqlen_k
    out, lse = each_sequence(q, k.to(q.dtype), v.float(), alibi_slopes=alibi_slopes, sinks=sinks, **options)
    scaled = out if o_scale is None else out / o_scale.reshape(())
    largest = torch.finfo(torch.float8_e4m3fn).max
    return scaled.clamp(-largest, largest).to(torch.float8_e4m3fn), lse

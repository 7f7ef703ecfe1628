"""Attention in Triton over packed queries, with packed keys or a paged cache of them: online softmax over tiles.

Each program has one query head and one tile of the queries of one sequence. Query i of sequence b is token
cu_seqlens_q[b] + i. Its key j is token cu_seqlens_k[b] + j where keys are packed. In a cache it has the place
j % size of the page block_table[b, j // size]. No key behind the last one of a sequence is read.

Masks by position are one band, i + offset - left <= j <= i + offset + right, with causal as right = 0. From the
bottom-right corner, offset is the number of keys minus that of queries of the sequence. A sink is one more key of value
0: it is the first thing that a row of the softmax sees.

``eight_bits`` reads a paged cache of float8_e4m3fn. Its codes are multiplied in the format of the queries. The descale
of a sequence and kv head multiplies scores, that of values the finished output.
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec import kernel

# By way of the tiles, which choose the interpreter before they import triton.
from .triton_tiles import INTERPRETED, format_of, online_step, padded, part, product, strided, tl, triton, widened

TILE = {"BLOCK_Q": 16, "BLOCK_K": 32}
#: Sides of a window beyond every length: they mask nothing, and sums with a length fit 32 bits.
FAR = 2**30


@part
def load_tokens(tensor, token, place, h, c, inside, N: tl.constexpr):
    """Load columns c of one head at tokens or places in pages, 0 where they are not ``inside``; offsets of 64 bits."""
    base, strides = tensor
    first = token.to(tl.int64) * strides[0] + place.to(tl.int64) * strides[1] + h * strides[2]
    columns = c.to(tl.int64) * strides[3]
    return tl.load(base + first[:, None] + columns[None, :], mask=inside[:, None] & (c[None, :] < N), other=0)


@part
def key_places(b, j, inside, where, SIZE: tl.constexpr):
    """Find the pages, and the places in them, of keys j of a sequence; packed keys are pages of one key each."""
    bounds, table, row = where
    if table is None:
        token = tl.load(bounds + b).to(tl.int64) + j
    else:
        token = tl.load(table + b * row + j // SIZE, mask=inside, other=0).to(tl.int64)
    return token, j % SIZE


@part
def times_descale(x, descale, b, g):
    """Multiply a tile by the descale of a sequence and kv head, if there is one."""
    if descale is not None:
        base, strides = descale
        x = x * tl.load(base + b * strides[0] + g * strides[1])
    return x


@part
def masked_scores(q_i, k_j, i, j, n, e, band, scoring, b, h, g, FORMAT: tl.constexpr):
    """Compute the scores of queries i and keys j of a sequence of n queries and e keys, -inf where masked."""
    left, right, from_end = band
    scale, softcap, slopes, descale = scoring
    s = times_descale(product(q_i, tl.trans(k_j), None, FORMAT) * scale, descale, b, g)
    if softcap is not None:
        s = softcap * (2 * tl.sigmoid(2 * s / softcap) - 1)  # tanh(s / softcap)
    distance = j[None, :] - i[:, None] - (e - n) * from_end
    if slopes is not None:
        base, strides = slopes
        s -= tl.load(base + b * strides[0] + h * strides[1]).to(tl.float32) * tl.abs(distance).to(tl.float32)
    allowed = (distance >= -left) & (distance <= right) & (i[:, None] < n) & (j[None, :] < e)
    return tl.where(allowed, s, -float("inf"))


@triton.jit
def forward(
    q, k, v, out, lse, queries, keys, where, band, scoring, sinks, v_descale, Hq, Hkv, Tq,
    D: tl.constexpr, Dv: tl.constexpr, SIZE: tl.constexpr, FORMAT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [BLOCK_Q, Dv] and lse [BLOCK_Q] for query tile program_id(1) of sequence and head program_id(0)."""
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    g, start = h // (Hq // Hkv), tl.load(queries + b)
    n = tl.load(queries + b + 1) - start
    e = tl.load(keys + b + 1) - tl.load(keys + b) if where[1] is None else tl.load(keys + b)
    first = tl.program_id(1) * BLOCK_Q
    if first < n:  # grids reach to the longest sequence
        i = first + tl.arange(0, BLOCK_Q)
        c, cv = tl.arange(0, padded(D)), tl.arange(0, padded(Dv))
        nowhere = tl.full([BLOCK_Q], 0, tl.int32)
        q_i = load_tokens(q, start + i, nowhere, h, c, i < n, D)

        m, l = tl.full([BLOCK_Q], -float("inf"), tl.float32), tl.full([BLOCK_Q], 0, tl.float32)
        if sinks is not None:
            m = tl.full([BLOCK_Q], 0, tl.float32) + tl.load(sinks + h).to(tl.float32)
            l = tl.where(m == -float("inf"), 0.0, 1.0)  # a sink of -inf is none
        acc = tl.full([BLOCK_Q, padded(Dv)], 0, tl.float32)
        offset = (e - n) * band[2]
        begin = tl.maximum(first + offset - band[0], 0) // BLOCK_K * BLOCK_K
        end = tl.minimum(first + BLOCK_Q + offset + band[1], e)
        for tile in range(begin, end, BLOCK_K):
            j = tile + tl.arange(0, BLOCK_K)
            token, place = key_places(b, j, j < e, where, SIZE)
            k_j = widened(load_tokens(k, token, place, g, c, j < e, D), q_i)
            v_j = widened(load_tokens(v, token, place, g, cv, j < e, Dv), q_i)
            s = masked_scores(q_i, k_j, i, j, n, e, band, scoring, b, h, g, FORMAT)
            m, l, alpha, p = online_step(s, m, l)
            acc = product(p, v_j, acc * alpha[:, None], FORMAT)

        l = tl.where(l == 0, 1.0, l)  # a query that saw neither key nor sink: out = 0 and lse = -inf
        base, strides = out
        rows = base + (start + i).to(tl.int64)[:, None] * strides[0] + h * strides[1] + cv[None, :] * strides[2]
        found = times_descale(tl.div_rn(acc, l[:, None]), v_descale, b, g).to(base.dtype.element_ty)
        tl.store(rows, found, mask=(i[:, None] < n) & (cv[None, :] < Dv))
        tl.store(lse + h * Tq + start + i, m + tl.log(l), mask=i < n)


def attend(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, table: Tensor | None, longest: int, *,
    scale: float | None = None, causal: bool = False, causal_alignment: str = "top_left",
    window: tuple[int | None, int | None] | None = None, softcap: float | None = None,
    alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
    k_descale: Tensor | None = None, v_descale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return out [Tq, Hq, Dv] and lse [Hq, Tq] of k [.., page size, Hkv, D] and v [.., page size, Hkv, Dv].

    ``keys`` are the numbers of keys [B] in pages of a table, or the bounds [B + 1] of packed keys. Descales are
    [B, Hkv].
    """
    (Tq, Hq, D), (_, size, Hkv, Dv), B = q.shape, v.shape, len(queries) - 1
    left, right = (FAR if side is None else min(side, FAR) for side in window or (None, None))
    slopes = None if alibi_slopes is None else strided(alibi_slopes.expand(B, Hq, 1, 1))
    given: dict[str, Any] = {"q": strided(q[:, None]), "k": strided(k), "v": strided(v)}
    out = given["q"][0].new_empty(Tq, Hq, Dv)
    lse = q.new_empty(Hq, Tq, dtype=torch.float32)
    scale = 1 / math.sqrt(D) if scale is None else scale
    from_end = int(causal_alignment == "bottom_right")
    given |= {
        "out": strided(out), "lse": lse, "queries": queries, "keys": keys,
        "where": (keys, table, 0 if table is None else table.stride(0)),
        "band": (left, 0 if causal else right, from_end), "scoring": (scale, softcap, slopes, strided(k_descale)),
        "sinks": None if sinks is None else sinks.expand(1, Hq, 1, 1).contiguous(), "v_descale": strided(v_descale),
        "Hq": Hq, "Hkv": Hkv, "Tq": Tq,
        "D": D, "Dv": Dv, "SIZE": size, "FORMAT": format_of(q), **TILE,
    }  # fmt: skip
    # Triton launches on the current device, whatever device the tensors are on. The interpreter computes in NumPy,
    # which warns where hardware silently answers Inf or NaN.
    with torch.cuda.device_of(q), np.errstate(over="ignore", invalid="ignore"):
        if B * Hq and longest:
            forward[B * Hq, triton.cdiv(longest, TILE["BLOCK_Q"])](**given)
    return out.to(q.dtype), lse


DECLARED: dict[str, Any] = {
    "framework": "torch",
    "contract": "fused",
    "conventions": {"empty_row": "zero", "masked_nonfinite": "may_leak", "unused": "unread"},
    "devices": ("cuda", "cpu") if INTERPRETED else ("cuda",),
    "slowness": 32 if INTERPRETED else 1,
    "signatures": None if INTERPRETED else 4,
}

DTYPES = ("float32", "float16", "bfloat16")
SUPPORTS = (
    *("scale", "causal", "causal_alignment", "window", "alibi_slopes", "softcap", "sinks"),
    *("gqa", "dv", "cross", "empty", "lse"),
)
DESCALES = ("k_descale", "v_descale")


@kernel(presentation="THD", dtypes=DTYPES, supports=SUPPORTS, **DECLARED)
def packed(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Map q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv] to out [Tq, Hq, Dv], lse [Hq, Tq]."""
    del max_seqlen_k
    return attend(q, k[:, None], v[:, None], cu_seqlens_q, cu_seqlens_k, None, max_seqlen_q, **options)


@kernel(presentation="paged", dtypes=DTYPES, supports=SUPPORTS, **DECLARED)
def paged(
    q: Tensor, k: Tensor, v: Tensor, *, cu_seqlens_q: Tensor, block_table: Tensor, seqused_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, **options: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Map q [Tq, Hq, D] and caches [pages, page size, Hkv, D], [pages, page size, Hkv, Dv] to out and lse [Hq, Tq]."""
    del max_seqlen_k
    return attend(q, k, v, cu_seqlens_q, seqused_k, block_table, max_seqlen_q, **options)


@kernel(
    presentation="paged",
    dtypes=[{"q": dtype, "kv": "float8_e4m3fn"} for dtype in DTYPES],
    supports=(*SUPPORTS, *DESCALES, "descale_by_head"),
    option_dtypes=dict.fromkeys(DESCALES, "float32"),
    **DECLARED,
)
def eight_bits(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Map queries and caches of float8_e4m3fn as :func:`paged`, with descales [B, Hkv] of keys and of values."""
    return paged.function(q, k, v, **options)

"""Latent attention as an engine decodes with it, in Triton and in JAX: one query of each sequence, pages of keys.

A key of the cache is a compressed vector of width Dv beside a rotated part, and the compressed vector is its value. All
query heads share a key. So a tile of heads is multiplied by a tile of keys, which is loaded once.
"""
# ruff: noqa: PLR0917  (Triton reads the signature of a kernel itself)

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from attn_spec.implementations.triton_tiles import (
    INTERPRETED,
    format_of,
    online_step,
    padded,
    part,
    product,
    strided,
    tl,
    triton,
)

from attn_spec import kernel

TILE = {"BLOCK_H": 16, "BLOCK_K": 32}
DECLARED = {
    "dtypes": ("float32", "float16", "bfloat16"),
    "contract": "fused",
    "conventions": {"unused": "unread"},
    "presentation": "mla_decode",
}


@part
def columns(tensor, rows, first, c, inside, N: tl.constexpr):
    """Load N columns from the column ``first`` on, of rows at offsets of 64 bits; 0 where rows are not ``inside``."""
    base, strides = tensor
    at = base + rows[:, None] + (first + c.to(tl.int64))[None, :] * strides[-1]
    return tl.load(at, mask=inside[:, None] & (c[None, :] < N), other=0)


@triton.jit
def forward(
    q, kv, out, lse, table, row, lengths, scale, Hq, D: tl.constexpr, Dv: tl.constexpr, SIZE: tl.constexpr,
    FORMAT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [BLOCK_H, Dv] and lse [BLOCK_H] of sequence program_id(0) and head tile program_id(1)."""
    b, h = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    e, c, r = tl.load(lengths + b), tl.arange(0, padded(Dv)), tl.arange(0, padded(D - Dv))
    heads = b * q[1][0] + h.to(tl.int64) * q[1][1]
    q_nope, q_pe = columns(q, heads, 0, c, h < Hq, Dv), columns(q, heads, Dv, r, h < Hq, D - Dv)
    m, l = tl.full([BLOCK_H], -float("inf"), tl.float32), tl.full([BLOCK_H], 0, tl.float32)
    acc = tl.full([BLOCK_H, padded(Dv)], 0, tl.float32)
    for tile in range(0, e, BLOCK_K):
        j = tile + tl.arange(0, BLOCK_K)
        page = tl.load(table + b * row + j // SIZE, mask=j < e, other=0).to(tl.int64)
        keys = page * kv[1][0] + (j % SIZE).to(tl.int64) * kv[1][1]
        ckv, kpe = columns(kv, keys, 0, c, j < e, Dv), columns(kv, keys, Dv, r, j < e, D - Dv)
        s = product(q_pe, tl.trans(kpe), product(q_nope, tl.trans(ckv), None, FORMAT), FORMAT) * scale
        m, l, alpha, p = online_step(tl.where(j[None, :] < e, s, -float("inf")), m, l)
        acc = product(p, ckv, acc * alpha[:, None], FORMAT)
    l = tl.where(l == 0, 1.0, l)  # a sequence without keys: out = 0 and lse = -inf
    found = tl.div_rn(acc, l[:, None]).to(out.dtype.element_ty)
    place = b * Hq + h.to(tl.int64)
    tl.store(out + place[:, None] * Dv + c[None, :], found, mask=(h[:, None] < Hq) & (c[None, :] < Dv))
    tl.store(lse + place, m + tl.log(l), mask=h < Hq)


@kernel(
    framework="torch",
    supports=("gqa", "empty", "lse"),
    devices=("cuda", "cpu") if INTERPRETED else ("cuda",),
    slowness=32 if INTERPRETED else 1,
    signatures=None if INTERPRETED else 4,
    **{**DECLARED, "conventions": {"unused": "unread", "empty_row": "zero"}},
)
def triton_decode(q, kv, *, block_table, seqused_k, head_dim_v, scale):
    """Map q [B, Hq, D] and a cache [pages, page size, 1, D] to out [B, Hq, Dv], lse [B, Hq]."""
    (B, Hq, D), (_, size, _, _) = q.shape, kv.shape
    given = {"q": strided(q), "kv": strided(kv)}
    out = given["kv"][0].new_empty(B, Hq, head_dim_v)
    lse = torch.empty(B, Hq, device=q.device)
    given |= {"out": out, "lse": lse, "table": block_table, "row": block_table.stride(0), "lengths": seqused_k}
    given |= {"scale": scale, "Hq": Hq, "D": D, "Dv": head_dim_v, "SIZE": size, "FORMAT": format_of(q), **TILE}
    with torch.cuda.device_of(q), np.errstate(over="ignore", invalid="ignore"):
        if B * Hq:
            forward[B, triton.cdiv(Hq, TILE["BLOCK_H"])](**given)
    return out.to(q.dtype), lse


@kernel(framework="jax", supports=("gqa", "lse", "backward"), least_keys=1, signatures=2, **DECLARED)
@partial(jax.jit, static_argnames=("head_dim_v", "scale"))
def jax_decode(q, kv, *, block_table, seqused_k, head_dim_v, scale):
    """Map q [B, Hq, D] and a cache [pages, page size, 1, D] to out [B, Hq, Dv], lse [B, Hq]; in float32 throughout."""
    keys = kv[block_table].reshape(q.shape[0], -1, q.shape[-1])
    seen = jnp.arange(keys.shape[1]) < seqused_k[:, None]
    keys = jnp.where(seen[..., None], keys, 0).astype(jnp.float32)
    exact = {"precision": jax.lax.Precision.HIGHEST}
    scores = jnp.einsum("bhd,bkd->bhk", q.astype(jnp.float32), keys, **exact) * scale
    scores = jnp.where(seen[:, None], scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - lse[..., None])
    return jnp.einsum("bhk,bkc->bhc", weights, keys[..., :head_dim_v], **exact).astype(q.dtype), lse

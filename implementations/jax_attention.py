"""Attention in JAX: the library's own function, and a tiled one of a page.

Compiled anew for every shape: each operation of the first, the second as a whole. Gradients are those of ``jax.vjp``.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_spec import kernel
from attn_spec.contract.presets import EAGER

from .jax_rotary import turned
from .lengths import LENGTHS
from .rotary import OPTIONS as ROTARY

#: Keys in a tile.
TILE = 32


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    presentation="BSHD",
    contract=replace(EAGER, softmax="work"),
    supports=("scale", "causal", "mask", "bias", *LENGTHS, "gqa", "cross", "backward"),
    conventions={"empty_row": "mean_of_v", "empty_row_by_bias": "nan", "unused_rows": "zero"},
    least_keys=1,
    signatures=2,
)
def library(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Array | None = None,
    bias: Array | None = None,
    seqused_q: Array | None = None,
    seqused_k: Array | None = None,
) -> Array:
    """Call ``jax.nn.dot_product_attention``, which stores what gradients pass through in the inputs' format.

    The library gives a masked key a large negative score, so that a row that sees no key has the mean of all values.
    A row whose keys all have a bias of -inf is NaN.

    Known defect: inside ``jax.jit`` on a CPU the library refuses float16, and bfloat16 for a single query and key.
    It names a precision and falls back where the device has none, but learns that only after all is compiled.

    A sequence without keys would have the mean of what lies behind it, so none is asked for.

    A GPU multiplies float32 as tf32 unless a precision is asked for; here it is "highest".
    """
    with jax.default_matmul_precision("highest"):
        return jax.nn.dot_product_attention(
            *(q, k, v, bias, mask),
            scale=scale,
            is_causal=causal,
            query_seq_lengths=None if seqused_q is None else seqused_q.reshape(-1).astype(jnp.int32),
            key_value_seq_lengths=None if seqused_k is None else seqused_k.reshape(-1).astype(jnp.int32),
        )


@kernel(
    framework="jax",
    dtypes=("float32", "float16", "bfloat16"),
    supports=("scale", "causal", *ROTARY, "gqa", "dv", "cross", "lse", "backward", "lse_backward"),
    signatures=2,
)
@partial(jax.jit, static_argnames=("scale", "causal", "rotary", "rotary_base", "rotary_dim"))
def tiled(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float | None = None,
    causal: bool = False,
    rotary: str | None = None,
    rotary_base: float | None = None,
    rotary_dim: int | None = None,
    rotary_query_positions: Array | None = None,
    rotary_key_positions: Array | None = None,
) -> tuple[Array, Array]:
    """Fold tiles of keys by an online softmax; the backward pass computes the weights again from the log-sum-exp."""
    turn: Any = {"rotary": rotary, "rotary_base": rotary_base, "rotary_dim": rotary_dim}
    q, k = turned(q, rotary_query_positions, **turn), turned(k, rotary_key_positions, **turn)
    return _attention(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, causal)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _attention(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
    return _forward(q, k, v, scale, causal)[0]


def _tiles(x: Array) -> Array:
    """Copy [B, H, S, D] to [tiles, B, H, TILE, D], with zeros after the end."""
    B, H, S, D = x.shape
    tiles = -(-S // TILE)
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, tiles * TILE - S), (0, 0)))
    return padded.reshape(B, H, tiles, TILE, D).transpose(2, 0, 1, 3, 4)


def _tiles_of(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Return the columns of each tile, its keys and its values, for every query head."""
    k_tiles, v_tiles = (_tiles(_every_head(x, q.shape[1])) for x in (k, v))
    return jnp.arange(len(k_tiles) * TILE).reshape(-1, TILE), k_tiles, v_tiles


def _product(subscripts: str, x: Array, y: Array) -> Array:
    return jnp.einsum(subscripts, x, y, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _seen(queries: int, columns: Array, keys: int, causal: bool) -> Array:
    """Return whether each query sees each key of ``columns``, bool [Sq, TILE]; False past the last key."""
    seen = jnp.broadcast_to(columns < keys, (queries, TILE))
    return seen & (columns <= jnp.arange(queries)[:, None]) if causal else seen


def _every_head(x: Array, heads: int) -> Array:
    """Repeat each kv head for the query heads that read it: [B, Hkv, ..] to [B, Hq, ..]."""
    return jnp.repeat(x, heads // x.shape[1], axis=1)


def _of_group(x: Array, like: Array) -> Array:
    """Join the tiles of [tiles, B, Hq, TILE, D] and sum over each head group before storing: [B, Hkv, Sk, D]."""
    B, heads, keys, _ = like.shape
    joined = x.transpose(1, 2, 0, 3, 4).reshape(B, heads, x.shape[2] // heads, -1, x.shape[-1])
    return joined.sum(axis=2)[:, :, :keys].astype(like.dtype)


def _forward(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    rows = q.shape[:3]

    def visit(state: tuple[Array, ...], tile: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        m, l, acc = state
        columns, k_tile, v_tile = tile
        seen = _seen(q.shape[2], columns, k.shape[2], causal)
        s = jnp.where(seen, scale * _product("bhid,bhjd->bhij", q, k_tile), -jnp.inf)
        m_new = jnp.maximum(m, s.max(-1))
        reference = jnp.where(m_new == -jnp.inf, 0, m_new)
        p, alpha = jnp.exp(s - reference[..., None]), jnp.exp(m - reference)
        weighted = _product("bhij,bhjc->bhic", p.astype(v.dtype), v_tile)
        return (m_new, alpha * l + p.sum(-1), alpha[..., None] * acc + weighted), None

    start = (jnp.full(rows, -jnp.inf), jnp.zeros(rows), jnp.zeros((*rows, v.shape[3])))
    (m, l, acc), _ = lax.scan(visit, start, _tiles_of(q, k, v))
    out = (acc / jnp.where(l == 0, 1, l)[..., None]).astype(q.dtype)
    lse = jnp.where(l == 0, -jnp.inf, m + jnp.log(l))
    return (out, lse), (q, k, v, out, lse)


def _backward(scale: float, causal: bool, saved: tuple[Array, ...], sent: tuple[Array, Array]) -> tuple[Array, ...]:
    q, k, v, out, lse = saved
    dout, dlse = sent
    delta = (dout.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1) - dlse
    finite = jnp.where(lse == -jnp.inf, 0, lse)[..., None]

    def visit(dq: Array, tile: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        columns, k_tile, v_tile = tile
        seen = _seen(q.shape[2], columns, k.shape[2], causal)
        p = jnp.where(seen, jnp.exp(scale * _product("bhid,bhjd->bhij", q, k_tile) - finite), 0)
        dS = (p * (_product("bhic,bhjc->bhij", dout, v_tile) - delta[..., None])).astype(q.dtype)
        dv = _product("bhij,bhic->bhjc", p.astype(q.dtype), dout)
        return dq + _product("bhij,bhjd->bhid", dS, k_tile), (_product("bhij,bhid->bhjd", dS, q), dv)

    dq, (dk, dv) = lax.scan(visit, jnp.zeros(q.shape), _tiles_of(q, k, v))
    return (scale * dq).astype(q.dtype), _of_group(scale * dk, k), _of_group(dv, v)


_attention.defvjp(_forward, _backward)

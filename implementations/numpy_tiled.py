"""Attention without the score matrix: online softmax over tiles of keys, in NumPy.

Each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalised output acc. When a
tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Algorithm 1 of Milakov and
Gimelshein, "Online normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention.

The answer must not depend on the size of the tiles nor on the order in which they are visited, up to rounding.
"""

import math

import numpy as np

from attn_spec import kernel

SUPPORTS = ("causal", "causal_alignment", "window", "scale", "mask", "bias", "softcap", "gqa", "dv", "cross",
            "empty", "lse")
CONVENTIONS = dict(empty_row="zero", empty_lse="-inf", masked_nonfinite="excluded", causal_alignment="top_left",
                   deterministic=True, batch_invariant=True)


def tiles(length, size, reverse=False):
    """Slices of at most `size` that cover range(length), from either end."""
    slices = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    return slices[::-1] if reverse else slices


def attended(shape, rows, cols, offset, causal, window, mask, bias):
    """Boolean [B, Hq, rows, cols]: may query i attend key j? The diagonal is j = i + offset."""
    diagonal = np.arange(rows.start, rows.stop)[:, None] + offset
    j = np.arange(cols.start, cols.stop)
    left, right = window or (None, None)
    allowed = np.ones((*shape, len(diagonal), len(j)), dtype=bool)
    if causal:
        allowed &= j <= diagonal
    if left is not None:
        allowed &= j >= diagonal - left
    if right is not None:
        allowed &= j <= diagonal + right
    if mask is not None:
        allowed &= mask[..., rows, cols]
    if bias is not None:
        allowed &= bias[..., rows, cols] != -np.inf
    return allowed


def weighted_sum(p, v, allowed):
    """p v, in which a key that is not attended has no say even when its value is Inf or NaN (0 * NaN is NaN)."""
    poisoned = ~np.isfinite(v).all(axis=-1, keepdims=True)
    out = p @ np.where(poisoned, 0, v)
    for j in np.flatnonzero(poisoned.any(axis=(0, 1))):
        contribution = p[..., j, None] * v[..., None, j, :]
        out += np.where(allowed[..., j, None] & poisoned[..., None, j, :], contribution, 0)
    return out


def online_softmax(score_tiles, acc, storage):
    """Fold (s, allowed, v) tiles into out and lse. `acc` holds zeros [B, Hq, rows, Dv] in the arithmetic dtype."""
    m = np.full((*acc.shape[:-1], 1), -np.inf, dtype=acc.dtype)
    l = np.zeros_like(m)
    for s, allowed, v in score_tiles:
        s = np.where(allowed, s, -np.inf)
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        reference = np.where(m_new == -np.inf, 0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = np.exp(m - reference)
        p = np.exp(s - reference)
        l = l * alpha + p.sum(axis=-1, keepdims=True)
        p = p.astype(storage).astype(acc.dtype)  # what a matrix unit would be fed
        acc = acc * alpha + weighted_sum(p, v, allowed)
        m = m_new
    empty = l == 0
    l = np.where(empty, 1, l)
    lse = np.where(empty, -np.inf, np.where(empty, 0, m) + np.log(l))
    return (acc / l).astype(storage), lse[..., 0]


def tiled_attention(q, k, v, *, q_tile=32, kv_tile=16, reverse=False, scale=None, causal=False,
                    causal_alignment="top_left", window=None, mask=None, bias=None, softcap=None):
    """q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] -> out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    (B, Hq, Sq, D), (_, Hkv, Sk, Dv) = q.shape, v.shape
    storage = q.dtype
    arithmetic = np.promote_types(storage, np.float32)
    scale = 1 / math.sqrt(D) if scale is None else scale
    offset = Sk - Sq if causal_alignment == "bottom_right" else 0
    mask, bias = (x if x is None else np.broadcast_to(x, (B, Hq, Sq, Sk)) for x in (mask, bias))
    q = q.astype(arithmetic, order="C")  # a contiguous copy: the layout of a view must not reach the BLAS
    k, v = (np.repeat(x.astype(arithmetic), Hq // Hkv, axis=1) for x in (k, v))  # head h reads h // (Hq // Hkv)

    def score_tiles(rows):
        for cols in tiles(Sk, kv_tile, reverse):
            s = scale * (q[..., rows, :] @ k[..., cols, :].swapaxes(-1, -2))
            if softcap is not None:
                s = softcap * np.tanh(s / softcap)
            if bias is not None:
                s = s + bias[..., rows, cols].astype(arithmetic)
            yield s, attended((B, Hq), rows, cols, offset, causal, window, mask, bias), v[..., cols, :]

    out = np.empty((B, Hq, Sq, Dv), dtype=storage)
    lse = np.empty((B, Hq, Sq), dtype=arithmetic)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range, answer Inf or NaN as hardware does
        for rows in tiles(Sq, q_tile):
            acc = np.zeros((B, Hq, rows.stop - rows.start, Dv), dtype=arithmetic)
            out[..., rows, :], lse[..., rows] = online_softmax(score_tiles(rows), acc, storage)
    return out, lse


@kernel(framework="numpy", dtypes=("float64", "float32", "float16"), contract="fused", supports=SUPPORTS,
        conventions=CONVENTIONS)
def attention(q, k, v, *, scale=None, causal=False, causal_alignment="top_left", window=None, mask=None,
              bias=None, softcap=None):
    """Tiled attention, first key tile first."""
    return tiled_attention(q, k, v, scale=scale, causal=causal, causal_alignment=causal_alignment, window=window,
                           mask=mask, bias=bias, softcap=softcap)


@kernel(framework="numpy", dtypes=("float64", "float32", "float16"), contract="fused", supports=SUPPORTS,
        conventions=CONVENTIONS)
def attention_reversed(q, k, v, *, scale=None, causal=False, causal_alignment="top_left", window=None, mask=None,
                       bias=None, softcap=None):
    """Tiled attention, last key tile first: under a causal mask most rows begin with fully masked tiles."""
    return tiled_attention(q, k, v, reverse=True, scale=scale, causal=causal, causal_alignment=causal_alignment,
                           window=window, mask=mask, bias=bias, softcap=softcap)

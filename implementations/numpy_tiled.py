"""Attention without the score matrix: online softmax over tiles of keys, in NumPy.

Each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalized output acc. When a
tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention (arXiv 2205.14135).

The answer must not depend on the size of the tiles nor on the order in which they are visited, up to rounding.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from attn_spec import kernel

Tile = tuple[np.ndarray, np.ndarray, np.ndarray]  # s and allowed [B, Hq, rows, cols], v [B, Hq, cols, Dv]

DECLARED: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": ("float64", "float32", "float16"),
    "contract": {
        "float64": "fp64",
        "float32": "fused",
        "float16": "fused",
    },
    "supports": (
        *("scale", "causal", "causal_alignment", "window", "mask", "bias", "softcap"),
        *("gqa", "dv", "cross", "empty", "lse"),
    ),
    "conventions": {"empty_row": "zero", "masked_nonfinite": "excluded", "batch_invariant": True},
}


def slices(length: int, size: int, *, reverse: bool = False) -> list[slice]:
    """Slices of at most `size` that cover range(length), from either end."""
    forward = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    return forward[::-1] if reverse else forward


def weighted_sum(p: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Multiply p v so that a hidden key has no say even if its value is Inf or NaN (0 * NaN is NaN)."""
    poisoned = ~np.isfinite(v)
    out = p @ np.where(poisoned, 0, v)
    for j in np.flatnonzero(poisoned.any(axis=(0, 1, 3))):
        contribution = p[..., j, None] * v[..., None, j, :]
        out += np.where(allowed[..., j, None] & poisoned[..., None, j, :], contribution, 0)
    return out


def online_softmax(tiles: Iterable[Tile], acc: np.ndarray, stored: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Fold the tiles into out and lse; `acc` comes as zeros [B, Hq, rows, Dv] in the arithmetic of the tiles."""
    m = np.full((*acc.shape[:-1], 1), -np.inf, dtype=acc.dtype)
    l = np.zeros_like(m)
    for s, allowed, v in tiles:
        live = np.where(allowed, s, -np.inf)
        m_new = np.maximum(m, live.max(axis=-1, keepdims=True))
        reference = np.where(m_new == -np.inf, 0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = np.exp(m - reference)
        p = np.exp(live - reference)
        l = l * alpha + p.sum(axis=-1, keepdims=True)
        acc = acc * alpha + weighted_sum(p.astype(stored).astype(acc.dtype), v, allowed)
        m = m_new
    l = np.where(l == 0, 1, l)  # a query that saw no key: out = 0 and lse = -inf
    return (acc / l).astype(stored), (m + np.log(l))[..., 0]


def attended(
    shape: tuple[int, ...],
    rows: slice,
    cols: slice,
    *,
    offset: int,
    causal: bool,
    window: tuple[int | None, int | None] | None,
    mask: np.ndarray | None,
    bias: np.ndarray | None,
) -> np.ndarray:
    """Tell whether query i may attend key j: boolean [B, Hq, rows, cols]. The diagonal is j = i + offset."""
    diagonal = np.arange(rows.start, rows.stop)[:, None] + offset
    j = np.arange(cols.start, cols.stop)
    left, right = window or (None, None)
    allowed = np.ones(shape, dtype=bool)
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


def tiled_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    q_tile: int = 32,
    kv_tile: int = 16,
    reverse: bool = False,
    scale: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
    window: tuple[int | None, int | None] | None = None,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Attention in tiles of q_tile queries by kv_tile keys, visited from the first key or, reversed, the last."""
    (B, Hq, Sq, D), (_, Hkv, Sk, Dv), stored = q.shape, v.shape, q.dtype
    scale = 1 / math.sqrt(D) if scale is None else scale
    offset = Sk - Sq if causal_alignment == "bottom_right" else 0
    mask, bias = (None if x is None else np.broadcast_to(x, (B, Hq, Sq, Sk)) for x in (mask, bias))
    # Contiguous copies, so that the memory layout of the caller's views cannot reach the BLAS.
    arithmetic = np.promote_types(stored, np.float32)
    q = q.astype(arithmetic, order="C")
    k, v = (np.repeat(x.astype(arithmetic), Hq // Hkv, axis=1) for x in (k, v))  # head h reads h // (Hq // Hkv)

    def tile(rows: slice, cols: slice) -> Tile:
        s = scale * (q[..., rows, :] @ k[..., cols, :].swapaxes(-1, -2))
        if softcap is not None:
            s = softcap * np.tanh(s / softcap)
        if bias is not None:
            s = s + bias[..., rows, cols].astype(arithmetic)
        allowed = attended(s.shape, rows, cols, offset=offset, causal=causal, window=window, mask=mask, bias=bias)
        return s, allowed, v[..., cols, :]

    out = np.empty((B, Hq, Sq, Dv), dtype=stored)
    lse = np.empty((B, Hq, Sq), dtype=arithmetic)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range, answer Inf or NaN as hardware does
        for rows in slices(Sq, q_tile):
            tiles = (tile(rows, cols) for cols in slices(Sk, kv_tile, reverse=reverse))
            acc = np.zeros(out[..., rows, :].shape, dtype=arithmetic)
            out[..., rows, :], lse[..., rows] = online_softmax(tiles, acc, stored)
    return out, lse


@kernel(**DECLARED)
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """From q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    return tiled_attention(q, k, v, **options)


@kernel(**DECLARED)
def attention_reversed(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Visit the last key tile first: under a causal mask, most rows then begin with tiles that are all hidden."""
    return tiled_attention(q, k, v, reverse=True, **options)

"""Attention without the score matrix, forward and backward, in tiles of queries by keys, in NumPy.

Forward: each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalized output acc. When
a tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention (arXiv 2205.14135).

Backward: no array of size Sq x Sk was stored, so each tile of weights is computed again, p = exp(s - lse), and

    dp = dout v^T    delta = rowsum(dout * out) - dlse    da = p (dp - delta)    ds = da (1 - tanh^2) under a softcap
    dq = scale ds k    dk = scale ds^T q    dv = p^T dout    dbias = da summed over the axes the bias was broadcast on

as in appendix B.2 of FlashAttention; dropout multiplies p, in p v and p^T dout, and dp by c = keep / (1 - dropout_p). p
and ds are rounded to the dtype of q before they are multiplied.

Both passes skip a tile whose keys no query of the tile may attend to by its position (``visibility``). The answer must
not depend on the size of the tiles nor on the order in which they are visited, up to rounding.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from attn_spec import kernel

from .lengths import PADDED, behind_padding, first_aligned, within
from .rotary import OPTIONS as ROTARY
from .rotary import places, turned_array
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

# Live scores, allowed and c [B, Hq, rows, cols], v [B, Hq, cols, Dv].
Tile = tuple[np.ndarray, np.ndarray, np.ndarray | float, np.ndarray]

DECLARED: dict[str, Any] = {
    "framework": "numpy",
    "dtypes": ("float64", "float32", "float16"),
    "contract": {
        "float64": "fp64",
        "float32": "fused",
        "float16": "fused",
    },
    "supports": (
        *("scale", *BY_POSITION, "mask", "bias", "alibi_slopes", "softcap", *ROTARY),
        *("dropout_keep", "dropout_p"),
        *PADDED,
        *("gqa", "dv", "cross", "empty", "lse", "lse_backward"),
    ),
    "conventions": {
        "empty_row": "zero",
        "masked_nonfinite": "excluded",
        "batch_invariant": True,
        "unused": "unread",
        "unused_rows": "zero",
    },
}


def wide(x: np.ndarray) -> np.ndarray:
    """Copy x into the arithmetic of its dtype; contiguous, so that no layout of a view can reach the BLAS."""
    return x.astype(np.promote_types(x.dtype, np.float32), order="C")


def slices(length: int, size: int, *, reverse: bool = False) -> list[slice]:
    """Return slices of at most `size` that cover range(length), from either end."""
    forward = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    return forward[::-1] if reverse else forward


def weighted_sum(p: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Multiply p v so that a masked key contributes 0 even if its value is Inf or NaN (0 * NaN is NaN)."""
    poisoned = ~np.isfinite(v)
    out = p @ np.where(poisoned, 0, v)
    for j in np.flatnonzero(poisoned.any(axis=(0, 1, 3))):
        contribution = p[..., j, None] * v[..., None, j, :]
        out += np.where(allowed[..., j, None] & poisoned[..., None, j, :], contribution, 0)
    return out


class Scores:
    """The scores of any tile of queries and keys, which both passes compute and neither stores."""

    def __init__(
        self,
        q: np.ndarray,
        k: np.ndarray,
        *,
        scale: float | None = None,
        causal_alignment: str = "top_left",
        mask: np.ndarray | None = None,
        seqused_q: np.ndarray | None = None,
        seqused_k: np.ndarray | None = None,
        leftpad_k: np.ndarray | None = None,
        bias: np.ndarray | None = None,
        alibi_slopes: np.ndarray | None = None,
        softcap: float | None = None,
        rotary: str | None = None,
        rotary_base: float | None = None,
        rotary_dim: int | None = None,
        rotary_query_positions: np.ndarray | None = None,
        rotary_key_positions: np.ndarray | None = None,
        dropout_keep: np.ndarray | None = None,
        dropout_p: float | None = None,
        **by_position: Any,
    ) -> None:
        (B, Hq, Sq, D), (_, Hkv, Sk, _) = q.shape, k.shape
        self.scale = 1 / math.sqrt(D) if scale is None else scale
        self.offset = first_aligned(causal_alignment, Sq, Sk, seqused_q, seqused_k, leftpad_k)
        self.seqused_q, self.seqused_k, self.leftpad_k = seqused_q, seqused_k, leftpad_k
        self.padding = 0 if leftpad_k is None else leftpad_k
        self.turn: Any = {"rotary": rotary, "rotary_base": rotary_base, "rotary_dim": rotary_dim}
        self.positions = {
            "q": places(rotary_query_positions, self.offset, Sq),
            "k": places(rotary_key_positions, 0, Sk),
        }
        self.q, k = self.turned("q", wide(q)), self.turned("k", wide(k))
        self.k = np.repeat(k, Hq // Hkv, axis=1)  # query head h reads head h // (Hq // Hkv)
        self.band = band(**by_position)
        self.mask, self.bias, self.keep = (
            None if x is None else np.broadcast_to(x, (B, Hq, Sq, Sk)) for x in (mask, bias, dropout_keep)
        )
        self.kept = 1 / (1 - (dropout_p or 0.0))
        self.slopes = None if alibi_slopes is None else wide(alibi_slopes)
        self.softcap = softcap

    def turned(self, side: str, x: np.ndarray, *, back: bool = False) -> np.ndarray:
        """Turn q or k, or its gradient, by its positions."""
        return turned_array(x, self.positions[side], **self.turn, back=back)

    def tile(self, rows: slice, cols: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray | float]:
        """Return scores (-inf where masked), allowed keys, and ds/dx for x before the softcap: [B, Hq, rows, cols]."""
        s, slope = self.scale * (self.q[..., rows, :] @ self.k[..., cols, :].swapaxes(-1, -2)), 1.0
        allowed = self.attended(s.shape, rows, cols)
        if self.softcap is not None:
            t = np.tanh(s / self.softcap)
            s, slope = self.softcap * t, np.where(allowed, 1 - t * t, 0)
        if self.bias is not None:
            s = s + self.bias[..., rows, cols].astype(s.dtype)
        if self.slopes is not None:
            diagonal, j = self.places(rows, cols)
            s = s - self.slopes * np.abs(diagonal - j).astype(s.dtype)
        return np.where(allowed, s, -np.inf), allowed, slope

    def places(self, rows: slice, cols: slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the key i + offset that each query is aligned with, [.., rows, 1], and the keys, [cols]."""
        return np.arange(rows.start, rows.stop)[:, None] + self.offset, np.arange(cols.start, cols.stop)

    def reached(self, rows: slice, cols: Iterable[slice]) -> list[slice]:
        """Return the tiles of keys of which some query of ``rows`` may attend to a key; the others are skipped."""
        first, last = rows.start + self.offset, rows.stop - 1 + self.offset
        return [each for each in cols if self.band.reaches(first, last, each, self.padding)]

    def factors(self, rows: slice, cols: slice) -> np.ndarray | float:
        """Return the factors c [B, Hq, rows, cols] by which dropout multiplies weights; 1 without dropout."""
        return 1.0 if self.keep is None else (self.keep[..., rows, cols] * self.kept).astype(self.q.dtype)

    def attended(self, shape: tuple[int, ...], rows: slice, cols: slice) -> np.ndarray:
        """Return whether query i may attend key j: boolean [B, Hq, rows, cols]."""
        diagonal, j = self.places(rows, cols)
        allowed = np.broadcast_to(self.band.sees(diagonal, j, self.padding), shape).copy()
        allowed &= within(np.arange(rows.start, rows.stop)[:, None], self.seqused_q)
        allowed &= within(j, self.seqused_k) & behind_padding(j, self.leftpad_k)
        if self.mask is not None:
            allowed &= self.mask[..., rows, cols]
        if self.bias is not None:
            allowed &= self.bias[..., rows, cols] != -np.inf
        return allowed


def online_softmax(tiles: Iterable[Tile], acc: np.ndarray, stored: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Fold the tiles into out and lse; `acc` comes as zeros [B, Hq, rows, Dv] in the arithmetic of the tiles."""
    m = np.full((*acc.shape[:-1], 1), -np.inf, dtype=acc.dtype)
    l = np.zeros_like(m)
    for s, allowed, c, v in tiles:
        m_new = np.maximum(m, s.max(axis=-1, keepdims=True))
        reference = np.where(m_new == -np.inf, 0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = np.exp(m - reference)
        p = np.exp(s - reference)
        l = l * alpha + p.sum(axis=-1, keepdims=True)
        acc = acc * alpha + weighted_sum((c * p).astype(stored).astype(acc.dtype), v, allowed)
        m = m_new
    l = np.where(l == 0, 1, l)  # a query that saw no key: out = 0 and lse = -inf
    return (acc / l).astype(stored), (m + np.log(l))[..., 0]


@np.errstate(over="ignore", invalid="ignore")  # beyond the range, answer Inf or NaN as hardware does
def tiled_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    q_tile: int = 32,
    kv_tile: int = 16,
    reverse: bool = False,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute attention in tiles of q_tile queries by kv_tile keys, from the first key or, reversed, from the last."""
    (B, Hq, Sq, _), (_, Hkv, Sk, Dv), stored = q.shape, v.shape, q.dtype
    scores, v = Scores(q, k, **options), np.repeat(wide(v), Hq // Hkv, axis=1)

    def tile(rows: slice, cols: slice) -> Tile:
        s, allowed, _ = scores.tile(rows, cols)
        return s, allowed, scores.factors(rows, cols), v[..., cols, :]

    out = np.empty((B, Hq, Sq, Dv), dtype=stored)
    lse = np.empty((B, Hq, Sq), dtype=v.dtype)
    for rows in slices(Sq, q_tile):
        tiles = (tile(rows, cols) for cols in scores.reached(rows, slices(Sk, kv_tile, reverse=reverse)))
        acc = np.zeros(out[..., rows, :].shape, dtype=v.dtype)
        out[..., rows, :], lse[..., rows] = online_softmax(tiles, acc, stored)
    return out, lse


def add_to(dbias: np.ndarray, da: np.ndarray, rows: slice, cols: slice) -> None:
    """Add da [B, Hq, rows, cols] to its part of dbias, summed over the axes along which the bias is broadcast."""
    shared = tuple(axis for axis, length in enumerate(dbias.shape) if length == 1)
    part = (slice(None) if axis in shared else at for axis, at in ((2, rows), (3, cols)))
    dbias[:, :, *part] += da.sum(axis=shared, keepdims=True)


@np.errstate(over="ignore", invalid="ignore")
def tiled_gradients(  # noqa: PLR0917  (the arguments of every backward pass)
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    *,
    dlse: np.ndarray | None = None,
    q_tile: int = 32,
    kv_tile: int = 16,
    reverse: bool = False,
    **options: Any,
) -> tuple[np.ndarray, ...]:
    """Compute the gradients (dq, dk, dv) and, if there is a bias, dbias, each of the shape and dtype of its input."""
    (B, Hkv, Sk, _), (_, Hq, Sq, _), stored = k.shape, q.shape, q.dtype
    scores, v, dout = Scores(q, k, **options), np.repeat(wide(v), Hq // Hkv, axis=1), wide(dout)
    delta = (dout * wide(out)).sum(axis=-1, keepdims=True) - (0 if dlse is None else dlse[..., None])
    dq, dk, dv = np.zeros_like(scores.q), np.zeros_like(scores.k), np.zeros_like(v)
    bias = options.get("bias")
    dbias = None if bias is None else np.zeros(bias.shape, dtype=dq.dtype)

    for cols in slices(Sk, kv_tile, reverse=reverse):
        for rows in slices(Sq, q_tile):
            if not scores.reached(rows, [cols]):
                continue
            s, allowed, slope = scores.tile(rows, cols)
            seen = allowed.swapaxes(-1, -2)
            p = np.where(allowed, np.exp(s - lse[..., rows, None]), 0)  # in an empty row, exp(-inf - -inf) is NaN
            c = scores.factors(rows, cols)
            dp = c * (dout[..., rows, :] @ v[..., cols, :].swapaxes(-1, -2))
            da = np.where(allowed, p * (dp - delta[..., rows, :]), 0)
            p, ds = (x.astype(stored).astype(dq.dtype) for x in (c * p, da * slope))
            dq[..., rows, :] += weighted_sum(ds, scores.k[..., cols, :], allowed)
            dk[..., cols, :] += weighted_sum(ds.swapaxes(-1, -2), scores.q[..., rows, :], seen)
            dv[..., cols, :] += weighted_sum(p.swapaxes(-1, -2), dout[..., rows, :], seen)
            if dbias is not None:
                add_to(dbias, da, rows, cols)

    dk, dv = (x.reshape(B, Hkv, Hq // Hkv, *x.shape[2:]).sum(axis=2) for x in (dk, dv))
    dq, dk = scores.turned("q", dq, back=True), scores.turned("k", dk, back=True)
    found = (scores.scale * dq, scores.scale * dk, dv) + (() if dbias is None else (dbias,))
    return tuple(x.astype(stored) for x in found)


@kernel(**DECLARED)
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    return tiled_attention(q, k, v, **options)


@kernel(**DECLARED)
def attention_reversed(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Visit the last key tile first: under a causal mask, most rows then begin with tiles of masked keys."""
    return tiled_attention(q, k, v, reverse=True, **options)


attention.backward(tiled_gradients)


@attention_reversed.backward
def gradients_reversed(*saved: np.ndarray, **options: Any) -> tuple[np.ndarray, ...]:
    """Visit the last key tile first, as the forward pass did."""
    return tiled_gradients(*saved, reverse=True, **options)

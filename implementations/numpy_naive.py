"""Softmax attention as written on the board, in NumPy: the whole score matrix at once.

    s = scale q k^T          [B, Hq, Sq, Sk]
    s = softcap tanh(s / softcap) + bias
    p = softmax(s)           over the keys that the query may attend, and a sink if there is one
    o = p v                  [B, Hq, Sq, Dv]

s, p and o are each stored in the dtype of q (the "eager" contract). float16 is a storage format only, as it is on
hardware: the arithmetic between two stores is done in float32.
"""

import math
from typing import Any

import numpy as np

from attn_spec import Contract, kernel

from .lengths import LENGTHS, first_aligned, within
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

OPTIONS = ("scale", *BY_POSITION, "mask", "bias", "softcap", "sinks", *LENGTHS)
SHAPES = ("gqa", "dv", "cross", "empty")


def wide(x: np.ndarray) -> np.ndarray:
    """Copy x into the arithmetic that belongs to its dtype: float64 stays, everything else becomes float32."""
    return x.astype(np.promote_types(x.dtype, np.float32), order="C")


def attended(
    shape: tuple[int, ...],
    *,
    causal_alignment: str = "top_left",
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    seqused_q: np.ndarray | None = None,
    seqused_k: np.ndarray | None = None,
    **by_position: Any,
) -> np.ndarray:
    """Return whether query i may attend key j: boolean [B, Hq, Sq, Sk]."""
    Sq, Sk = shape[-2:]
    i, j = np.arange(Sq)[:, None], np.arange(Sk)
    diagonal = i + first_aligned(causal_alignment, Sq, Sk, seqused_q, seqused_k)
    allowed = np.broadcast_to(band(**by_position).sees(diagonal, j), shape).copy()
    allowed &= within(i, seqused_q) & within(j, seqused_k)
    if mask is not None:
        allowed &= mask
    if bias is not None:
        allowed &= bias != -np.inf
    return allowed


def scores(q: np.ndarray, k: np.ndarray, *, scale: float, softcap: float | None, bias: np.ndarray | None) -> np.ndarray:
    """Compute the scores before the mask, [B, Hq, Sq, Sk], in the arithmetic of q and k."""
    s = scale * (q @ k.swapaxes(-1, -2))
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + wide(bias)
    return s


def softmax(s: np.ndarray, allowed: np.ndarray, sinks: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities and log-sum-exp over the allowed keys. A row without one has p = 0 and lse = -inf.

    A sink [1, Hq, 1, 1] is one more column of the scores, whose probability is dropped.
    """
    s = np.where(allowed, s, -np.inf)
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks, (*s.shape[:3], 1))], axis=-1, dtype=s.dtype)
    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(m == -np.inf, 0, m)  # an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN
    p = np.exp(s - m)
    l = p.sum(axis=-1, keepdims=True)
    empty = l == 0
    l = np.where(empty, 1, l)
    lse = np.where(empty, -np.inf, m + np.log(l))
    return (p / l)[..., : allowed.shape[-1]], lse[..., 0]


def weighted_sum(p: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Multiply p v so that a masked key contributes 0 even if its value is Inf or NaN (0 * NaN is NaN)."""
    poisoned = ~np.isfinite(v)
    out = p @ np.where(poisoned, 0, v)
    for j in np.flatnonzero(poisoned.any(axis=(0, 1, 3))):
        contribution = p[..., j, None] * v[..., None, j, :]
        out += np.where(allowed[..., j, None] & poisoned[..., None, j, :], contribution, 0)
    return out


@kernel(
    framework="numpy",
    dtypes=("float64", "float32", "float16"),
    contract={
        "float64": Contract(normalize="before_product", kv_tile=None, subnormals="kept"),
        "float32": "eager",
        "float16": "eager",
    },
    supports=(*OPTIONS, *SHAPES, "lse", "mask_of_two_axes"),
    conventions={
        "empty_row": "zero",
        "masked_nonfinite": "excluded",
        "batch_invariant": True,
        "unused": "unread",
        "unused_rows": "zero",
    },
)
def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    scale: float | None = None,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    **further: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    stored = q.dtype
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    allowed = attended((*q.shape[:-1], k.shape[-2]), mask=mask, bias=bias, **further)
    group = q.shape[1] // k.shape[1]  # query head h reads key-value head h // group
    q, k, v = wide(q), np.repeat(wide(k), group, axis=1), np.repeat(wide(v), group, axis=1)

    with np.errstate(over="ignore", invalid="ignore"):  # beyond the range, answer Inf or NaN as hardware does
        s = scores(q, k, scale=scale, softcap=softcap, bias=bias).astype(stored)
        p, lse = softmax(wide(s), allowed, None if sinks is None else wide(sinks.astype(stored)))
        out = weighted_sum(wide(p.astype(stored)), v, allowed)
        return out.astype(stored), lse

"""Attention to the k keys of the largest scores, in NumPy: a selection, and softmax attention under it as a mask.

Gupta et al., "Memory-efficient transformers via top-k attention" (arXiv 2106.06899). Of equal scores the first keys are
kept, as by ``jax.lax.top_k``. Where two scores change places the selection jumps, and the output with it; so
:func:`top_k_attention` returns its selection, under which it is softmax attention. Asked for no k, all keys are kept.
"""

import math

import numpy as np

from attn_spec import Contract, kernel

from .rotary import first_position


def wide(x: np.ndarray) -> np.ndarray:
    """Copy x into the arithmetic that belongs to its dtype: float64 stays, everything else becomes float32."""
    return x.astype(np.promote_types(x.dtype, np.float32), order="C")


def selected(s: np.ndarray, allowed: np.ndarray, top_k: int) -> np.ndarray:
    """Select each query's ``top_k`` allowed keys of largest score, or all if fewer are allowed: bool [.., Sq, Sk]."""
    falling = np.argsort(-np.where(allowed, s, -np.inf), axis=-1, kind="stable")
    rank = np.argsort(falling, axis=-1, kind="stable")
    return allowed & (rank < top_k)


@np.errstate(over="ignore", invalid="ignore")  # beyond the range, answer Inf or NaN as hardware does
def top_k_attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    top_k: int,
    scale: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return out [B, Hq, Sq, Dv] and lse [B, Hq, Sq] over the selected keys, and their mask, bool [B, Hq, Sq, Sk]."""
    (Sq, D), Sk, group, stored = q.shape[2:], k.shape[2], q.shape[1] // k.shape[1], q.dtype
    q, k, v = wide(q), np.repeat(wide(k), group, axis=1), np.repeat(wide(v), group, axis=1)
    s = ((1 / math.sqrt(D) if scale is None else scale) * (q @ k.swapaxes(-1, -2))).astype(stored)
    diagonal = np.arange(Sq)[:, None] + first_position(causal_alignment, Sq, Sk)
    allowed = np.broadcast_to((np.arange(Sk) <= diagonal) | (not causal), s.shape)
    kept = selected(s, allowed if mask is None else allowed & mask, top_k)
    s = np.where(kept, wide(s), -np.inf)
    m = s.max(axis=-1, keepdims=True, initial=-np.inf)
    m = np.where(m == -np.inf, 0, m)  # an empty row: exp(-inf - 0) = 0, where -inf - -inf would be NaN
    p = np.exp(s - m)
    l = p.sum(axis=-1, keepdims=True)
    lse = np.where(l == 0, -np.inf, m + np.log(np.where(l == 0, 1, l)))
    p = wide((p / np.where(l == 0, 1, l)).astype(stored))
    return (p @ v).astype(stored), lse[..., 0], kept


@kernel(
    framework="numpy",
    dtypes=("float64", "float32", "float16"),
    contract={
        "float64": Contract(normalize="before_product", kv_tile=None, subnormals="kept"),
        "float32": "eager",
        "float16": "eager",
    },
    supports=("scale", "causal", "causal_alignment", "mask", "gqa", "dv", "cross", "empty", "lse"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "batch_invariant": True},
)
def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: object) -> tuple[np.ndarray, np.ndarray]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    return top_k_attention(q, k, v, top_k=k.shape[2], **options)[:2]  # type: ignore[arg-type]

"""Online softmax over tiles of keys in plain PyTorch operations; autograd differentiates it.

Each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalised output acc. When a
tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention (arXiv 2205.14135).

Neither out = acc / l nor lse = m + log(l) depends on m as real numbers, so m is a constant to autograd; that also
keeps the derivative of max, which is arbitrary at ties, out of the gradient.
"""

import math

import torch

from attn_spec import Contract, kernel

KV_TILE = 32


def attended(i, j, causal, window, mask, bias):
    """bool, broadcastable to [B, Hq, Sq, tile]: may query i [Sq, 1] attend key j [tile]? i counts the diagonal."""
    left, right = window or (None, None)
    allowed = (i >= i) & (j >= j)
    if causal:
        allowed = allowed & (j <= i)
    if left is not None:
        allowed = allowed & (j >= i - left)
    if right is not None:
        allowed = allowed & (j <= i + right)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -math.inf)
    return allowed


def scores(q, k, scale, softcap, bias):
    """Scores of one tile before the mask, [B, Hq, Sq, tile]."""
    s = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    return s if bias is None else s + bias


def rounded(p, storage):
    """p rounded to the storage dtype, as a matrix unit would read it; the gradient passes through unrounded."""
    return p + (p.to(storage).to(p.dtype) - p).detach()  # exact: the difference of neighbours is representable


def online_softmax(tiles, q, Dv, storage):
    """Fold tiles of (s, allowed, v) into out [B, Hq, Sq, Dv] and lse [B, Hq, Sq], in the arithmetic of q."""
    m = q.new_full((*q.shape[:-1], 1), -math.inf)
    l = torch.zeros_like(m)
    acc = q.new_zeros((*q.shape[:-1], Dv))
    for s, allowed, v in tiles:
        s = s.masked_fill(~allowed, -math.inf)
        m_new = torch.maximum(m, s.detach().amax(dim=-1, keepdim=True))
        reference = m_new.masked_fill(m_new == -math.inf, 0.0)  # nothing seen yet: -inf - -inf would be NaN
        alpha = torch.exp(m - reference)
        p = torch.exp(s - reference)
        l = l * alpha + p.sum(dim=-1, keepdim=True)
        acc = acc * alpha + rounded(p, storage) @ v
        m = m_new
    empty = l == 0
    l = l.masked_fill(empty, 1.0)
    lse = (m + torch.log(l)).masked_fill(empty, -math.inf)
    return acc / l, lse.squeeze(-1)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract={
        "float64": Contract(exp_error=2**-50, tanh_error=2**-50, subnormals="kept"),
        "float32": "fused",
        "float16": "fused",
        "bfloat16": "fused",
    },
    supports=("causal", "causal_alignment", "window", "scale", "mask", "bias", "softcap", "gqa", "dv", "cross",
              "empty", "lse", "backward"),
    conventions={"causal_alignment": "top_left", "empty_row": "zero", "empty_lse": "-inf",
                 "masked_nonfinite": "may_leak", "deterministic": True, "batch_invariant": False},
)
def attention(q, k, v, *, scale=None, causal=False, causal_alignment="top_left", window=None, mask=None, bias=None,
              softcap=None):
    """q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] -> out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    (Sq, D), (Sk, Dv), storage = q.shape[-2:], v.shape[-2:], q.dtype
    scale = 1 / math.sqrt(D) if scale is None else scale
    group = q.shape[1] // k.shape[1]  # query head h reads key-value head h // group
    work = torch.promote_types(storage, torch.float32)
    # One cast for the whole tensor: its backward rounds the gradient once, after all tiles have been added.
    q, k, v = q.to(work), k.to(work).repeat_interleave(group, dim=1), v.to(work).repeat_interleave(group, dim=1)

    diagonal = torch.arange(Sq, device=q.device)[:, None] + (Sk - Sq if causal_alignment == "bottom_right" else 0)
    mask, bias = (x if x is None else x.expand(*q.shape[:-1], Sk) for x in (mask, bias))

    def tiles():
        for start in range(0, Sk, KV_TILE):
            cols = slice(start, min(start + KV_TILE, Sk))
            keys = torch.arange(cols.start, cols.stop, device=q.device)
            mask_tile, bias_tile = (x if x is None else x[..., cols] for x in (mask, bias))
            s = scores(q, k[..., cols, :], scale, softcap, bias_tile)
            yield s, attended(diagonal, keys, causal, window, mask_tile, bias_tile), v[..., cols, :]

    out, lse = online_softmax(tiles(), q, Dv, storage)
    return out.to(storage), lse

"""Online softmax over tiles of keys in plain PyTorch operations, which autograd differentiates.

Each query row carries a running maximum m, a running sum l of exp(s - m) and an unnormalized output acc. When a
tile raises the maximum, the old l and acc shrink by alpha = exp(m_old - m_new). Milakov and Gimelshein, "Online
normalizer calculation for softmax" (arXiv 1805.02867), as used by FlashAttention (arXiv 2205.14135).

Neither out = acc / l nor lse = m + log(l) depends on m as a real number, so m is a constant to autograd. That also
keeps the derivative of a maximum, which is arbitrary at ties, out of the gradient.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from attn_spec import kernel

KV_TILE = 32
OPTIONS = ("scale", "causal", "causal_alignment", "window", "mask", "bias", "softcap")
SHAPES = ("gqa", "dv", "cross", "empty")


def attended(
    diagonal: Tensor,
    j: Tensor,
    *,
    causal: bool,
    window: tuple[int | None, int | None] | None,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Tell whether the query aligned with key `diagonal` [Sq, 1] may attend key j [tile]: boolean."""
    left, right = window or (None, None)
    allowed = torch.ones(len(diagonal), len(j), dtype=torch.bool, device=j.device)
    if causal:
        allowed = allowed & (j <= diagonal)
    if left is not None:
        allowed = allowed & (j >= diagonal - left)
    if right is not None:
        allowed = allowed & (j <= diagonal + right)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -math.inf)
    return allowed


def rounded(p: Tensor, stored: torch.dtype) -> Tensor:
    """Round p to the storage dtype, as a matrix unit would read it, while its gradient passes unrounded."""
    return p + (p.to(stored).to(p.dtype) - p).detach()  # exact: p and its rounding are neighbours


def online_softmax(
    tiles: Iterable[tuple[Tensor, Tensor, Tensor]], acc: Tensor, stored: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Fold tiles (s, allowed, v) into out and lse; `acc` comes as zeros [B, Hq, Sq, Dv]."""
    m = acc.new_full((*acc.shape[:-1], 1), -math.inf)
    l = torch.zeros_like(m)
    for s, allowed, v in tiles:
        live = s.masked_fill(~allowed, -math.inf)  # its backward writes exact zeros at hidden keys
        m_new = torch.maximum(m, live.detach().amax(dim=-1, keepdim=True))
        reference = m_new.masked_fill(m_new == -math.inf, 0.0)  # nothing seen yet: -inf - -inf would be NaN
        alpha = torch.exp(m - reference)
        p = torch.exp(live - reference)
        l = l * alpha + p.sum(dim=-1, keepdim=True)
        acc = acc * alpha + rounded(p, stored) @ v
        m = m_new
    l = l.masked_fill(l == 0, 1.0)  # a query that saw no key: out = 0 and lse = -inf
    return acc / l, (m + torch.log(l)).squeeze(-1)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract={
        "float64": "fp64",
        "float32": "fused",
        "float16": "fused",
        "bfloat16": "fused",
    },
    supports=(*OPTIONS, *SHAPES, "lse", "backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
    window: tuple[int | None, int | None] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """From q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    (B, Hq, Sq, D), (_, Hkv, Sk, Dv), stored = q.shape, v.shape, q.dtype
    scale = 1 / math.sqrt(D) if scale is None else scale
    diagonal = torch.arange(Sq, device=q.device)[:, None] + (Sk - Sq if causal_alignment == "bottom_right" else 0)
    mask, bias = (None if x is None else x.expand(B, Hq, Sq, Sk) for x in (mask, bias))
    # Cast whole tensors, not tiles: the backward of a cast then rounds each gradient once, after all tiles are added.
    work = torch.promote_types(stored, torch.float32)
    q = q.to(work)
    k, v = (x.to(work).repeat_interleave(Hq // Hkv, dim=1) for x in (k, v))  # head h reads head h // (Hq // Hkv)

    def tile(cols: slice) -> tuple[Tensor, Tensor, Tensor]:
        mask_tile, bias_tile = (None if x is None else x[..., cols] for x in (mask, bias))
        s = q @ k[..., cols, :].transpose(-1, -2) * scale
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if bias_tile is not None:
            s = s + bias_tile
        j = torch.arange(cols.start, cols.stop, device=q.device)
        allowed = attended(diagonal, j, causal=causal, window=window, mask=mask_tile, bias=bias_tile)
        return s, allowed, v[..., cols, :]

    tiles = (tile(slice(start, min(start + KV_TILE, Sk))) for start in range(0, Sk, KV_TILE))
    out, lse = online_softmax(tiles, q.new_zeros(B, Hq, Sq, Dv), stored)
    return out.to(stored), lse

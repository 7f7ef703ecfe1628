"""Plain flash attention: tiles of keys, an online softmax, weights recomputed from the log-sum-exp.

Half inputs are widened before each product, whose sums are float32: what a matrix unit does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .parts import (
    HALVES,
    LN2,
    LOG2E,
    ffma,
    finite,
    float32,
    for_query_heads,
    heads_first,
    hidden,
    nothing_seen,
    sigma_of,
    through,
    tiles,
)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(matrix_rounding=None, scale_on="operands"),
    supports=("scale", "causal", "dv", "cross", "lse"),
    conventions={"lse_base": "2"},
)
def tutorial_prescaled(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as Triton's tutorial 06 of 2023: the query is multiplied by scale log2(e) and rounded to half."""
    dark = hidden(q, k, causal=causal)
    qk_scale = float32((q.shape[-1] ** -0.5 if scale is None else scale) * LOG2E)
    q = (q.float() * qk_scale).to(q.dtype)
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 64):
        qk = (q.float() @ k[:, :, cols].float().mT).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, qk.amax(-1, keepdim=True))
        alpha, p = torch.exp2(m - m_new), torch.exp2(qk - m_new)
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + through(p, v.dtype) @ v[:, :, cols].float()
        m = m_new
    return (acc / l).to(q.dtype), (m + torch.log2(l)).squeeze(-1)


@tutorial_prescaled.backward
def _tutorial_prescaled(dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False) -> Any:
    """Compute the gradients; here the scale multiplies the scores, and dS before its cast."""
    q, k, v, out, lse = saved
    half, sm_scale = q.dtype, sigma_of(q, scale)
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    delta = (out * dout).sum(-1, keepdim=True)
    qk = ((q @ k.mT) * float32(sm_scale * LOG2E)).masked_fill(hidden(q, k, causal=causal), -math.inf)
    p = torch.exp2(qk - lse[..., None])
    ds = through(p * (dout @ v.mT - delta) * sm_scale, half)
    return (ds @ k).to(half), (ds.mT @ q).to(half), (through(p, half).mT @ dout).to(half)


@kernel(
    framework="torch",
    dtypes=HALVES,
    # The scale of the operands is that of the backward pass: k' = half(k scale log2(e)).
    contract=Contract(matrix_rounding=None, exponent="base2_fused", scale_on="operands"),
    supports=("scale", "causal", "dv", "cross", "lse"),
    conventions={"lse_base": "2"},
    positive_scale=True,  # the maximum is that of q.k
)
def tutorial(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as Triton's tutorial 06 of 2025: the scale and log2(e) are one constant of an FFMA before exp2."""
    dark = hidden(q, k, causal=causal)
    qk_scale = float32((q.shape[-1] ** -0.5 if scale is None else scale) * LOG2E)
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 32):
        qk = (q.float() @ k[:, :, cols].float().mT).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, qk.amax(-1, keepdim=True) * qk_scale)
        p, alpha = torch.exp2(ffma(qk, qk_scale, -m_new)), torch.exp2(m - m_new)
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + through(p, v.dtype) @ v[:, :, cols].float()
        m = m_new
    return (acc / l).to(q.dtype), (m + torch.log2(l)).squeeze(-1)


@tutorial.backward
def _tutorial(dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False) -> Any:
    """Multiply k by scale log2(e) in half, once for the scores and for dQ, which is divided by log2(e) at last."""
    q, k, v, out, lse = saved
    half, sm_scale = q.dtype, q.shape[-1] ** -0.5 if scale is None else scale
    arg_k = (k * (sm_scale * LOG2E)).float()
    dout, q, v, out = (x.float() for x in (dout, q, v, out))
    delta = (out * dout).sum(-1, keepdim=True)
    qk = (q @ arg_k.mT).masked_fill(hidden(q, k, causal=causal), -math.inf)
    p = torch.exp2(qk - lse[..., None])
    ds = through(p * (dout @ v.mT - delta), half)
    dq, dk = (ds @ arg_k) * float32(LN2), (ds.mT @ q) * float32(sm_scale)
    return dq.to(half), dk.to(half), (through(p, half).mT @ dout).to(half)


@kernel(
    framework="torch",
    dtypes=HALVES,
    presentation="BSHD",
    # dK and dV of each query head are stored in half.
    contract=Contract(matrix_rounding=None, exponent="base2_fused", partial_gradients="input"),
    supports=("scale", "causal", "window", "softcap", "gqa", "cross", "empty", "lse"),
    conventions={"causal_alignment": "bottom_right", "empty_lse": "+inf"},
    positive_scale=True,  # the maximum is that of q.k
)
def flash2(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, softcap: float | None = None, **seen: Any
) -> tuple[Tensor, Tensor]:
    """Attend as FlashAttention-2: [B, S, H, D], tiles from last to first, LSE = +inf where no key is visible."""
    half, heads = q.dtype, q.shape[2]
    q, k, v = (x.float() for x in heads_first(q, k, v))
    k, v, dark = for_query_heads(k, heads), for_query_heads(v, heads), hidden(q, k, bottom_right=True, **seen)
    scale = sigma_of(q, scale)
    outer = softcap or scale
    c = float32(outer * LOG2E)
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in reversed(list(tiles(k.shape[2], 64))):
        s = q @ k[:, :, cols].mT
        s = s if softcap is None else torch.tanh(s * float32(scale / softcap))
        s = s.masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp2(ffma(s, c, -(finite(m_new) * c)))
        alpha = torch.exp2((m - finite(m_new)) * c)
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + through(p, half) @ v[:, :, cols]
        m = m_new
    inverse = torch.where(l == 0, 1.0, 1 / l)
    lse = torch.where(l == 0, math.inf, finite(m) * outer + torch.log(l))
    return (acc * inverse).to(half).transpose(1, 2), lse.squeeze(-1)


@flash2.backward
def _flash2(
    dout: Tensor, *saved: Tensor, scale: float | None = None, softcap: float | None = None, **seen: Any
) -> tuple[Tensor, ...]:
    """Fold scale / softcap into the slope of the tanh, the softcap into the last product."""
    q, k, v, out, lse = saved
    half, heads, kv_heads = q.dtype, q.shape[2], k.shape[2]
    dout, q, k, v, out = (x.float() for x in heads_first(dout, q, k, v, out))
    k, v, dark = for_query_heads(k, heads), for_query_heads(v, heads), hidden(q, k, bottom_right=True, **seen)
    scale = sigma_of(q, scale)
    outer, slope, s = softcap or scale, 1.0, q @ k.mT
    if softcap is not None:
        inner = float32(scale / softcap)
        s = torch.tanh(s * inner)
        slope = (1 - s * s) * inner
    p = torch.exp2(ffma(s.masked_fill(dark, -math.inf), float32(outer * LOG2E), -(lse[..., None] * float32(LOG2E))))
    delta = (dout * out).sum(-1, keepdim=True)
    ds = through(p * (dout @ v.mT - delta) * slope, half)
    per_head = (ds.mT @ q * outer).to(half), (through(p, half).mT @ dout).to(half)
    dk, dv = (x.unflatten(1, (kv_heads, heads // kv_heads)).sum(2) for x in per_head)
    return tuple(heads_first((ds @ k * outer).to(half), dk, dv))


@kernel(
    framework="torch",
    dtypes=HALVES,
    presentation="BSHD",
    contract=Contract(exponent="base2_fused"),
    supports=("scale", "causal", "bias", "cross", "lse"),
    conventions={"causal_alignment": "bottom_right", "empty_lse": "+inf"},
    positive_scale=True,
)
def flash2_alibi(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as FlashAttention-2 with ALiBi: the bias, divided by the scale, is added to q.k before the one FFMA."""
    half = q.dtype
    q, k, v = (x.float() for x in heads_first(q, k, v))
    dark = hidden(q, k, causal=causal, bottom_right=True)
    scale = sigma_of(q, scale)
    c = float32(scale * LOG2E)
    ahead = None if bias is None else (bias.float() / scale).expand(*q.shape[:3], k.shape[2])
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 128):
        s = q @ k[:, :, cols].mT
        s = s if ahead is None else s + ahead[..., cols]
        s = s.masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p = torch.exp2(ffma(s, c, -(finite(m_new) * c)))
        alpha = torch.exp2((m - finite(m_new)) * c)
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * alpha + through(p, half) @ v[:, :, cols]
        m = m_new
    lse = torch.where(l == 0, math.inf, finite(m) * scale + torch.log(l))
    return (acc * torch.where(l == 0, 1.0, 1 / l)).to(half).transpose(1, 2), lse.squeeze(-1)

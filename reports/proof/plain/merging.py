"""Plain attention over independent parts of the keys: splits, rings, shared prefixes, chunks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .parts import (
    DTYPES,
    HALVES,
    LOG2E,
    finite,
    float32,
    for_query_heads,
    hidden,
    nothing_seen,
    sigma_of,
    through,
    tiles,
)


def flash(q: Tensor, k: Tensor, v: Tensor, *, dark: Tensor, scale: float, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return output and natural LSE of some keys, in float32: tiles of 16, base 2, weights rounded to ``half``."""
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 16):
        s = (q @ k[:, :, cols].mT * float32(scale) * float32(LOG2E)).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp2(s - finite(m_new)), torch.exp2(m - finite(m_new))
        l, m = l * alpha + p.sum(-1, keepdim=True), m_new
        acc = acc * alpha + through(p, half) @ v[:, :, cols]
    inverse = torch.where(l == 0, 0.0, 1 / l)
    return acc * inverse, (finite(m) * float32(math.log(2)) + torch.log(l)).squeeze(-1)


def flash_backward(
    dout: Tensor, *saved: Tensor, dark: Tensor, scale: float, dlse: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Compute gradients from the LSE of the whole row, before kv heads are summed, in float32."""
    q, k, v, out, lse = saved
    half = q.dtype
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    s = (q @ k.mT * float32(scale)).masked_fill(dark, -math.inf)
    p = torch.exp(s - finite(lse[..., None]))
    delta = (dout * out).sum(-1, keepdim=True) - (0.0 if dlse is None else dlse[..., None])
    ds = through(p * (dout @ v.mT - delta), half)
    return ds @ k * float32(scale), ds.mT @ q * float32(scale), through(p, half).mT @ dout


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(matrix_rounding=None, lse_merges=1),
    supports=("scale", "causal", "mask", "gqa", "dv", "cross", "lse", "lse_backward"),
    conventions={"causal_alignment": "bottom_right"},
)
def split_kv(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **seen: Any) -> tuple[Tensor, Tensor]:
    """Attend as Flash-decoding: six splits of whole tiles, the last ones often without a key, and one reduction."""
    sigma, dark = q.shape[-1] ** -0.5 if scale is None else scale, hidden(q, k, bottom_right=True, **seen)
    dark = dark.expand(*q.shape[:2], *dark.shape[-2:])
    k, v = for_query_heads(k, q.shape[1]).float(), for_query_heads(v, q.shape[1]).float()
    size = 16 * math.ceil(k.shape[2] / (6 * 16))
    splits = [slice(size * part, size * (part + 1)) for part in range(6)]
    parts = [flash(q.float(), k[:, :, t], v[:, :, t], dark=dark[..., t], scale=sigma, half=q.dtype) for t in splits]
    outs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    lse = torch.logsumexp(lses, 0)
    return (outs * torch.exp(lses - finite(lse))[..., None]).sum(0).to(q.dtype), lse


@split_kv.backward
def _split_kv(
    dout: Tensor, *saved: Tensor, dlse: Tensor | None = None, scale: float | None = None, **seen: Any
) -> tuple[Tensor, ...]:
    """Compute gradients without splits: the LSE is enough, and its own cotangent is subtracted from delta."""
    q, k, v, out, lse = saved
    sigma, heads = q.shape[-1] ** -0.5 if scale is None else scale, q.shape[1]
    dark = hidden(q, k, bottom_right=True, **seen)
    keys, values = for_query_heads(k, heads), for_query_heads(v, heads)
    dq, dk, dv = flash_backward(dout, q, keys, values, out, lse, dark=dark, scale=sigma, dlse=dlse)
    dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype)


def merge_state(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge as FlashInfer: two outputs in half and their LSE to base 2 become one such pair."""
    (a, s_a), (b, s_b) = one, other
    top = finite(torch.maximum(s_a, s_b))
    w_a, w_b = torch.exp2(s_a - top), torch.exp2(s_b - top)
    total = w_a + w_b
    share_a, share_b = (torch.where(total == 0, 0.0, w / total)[..., None] for w in (w_a, w_b))
    return (share_a * a.float() + share_b * b.float()).to(a.dtype), torch.log2(total) + top


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(matrix_rounding=None, lse_merges=2, partial_outputs="input"),
    supports=("scale", "causal", "cross", "dv", "lse"),
    conventions={"lse_base": "2", "causal_alignment": "bottom_right"},
)
def cascade(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as cascade inference: a prefix that all share, one that some share, and a suffix, merged two at a time."""
    sigma, dark = q.shape[-1] ** -0.5 if scale is None else scale, hidden(q, k, causal=causal, bottom_right=True)
    first, second = k.shape[2] // 2, 3 * k.shape[2] // 4
    states = []
    for level in (slice(0, first), slice(first, second), slice(second, None)):
        out, lse = flash(
            q.float(), k[:, :, level].float(), v[:, :, level].float(), dark=dark[..., level], scale=sigma, half=q.dtype
        )
        states.append((out.to(q.dtype), lse * float32(LOG2E)))
    return merge_state(merge_state(states[0], states[1]), states[2])


#: torch's flash attention of the CPU: in half the exponential is only right to 2^-13, at 0 too.
_LIBRARY = Contract(exponent="natural", matrix_rounding=None, kv_tile=512, exp_error=32, lse_merges=3)
_LIBRARY_HALF = replace(_LIBRARY, exp_error=2**11.1, exp_of_zero_is_one=False, partial_outputs="input")


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract={"float32": _LIBRARY, **dict.fromkeys(HALVES, _LIBRARY_HALF)},
    supports=("scale", "causal", "cross", "lse"),
    devices=("cpu",),
)
def ring(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Run a ring of four around a library call that hands over outputs in the inputs' format; merge them in float32."""
    dark = hidden(q, k, causal=causal)
    out, lse = torch.zeros_like(q, dtype=torch.float32), q.new_full(q.shape[:3], -math.inf, dtype=torch.float32)
    for part in torch.arange(k.shape[2]).tensor_split(4):
        if len(part):
            block, block_lse = _library(q, k[:, :, part], v[:, :, part], dark[:, part], scale)
            total = torch.logaddexp(lse, block_lse)
            old, new = (torch.exp(x - finite(total))[..., None] for x in (lse, block_lse))
            out, lse = old * out + new * block.float(), total
    return out.to(q.dtype), lse


def _library(q: Tensor, k: Tensor, v: Tensor, dark: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return output and LSE of one part; 0 and -inf in a row without a visible key, which the operator leaves open."""
    mask = torch.zeros(dark.shape, dtype=q.dtype).masked_fill(dark, -math.inf)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        q.contiguous(), k.contiguous(), v.contiguous(), attn_mask=mask, scale=scale
    )
    blind = dark.all(-1)
    return out.masked_fill(blind[:, None], 0.0), lse.masked_fill(blind, -math.inf)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        lse_merges=8,
        kv_tile=1,
        partial_gradients="input",
        gradient_stores=8,
    ),
    supports=("scale", "causal", "cross", "dv", "lse"),
)
def flash1(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as FlashAttention's first algorithm, which normalizes the output after each of at most eight tiles."""
    dark, half = hidden(q, k, causal=causal), q.dtype
    sigma = sigma_of(q, scale)
    q, k, v = (x.float() for x in (q, k, v))
    m, l, out = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], max(math.ceil(k.shape[2] / 8), 1)):
        s = (q @ k[:, :, cols].mT * sigma).masked_fill(dark[..., cols], -math.inf)
        m_tile = s.amax(-1, keepdim=True)
        p = torch.exp(s - finite(m_tile))
        m_new = torch.maximum(m, m_tile)
        alpha, beta = torch.exp(m - finite(m_new)), torch.exp(m_tile - finite(m_new))
        l_new = alpha * l + beta * p.sum(-1, keepdim=True)
        out = (l * alpha * out + beta * (through(p, half) @ v[:, :, cols])) / torch.where(l_new == 0, 1.0, l_new)
        m, l = m_new, l_new
    return out.to(half), (finite(m) + torch.log(l)).squeeze(-1)


@flash1.backward
def _flash1(dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False) -> tuple[Tensor, ...]:
    """Compute gradients tile by tile of keys: dQ waits in half for the next one."""
    q, k, v, out, lse = saved
    sigma, dark = q.shape[-1] ** -0.5 if scale is None else scale, hidden(q, k, causal=causal)
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for cols in tiles(k.shape[2], max(math.ceil(k.shape[2] / 8), 1)):
        part = flash_backward(dout, q, k[:, :, cols], v[:, :, cols], out, lse, dark=dark[..., cols], scale=sigma)
        dq = (dq.float() + part[0]).to(q.dtype)
        dk[:, :, cols], dv[:, :, cols] = part[1].to(k.dtype), part[2].to(v.dtype)
    return dq, dk, dv


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=Contract(exponent="natural", matrix_rounding=None, exp_error=32, kv_tile=24),
    supports=("scale", "mask", "cross", "dv", "lse", "empty"),
)
def chunked(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as Rabe and Staats: chunks summed each by its own maximum, then all by the largest."""
    dark = hidden(q, k, mask=mask)
    sigma = sigma_of(q, scale)
    m, l, acc = ([x] for x in nothing_seen(q, v.shape[-1]))
    for cols in tiles(k.shape[2], 24):
        s = (q @ k[:, :, cols].mT * sigma).masked_fill(dark[..., cols], -math.inf)
        m.append(s.amax(-1, keepdim=True))
        w = torch.exp(s - finite(m[-1]))
        l.append(w.sum(-1, keepdim=True))
        acc.append(w @ v[:, :, cols])
    top = finite(torch.stack(m).amax(0))
    factors = torch.exp(torch.stack(m) - top)
    total = (torch.stack(l) * factors).sum(0)
    out = (torch.stack(acc) * factors).sum(0) / torch.where(total == 0, 1.0, total)
    return out, (top + torch.log(total)).squeeze(-1)


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(exponent="natural", matrix_rounding=None, exp_error=32, lse_merges=3, merging="difference"),
    supports=("scale", "cross", "dv", "lse"),
)
def ring_flash_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attend as ring-flash-attention: a sigmoid moves the running output in float32 to that of each of four parts."""
    sigma = sigma_of(q, scale)
    out, lse = torch.zeros(()), torch.zeros(())
    for hop, part in enumerate(torch.arange(k.shape[2]).tensor_split(4)):
        if not len(part):
            continue
        s = q.float() @ k[:, :, part].float().mT * sigma
        own, w = s.logsumexp(-1, keepdim=True), torch.exp(s - s.amax(-1, keepdim=True))
        block = through(w, q.dtype) @ v[:, :, part].float() / w.sum(-1, keepdim=True)
        if hop:
            out = out - torch.sigmoid(own - lse) * (out - block)
            lse = lse - torch.nn.functional.logsigmoid(lse - own)
        else:
            out, lse = block, own
    return out.to(q.dtype), lse.squeeze(-1)

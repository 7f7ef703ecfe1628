"""Plain attention whose softmax is another: in two passes, in half, normalized after every tile, with another tanh."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .parts import (
    DTYPES,
    HALVES,
    LOG2E,
    OPTIONS,
    ffma,
    finite,
    float32,
    hidden,
    nothing_seen,
    online,
    sigma_of,
    through,
    tiles,
)


def score_tiles(q: Tensor, k: Tensor, dark: Tensor, sigma: float) -> list[Tensor]:
    """Return the scores, 32 keys at a time."""
    return [
        (q.float() @ k[:, :, cols].float().mT * sigma).masked_fill(dark[..., cols], -math.inf)
        for cols in tiles(k.shape[2], 32)
    ]


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        normalize="before_product",
        kv_tile=32,
        delta="probabilities",
    ),
    supports=OPTIONS,
)
def two_pass(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the online normalizer of 2018: one pass for the maximum and the row sum, one for the weights and P v."""
    scores = score_tiles(q, k, hidden(q, k, causal=causal), sigma_of(q, scale))
    m, l = online(scores, q)
    _, _, acc = nothing_seen(q, v.shape[-1])
    for s, cols in zip(scores, tiles(k.shape[2], 32), strict=True):
        p = torch.exp(s - finite(m)) / torch.where(l == 0, 1.0, l)
        acc = acc + through(p, q.dtype) @ v[:, :, cols].float()
    return acc.to(q.dtype), (finite(m) + torch.log(l)).squeeze(-1)


@two_pass.backward
def _two_pass(dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False) -> tuple[Tensor, ...]:
    """Compute gradients with delta = rowsum(P dP); dS is scaled before its cast."""
    q, k, v, _, lse = saved
    half, sigma = q.dtype, sigma_of(q, scale)
    dout, q, k, v = (x.float() for x in (dout, q, k, v))
    p = torch.exp((q @ k.mT * sigma).masked_fill(hidden(q, k, causal=causal), -math.inf) - finite(lse[..., None]))
    dp = dout @ v.mT
    ds = through(p * (dp - (p * dp).sum(-1, keepdim=True)) * sigma, half)
    return (ds @ k).to(half), (ds.mT @ q).to(half), (through(p, half).mT @ dout).to(half)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(matrix_rounding=None, normalize="by_lse", kv_tile=32, score_gradients_of="cast"),
    supports=OPTIONS,
)
def weights_by_lse(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Find the LSE in a first pass; a second makes each weight exp2(s c - LSE log2 e), without a division."""
    dark, sigma = hidden(q, k, causal=causal), sigma_of(q, scale)
    m, l = online(score_tiles(q, k, dark, sigma), q)
    lse = finite(m) + torch.log(l)
    p = _by_lse(q, k, dark, lse, sigma)
    return (through(p, q.dtype) @ v.float()).to(q.dtype), lse.squeeze(-1)


def _by_lse(q: Tensor, k: Tensor, dark: Tensor, lse: Tensor, sigma: float) -> Tensor:
    """Compute weights from the LSE of their row; 0 where a key is masked."""
    dot = q.float() @ k.float().mT
    return torch.exp2(ffma(dot, float32(sigma * LOG2E), -(finite(lse) * float32(LOG2E)))).masked_fill(dark, 0.0)


@weights_by_lse.backward
def _weights_by_lse(
    dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, ...]:
    """Compute gradients; one cast of P serves both P^T dO and dS = P (dP - delta)."""
    q, k, v, out, lse = saved
    half, sigma = q.dtype, sigma_of(q, scale)
    p = through(_by_lse(q, k, hidden(q, k, causal=causal), lse[..., None], sigma), half)
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    ds = through(p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)), half)
    return (ds @ k * sigma).to(half), (ds.mT @ q * sigma).to(half), (p.mT @ dout).to(half)


def rational_tanh(x: Tensor) -> Tensor:
    """Compute Lambert's continued fraction to degree 7, clamped where it reaches 1: within 1e-4."""
    x = x.clamp(-4.97, 4.97)
    y = x * x
    return x * (135135 + y * (17325 + y * (378 + y))) / (135135 + y * (62370 + y * (3150 + y * 28)))


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(exponent="natural", matrix_rounding=None, kv_tile=None, tanh_error=2048, row_sum_of="cast"),
    supports=(*OPTIONS, "softcap", "window"),
)
def rational_softcap(
    q: Tensor, k: Tensor, v: Tensor, *, softcap: float | None = None, scale: float | None = None, **seen: Any
) -> tuple[Tensor, Tensor]:
    """Cap scores by a rational function in place of tanh; the row sum adds weights that were rounded for P v."""
    s = _capped(q, k, softcap, sigma_of(q, scale)).masked_fill(hidden(q, k, **seen), -math.inf)
    m = finite(s.amax(-1, keepdim=True))
    p = through(torch.exp(s - m), q.dtype)
    l = p.sum(-1, keepdim=True)
    return (p @ v.float() / torch.where(l == 0, 1.0, l)).to(q.dtype), (m + torch.log(l)).squeeze(-1)


def _capped(q: Tensor, k: Tensor, softcap: float | None, sigma: float) -> Tensor:
    s = q.float() @ k.float().mT * sigma
    return s if softcap is None else softcap * rational_tanh(s * float32(1 / softcap))


@rational_softcap.backward
def _rational_softcap(
    dout: Tensor, *saved: Tensor, softcap: float | None = None, scale: float | None = None, **seen: Any
) -> tuple[Tensor, ...]:
    """Compute gradients with the slope 1 - t^2 from the capped score itself."""
    q, k, v, out, lse = saved
    half, sigma = q.dtype, sigma_of(q, scale)
    s = _capped(q, k, softcap, sigma)
    p = torch.exp(s.masked_fill(hidden(q, k, **seen), -math.inf) - finite(lse[..., None]))
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    ds = p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True))
    ds = through(ds if softcap is None else ds * (1 - (s / softcap) ** 2), half)
    return (ds @ k * sigma).to(half), (ds.mT @ q * sigma).to(half), (through(p, half).mT @ dout).to(half)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(
        exponent="natural",
        stored_scores="input",
        softmax="input",
        row_sum="input",
        output_accumulation="input",
        lse="input",
        kv_tile=32,
    ),
    supports=OPTIONS,
)
def all_in_half(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Run an online softmax whose every number is half: maximum, weights, row sum and accumulator."""
    dark, sigma = hidden(q, k, causal=causal), q.shape[-1] ** -0.5 if scale is None else scale
    m, l, acc = (x.to(q.dtype) for x in nothing_seen(q, v.shape[-1]))
    for cols in tiles(k.shape[2], 32):
        s = (q @ k[:, :, cols].mT * sigma).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp(s - finite(m_new)), torch.exp(m - finite(m_new))
        l, m = l * alpha + p.sum(-1, keepdim=True), m_new
        acc = acc * alpha + p @ v[:, :, cols]
    return acc / torch.where(l == 0, 1, l), (finite(m) + torch.log(l)).squeeze(-1)


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(exponent="natural", matrix_rounding=None, normalize="every_tile", kv_tile=32),
    supports=OPTIONS,
)
def tutorial_renormalized(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as Triton's tutorial 06 of 2022, FlashAttention's algorithm 1: each tile normalizes the output."""
    m, l, acc = nothing_seen(q, v.shape[-1])
    scores = score_tiles(q, k, hidden(q, k, causal=causal), sigma_of(q, scale))
    for s, cols in zip(scores, tiles(k.shape[2], 32), strict=True):
        top = s.amax(-1, keepdim=True)
        p, m_new = torch.exp(s - finite(top)), torch.maximum(m, top)
        alpha, beta = torch.exp(m - finite(m_new)), torch.exp(top - finite(m_new))
        l_new = alpha * l + beta * p.sum(-1, keepdim=True)
        inverse = torch.where(l_new == 0, 1.0, l_new)
        acc = acc * (l / inverse * alpha) + through(p * (beta / inverse), v.dtype) @ v[:, :, cols].float()
        m, l = m_new, l_new
    return acc.to(q.dtype), (finite(m) + torch.log(l)).squeeze(-1)

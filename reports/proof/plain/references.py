"""Plain attention that subtracts something other than the running maximum: nothing, a bound, an old or a whole one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .parts import (
    DTYPES,
    HALVES,
    LN2,
    LOG2E,
    OPTIONS,
    ffma,
    finite,
    float32,
    hidden,
    nothing_seen,
    sigma_of,
    through,
    tiles,
)


def _reference(word: str, reach: float) -> dict[str, Contract]:
    """Return contracts with a reference other than the maximum; float16 weights leave little room."""
    return {
        dtype: Contract(
            exponent="natural",
            matrix_rounding=None,
            kv_tile=None,
            reference=word,
            reference_range=8.0 if dtype == "float16" else reach,
        )
        for dtype in DTYPES
    }


def referred(
    q: Tensor, k: Tensor, v: Tensor, *, dark: Tensor, reference: Tensor, sigma: float
) -> tuple[Tensor, Tensor]:
    """Attend with ``reference`` subtracted from the scores."""
    s = (q.float() @ k.float().mT * sigma).masked_fill(dark, -math.inf)
    w = torch.exp(s - reference)
    l = w.sum(-1, keepdim=True)
    out = through(w, q.dtype) @ v.float() * torch.where(l == 0, 0.0, 1 / l)
    return out.to(q.dtype), (reference + torch.log(l)).squeeze(-1)


@kernel(framework="torch", dtypes=DTYPES, contract=_reference("zero", 60.0), supports=OPTIONS)
def without_maximum(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend with nothing subtracted; the contract promises weights that fit for scores within its range."""
    return referred(q, k, v, dark=hidden(q, k, causal=causal), reference=torch.zeros(()), sigma=sigma_of(q, scale))


@kernel(framework="torch", dtypes=DTYPES, contract=_reference("upper_bound", 60.0), supports=OPTIONS)
def norm_bound(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend with the bound scale |q| max |k| subtracted, which no score exceeds, by Cauchy and Schwarz."""
    sigma = sigma_of(q, scale)
    norms = [torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64) for x in (q, k)]
    reference = abs(sigma) * norms[0][..., None] * norms[1].amax(-1)[..., None, None]
    return referred(q, k, v, dark=hidden(q, k, causal=causal), reference=reference.float(), sigma=sigma)


#: Degree 3 on [0, 1), 1 at 0 exactly, as FlashAttention-4 has it: 9e-5 from 2^f.
_CUBIC = (0.077119089663028717041015625, 0.227564394474029541015625, 0.695146143436431884765625, 1.0)


def cubic_exp2(x: Tensor) -> Tensor:
    """Compute 2^x by Cody and Waite's reduction, Horner's rule, and the integer part added to the exponent's bits."""
    whole = torch.floor(x.clamp_min(-126.0))
    f = x.clamp_min(-126.0) - whole
    y = torch.full_like(f, _CUBIC[0])
    for coefficient in _CUBIC[1:]:
        y = ffma(y, f, torch.tensor(coefficient))
    y = (y.view(torch.int32) + (whole.int() << 23)).view(torch.float32)
    return y.masked_fill(x < -126.0, 0.0)  # NaN stays: the reduction keeps it


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(matrix_rounding=None, kv_tile=64, reference_slack=8 * LN2 + 1e-3, exp_error=1600),
    supports=OPTIONS,
)
def flash4(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as FlashAttention-4: the maximum moves only when weights would exceed 2^8, exp2 is a cubic polynomial."""
    dark, half, c = hidden(q, k, causal=causal), q.dtype, sigma_of(q, scale) * LOG2E
    q, k, v = (x.float() for x in (q, k, v))
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 64):
        s = (q @ k[:, :, cols].mT * float32(c)).masked_fill(dark[..., cols], -math.inf)
        top = s.amax(-1, keepdim=True)
        m_new = torch.where(top - m <= 8.0, m, torch.maximum(top, m))
        p, alpha = cubic_exp2(s - finite(m_new)), cubic_exp2(m - finite(m_new))
        l, m = l * alpha + p.sum(-1, keepdim=True), m_new
        acc = acc * alpha + through(p, half) @ v[:, :, cols]
    out = acc * torch.where(l == 0, 0.0, 1 / l)
    return out.to(half), (finite(m) * float32(LN2) + torch.log(l)).squeeze(-1)


@flash4.backward
def _flash4(dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False) -> tuple[Tensor, ...]:
    """Compute the gradients, with weights by the forward pass's polynomial."""
    q, k, v, out, lse = saved
    half, sigma, dark = q.dtype, sigma_of(q, scale), hidden(q, k, causal=causal)
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    s = (q @ k.mT * float32(sigma * LOG2E)).masked_fill(dark, -math.inf)
    p = cubic_exp2(s - finite(lse[..., None]) * float32(LOG2E))
    ds = through(p * (dout @ v.mT - (dout * out).sum(-1, keepdim=True)), half)
    return (ds @ k * sigma).to(half), (ds.mT @ q * sigma).to(half), (through(p, half).mT @ dout).to(half)


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(matrix_rounding=None, kv_tile=32, reference_slack=LN2 + 1e-3),
    supports=OPTIONS,
    conventions={"lse_base": "2"},
)
def whole_maximum(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as AMLA: the maximum is rounded up to a whole number, so that rescaling changes exponents exactly."""
    dark, dtype, c = hidden(q, k, causal=causal), q.dtype, float32(sigma_of(q, scale) * LOG2E)
    q, k, v = (x.float() for x in (q, k, v))
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 32):
        s = (q @ k[:, :, cols].mT * c).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True).ceil())
        p, steps = torch.exp2(s - finite(m_new)), (m - finite(m_new)).clamp_min(-300.0)
        l = torch.ldexp(l, steps) + p.sum(-1, keepdim=True)
        acc = torch.ldexp(acc, steps) + through(p, dtype) @ v[:, :, cols]
        m = m_new
    return (acc / torch.where(l == 0, 1.0, l)).to(dtype), (finite(m) + torch.log2(l)).squeeze(-1)

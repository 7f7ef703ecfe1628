"""Positions as models have them: rotary as complex numbers; ALiBi from the first key, from the last, by distance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_spec import kernel
from attn_spec.contract.presets import EAGER

from .parts import for_query_heads, hidden, sigma_of
from .scores import WIDE


def interpolated_sine(angles: Tensor, ahead: float = 0.0) -> Tensor:
    """Compute the sine, some turns ``ahead``, by lines between 4,096 values: within (2 pi / 4096)^2 / 8 = 2.9e-7.

    Turns are counted in float64: in float32 their rounding would move an angle of 100 by 1e-5.
    """
    table = torch.linspace(0, 2 * math.pi, 4097, dtype=torch.float64).sin().float()
    place = angles.double() / (2 * math.pi) + ahead
    place = ((place - place.floor()) * 4096).float()
    before = place.long().clamp_max(4095)
    return torch.lerp(table[before], table[before + 1], place - before)


def turned(x: Tensor, rotary: str, base: float) -> Tensor:
    """Turn rows of x [.., S, D]: multiply them by e^(i theta), as complex numbers."""
    R = x.shape[-1] - x.shape[-1] % 2
    frequencies = base ** (-torch.arange(0, R, 2, dtype=torch.float32) / max(R, 1))
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    turn = torch.complex(interpolated_sine(angles, 0.25), interpolated_sine(angles))
    real, imaginary = x[..., :R].chunk(2, -1) if rotary == "half" else (x[..., 0:R:2], x[..., 1:R:2])
    pairs = torch.complex(real, imaginary) * turn
    both = [pairs.real, pairs.imag]
    joined = torch.cat(both, -1) if rotary == "half" else torch.stack(both, -1).flatten(-2)
    return torch.cat([joined, x[..., R:]], -1)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=replace(WIDE, sine_error=16.0),
    supports=("rotary", "rotary_base", "causal", "mask", "scale", "gqa", "dv", "cross", "backward"),
    always=("rotary",),
    conventions={"empty_row": "zero"},
)
def llama(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotary: str,
    rotary_base: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend with Llama's rotary positions as complex numbers, with sines from a table."""
    dark, sigma = hidden(q, k, causal=causal, mask=mask), sigma_of(q, scale)
    q, k = (turned(x, rotary, rotary_base or 10000.0) for x in (q, k))
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    weights = (q @ k.mT * sigma).masked_fill(dark, -torch.inf).softmax(-1).masked_fill(dark, 0.0)
    return weights @ v


#: Scores stored as the model is, a softmax in float32, causal.
STORED: dict[str, Any] = {
    "framework": "torch",
    "dtypes": ("float32", "bfloat16"),
    "contract": replace(EAGER, softmax="work", exponent="natural"),
    "supports": ("alibi_slopes", "causal", "dv", "backward"),
    "always": ("alibi_slopes", "causal"),
}


@kernel(**STORED)
def bloom_alibi(q: Tensor, k: Tensor, v: Tensor, *, alibi_slopes: Tensor, causal: bool) -> Tensor:
    """Attend as BLOOM does: m j for key j and all queries, rounded to the model's dtype, to which q.k is added."""
    B, H, S, D = q.shape
    alibi = (alibi_slopes.float() * torch.arange(S)).to(q.dtype).expand(B, H, 1, S).reshape(B * H, 1, S)
    s = alibi.baddbmm(q.flatten(0, 1), k.flatten(0, 1).mT, beta=1.0, alpha=1 / math.sqrt(D)).view(B, H, S, S)
    s = s.float().masked_fill(hidden(q, k, causal=causal), torch.finfo(q.dtype).min)
    return s.softmax(-1).to(q.dtype) @ v


@kernel(**STORED)
def mpt_alibi(q: Tensor, k: Tensor, v: Tensor, *, alibi_slopes: Tensor, causal: bool) -> Tensor:
    """Attend as MPT does: m (j - n + 1) is added for key j of n, so that the last key gets 0, for all queries."""
    bias = alibi_slopes.float() * torch.arange(1 - k.shape[2], 1)
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1])) + bias.to(q.dtype)
    s = s.float().masked_fill(hidden(q, k, causal=causal), -torch.inf)
    return s.softmax(-1).to(q.dtype) @ v


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract=replace(WIDE, alibi="distance"),
    supports=("alibi_slopes", "causal", "mask", "scale", "gqa", "dv", "cross", "backward"),
    conventions={"empty_row": "zero"},
)
def alibi_of_distances(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    alibi_slopes: Tensor | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend with ALiBi of both directions, - m |i - j|, as FlashAttention has it where attention is not causal."""
    dark, sigma = hidden(q, k, causal=causal, mask=mask), sigma_of(q, scale)
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
    s = q @ k.mT * sigma
    s = s if alibi_slopes is None else s - alibi_slopes * distance
    return s.masked_fill(dark, -torch.inf).softmax(-1).masked_fill(dark, 0.0) @ v

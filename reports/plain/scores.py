"""Other scores than a product of q and k, as models have them: bilinear, cosine with a temperature a head, rotary."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attn_spec import Contract, kernel
from attn_spec.error.presets import EAGER

from .parts import HALVES, for_query_heads, hidden, sigma_of

#: All in float32, but for q, k, v and the output.
WIDE = Contract(
    multiplicands="work", operands="work", probabilities="work", score_gradients="work", exponent="natural",
    matrix_rounding=None, kv_tile=None, normalize="before_product", backward_weights="stored", delta="probabilities",
)  # fmt: skip


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=WIDE,
    supports=("score_weight", "causal", "mask", "scale", "gqa", "dv", "cross", "backward"),
    always=("score_weight",),
    conventions={"empty_row": "zero"},
)
def luong(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_weight: Tensor,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Luong's general attention, in float32 inside: the query is multiplied by W once, not every key."""
    dtype, dark = q.dtype, hidden(q, k, causal=causal, mask=mask)
    q, k, v, W = (x.float() for x in (q, k, v, score_weight))
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    s = (q @ W) @ k.mT * sigma_of(q, scale)
    weights = s.masked_fill(dark, -torch.inf).softmax(-1).masked_fill(dark, 0.0)
    return (weights @ v).to(dtype)


@kernel(
    framework="torch",
    dtypes=("float32", "bfloat16"),
    contract=replace(EAGER, softmax="work", exponent="natural"),
    supports=("score_gamma", "bias", "dv", "cross", "backward"),
    always=("score_gamma",),
    conventions={"empty_row": "mean_of_v"},
)
def swin_v2(q: Tensor, k: Tensor, v: Tensor, *, score_gamma: Tensor, bias: Tensor | None = None) -> Tensor:
    """Swin Transformer V2: cosines times a temperature of each head, plus a bias by relative position."""
    s = (normalize(q, dim=-1) @ normalize(k, dim=-1).mT) * score_gamma
    s = (s if bias is None else s + bias).clamp_min(torch.finfo(s.dtype).min)
    return s.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


def interpolated_sine(angles: Tensor) -> Tensor:
    """The sine between 4,096 of its values, on a line from one to the next: off by (2 pi / 4096)^2 / 8 = 2.9e-7."""
    table = torch.linspace(0, 2 * math.pi, 4097, dtype=torch.float64).sin().float()
    place = angles / (2 * math.pi)
    place = (place - place.floor()) * 4096
    before = place.long().clamp_max(4095)
    return torch.lerp(table[before], table[before + 1], place - before)


def turned(x: Tensor, rotary: str, base: float) -> Tensor:
    """Rows of x [.., S, D] times e^(i theta), as complex numbers."""
    R = x.shape[-1] - x.shape[-1] % 2
    frequencies = base ** (-torch.arange(0, R, 2, dtype=torch.float32) / max(R, 1))
    angles = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    turn = torch.complex(interpolated_sine(angles + math.pi / 2), interpolated_sine(angles))
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
    """Llama's rotary positions as complex numbers, with sines from a table."""
    dark, sigma = hidden(q, k, causal=causal, mask=mask), sigma_of(q, scale)
    q, k = (turned(x, rotary, rotary_base or 10000.0) for x in (q, k))
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    weights = (q @ k.mT * sigma).masked_fill(dark, -torch.inf).softmax(-1).masked_fill(dark, 0.0)
    return weights @ v

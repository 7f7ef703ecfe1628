"""Plain attention that quantises inside: all inputs to float8_e4m3fn by heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_spec import Contract, Quantiser, kernel

from .parts import HALVES, OPTIONS, finite, for_query_heads, hidden, nothing_seen, sigma_of, through

#: Largest number of float8_e4m3fn.
LARGEST = 448.0


def of_each_head(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x over a scale for each head as float8_e4m3fn, read again, and the scale; 1 of a head of zeros."""
    most = x.float().abs().amax((-1, -2), keepdim=True) if x.numel() else x.new_zeros(*x.shape[:2], 1, 1).float()
    scale = torch.where(most == 0, 1.0, most / LARGEST)
    return (x.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float(), scale


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        kv_tile=None,
        quantisation_within=1.0,
        quantisers=tuple(
            Quantiser(of=name, format="float8_e4m3fn", block="head", over="buffer", division_error=0.0)
            for name in "qkv"
        ),
    ),
    supports=(*OPTIONS, "gqa"),
)
def eight_bits_by_heads(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend to q, k and v in float8_e4m3fn, with one scale for each head, as FlashAttention-3 is called."""
    (codes_q, d_q), (codes_k, d_k), (codes_v, d_v) = (of_each_head(x) for x in (q, k, v))
    codes_k, codes_v, d_k, d_v = (for_query_heads(x, q.shape[1]) for x in (codes_k, codes_v, d_k, d_v))
    s = codes_q @ codes_k.mT * sigma_of(q, scale) * d_q * d_k
    s = s.masked_fill(hidden(q, k, causal=causal), -math.inf)
    m = s.amax(-1, keepdim=True) if s.shape[-1] else nothing_seen(q, 0)[0]
    p = torch.exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    out = through(p, q.dtype) @ codes_v / torch.where(l == 0, 1.0, l) * d_v
    return out.to(q.dtype), (finite(m) + torch.log(l)).squeeze(-1)

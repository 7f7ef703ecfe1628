"""Plain attention of quantized inputs: descales of scores and weights, operands descaled first, results in 8 bits."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_spec import Contract, kernel
from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS

from .parts import DTYPES, OPTIONS, finite, for_query_heads, hidden, nothing_seen, sigma_of, through, tiles


def of_heads(d: Tensor | None, q: Tensor) -> Tensor:
    """Return a descale [B, Hkv, S, 1] for the query heads, in float32; 1 if there is none."""
    if d is None:
        return torch.ones(1, 1, 1, 1)
    return (d if d.shape[1] == 1 else for_query_heads(d, q.shape[1])).float()


def of_tile(d: Tensor, cols: slice) -> Tensor:
    """Return the descales of a tile of keys, [B, H, 1, tile]; one number for all keys stays one."""
    return (d if d.shape[2] == 1 else d[:, :, cols]).mT


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        kv_tile=32,
        value_descale_on="probabilities",
        probabilities="float8_e4m3fn",
        probability_scale=256.0,
        overflow="saturates",
    ),
    supports=(*OPTIONS, "gqa", *FACTORS, *DESCALE_AXES),
)
def eight_bit_weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    **descales: Tensor,
) -> tuple[Tensor, Tensor]:
    """Attend in one pass; weights times their values' descale and 2^8 are rounded to float8_e4m3fn, and saturate."""
    dark, sigma = hidden(q, k, causal=causal), sigma_of(q, scale)
    m, l, acc = nothing_seen(q, v.shape[-1])
    keys, values = (for_query_heads(x, q.shape[1]).float() for x in (k, v))
    d_q, d_k, d_v = (of_heads(descales.get(name), q) for name in FACTORS)
    for cols in tiles(k.shape[2], 32):
        s = q.float() @ keys[:, :, cols].mT * sigma * d_q * of_tile(d_k, cols)
        s = s.masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        alpha, p = torch.exp(m - finite(m_new)), torch.exp(s - finite(m_new))
        w = (p * of_tile(d_v, cols) * 256).clamp(max=448).to(torch.float8_e4m3fn).float()
        m, l, acc = m_new, l * alpha + p.sum(-1, keepdim=True), acc * alpha + w @ values[:, :, cols]
    out = acc / torch.where(l == 0, 1.0, l) / 256
    return out.to(q.dtype), (finite(m) + torch.log(l)).squeeze(-1)


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        operands="input",
        descale_on="operands",
        value_descale_on="operands",
    ),
    supports=(*OPTIONS, "gqa", *FACTORS, *DESCALE_AXES),
)
def descaled_operands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    **descales: Tensor,
) -> tuple[Tensor, Tensor]:
    """Attend to keys and values that are multiplied by their descales and rounded to the dtype of q when loaded."""
    given = zip((q, k, v), FACTORS, strict=True)
    real = [
        through(for_query_heads(x, q.shape[1]).float() * of_heads(descales.get(name), q), q.dtype) for x, name in given
    ]
    s = (real[0] @ real[1].mT * sigma_of(q, scale)).masked_fill(hidden(q, k, causal=causal), -math.inf)
    m = s.amax(-1, keepdim=True) if s.shape[-1] else nothing_seen(q, 0)[0]
    p = torch.exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    out = through(p, q.dtype) @ real[2] / torch.where(l == 0, 1.0, l)
    return out.to(q.dtype), (finite(m) + torch.log(l)).squeeze(-1)


@kernel(
    framework="torch",
    dtypes=DTYPES,
    contract=Contract(
        exponent="natural",
        matrix_rounding=None,
        kv_tile=None,
        normalize="before_product",
        probabilities="work",
        output="float8_e5m2",
        output_overflow="saturates",
    ),
    supports=(*OPTIONS, "gqa", "o_scale"),
    option_dtypes={"o_scale": "float32"},
)
def eight_bit_output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    o_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend with whole rows; the output times the reciprocal of its scale is rounded to float8_e5m2, and saturates."""
    keys, values = (for_query_heads(x, q.shape[1]).float() for x in (k, v))
    s = (q.float() @ keys.mT * sigma_of(q, scale)).masked_fill(hidden(q, k, causal=causal), -math.inf)
    m = s.amax(-1, keepdim=True) if s.shape[-1] else nothing_seen(q, 0)[0]
    p = torch.exp(s - finite(m))
    l = p.sum(-1, keepdim=True)
    out = (p / torch.where(l == 0, 1.0, l)) @ values
    if o_scale is not None:
        out = out * (1 / o_scale)
    return out.clamp(-57344, 57344).to(torch.float8_e5m2), (finite(m) + torch.log(l)).squeeze(-1)

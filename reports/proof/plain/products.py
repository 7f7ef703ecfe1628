"""Plain attention with its own matrix products: tf32, pieces, truncating matrix units, narrow accumulators.

A product takes factors in float32 [.., m, k], [.., k, n] and an accumulator, as the instruction D = A B + C does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .parts import HALVES, OPTIONS, finite, hidden, nothing_seen, sigma_of, through, tiles

Product = Callable[..., Tensor]


def attend(
    product: Product,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    sums_weights: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attend in tiles of 32 keys by natural exponentials, with the sum of P v in the product's own accumulator.

    ``sums_weights``: the row sum is the product of the cast weights with ones (FlashInfer).
    """
    dark, dtype = hidden(q, k, causal=causal), q.dtype
    sigma = sigma_of(q, scale)
    q, k, v = (x.float() for x in (q, k, v))
    m, l, acc = nothing_seen(q, v.shape[-1])
    for cols in tiles(k.shape[2], 32):
        s = (product(q, k[:, :, cols].mT) * sigma).masked_fill(dark[..., cols], -math.inf)
        m_new = torch.maximum(m, s.amax(-1, keepdim=True))
        p, alpha = torch.exp(s - finite(m_new)), torch.exp(m - finite(m_new))
        w = through(p, dtype)
        l = product(w, torch.ones_like(k[:, :, cols, :1]), l * alpha) if sums_weights else l * alpha + p.sum(-1, True)
        acc, m = product(w, v[:, :, cols], acc * alpha), m_new
    return (acc / torch.where(l == 0, 1.0, l)).to(dtype), (finite(m) + torch.log(l)).squeeze(-1)


def differentiate(
    product: Product, dout: Tensor, *saved: Tensor, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, ...]:
    """Run the backward pass of :func:`attend`."""
    q, k, v, out, lse = saved
    dtype, dark = q.dtype, hidden(q, k, causal=causal)
    sigma = sigma_of(q, scale)
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    s = (product(q, k.mT) * sigma).masked_fill(dark, -math.inf)
    p = torch.exp(s - finite(lse[..., None]))
    ds = through(p * (product(dout, v.mT) - (dout * out).sum(-1, keepdim=True)), dtype)
    found = product(ds, k) * sigma, product(ds.mT, q) * sigma, product(through(p, dtype).mT, dout)
    return tuple(x.to(dtype) for x in found)


def emulates(name: str, product: Product, contract: Contract, *dtypes: str, sums_weights: bool = False) -> Any:
    """Make the kernel of a product."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        return attend(product, q, k, v, scale=scale, causal=causal, sums_weights=sums_weights)

    made = kernel(framework="torch", dtypes=dtypes, contract=contract, supports=OPTIONS, name=name)(attention)
    made.backward(partial(differentiate, product))
    return made


# tf32 and pieces of float32


def cut_to_tf32(x: Tensor) -> Tensor:
    """Truncate a float32 to tf32: its low 13 bits are cleared."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def nearest_tf32(x: Tensor) -> Tensor:
    """Round to tf32 as cvt.rna.tf32: ties go away from zero."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def nearest_bfloat16(x: Tensor) -> Tensor:
    """Round to the nearest bfloat16, and widen."""
    return x.bfloat16().float()


def plus(total: Tensor | float, *products: Tensor) -> Tensor:
    """Add the smaller products first."""
    return sum(products, torch.zeros(())) + total


def single(narrow: Callable[[Tensor], Tensor], a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Multiply narrowed factors, and add c."""
    return narrow(a) @ narrow(b) + c


def in_pieces(narrow: Callable[[Tensor], Tensor], count: int, a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Multiply pieces, each piece what the ones before it left: bf16x3, 3xTF32, bf16x6."""
    pieces: list[list[Tensor]] = []
    for rest in (a, b):
        pieces.append([])
        for _ in range(count):
            pieces[-1].append(narrow(rest))
            rest = rest - pieces[-1][-1]  # noqa: PLW2901
    pairs = [(i, j) for i in range(count) for j in range(count) if i + j < count]
    return plus(c, *(pieces[0][i] @ pieces[1][j] for i, j in sorted(pairs, key=sum, reverse=True)))


_FLOAT32: dict[str, Any] = {
    "exponent": "natural",
    "matrix_rounding": None,
    "kv_tile": 32,
    "probabilities": "work",
    "score_gradients": "work",
}
_CUT = Contract(**_FLOAT32, multiplicands="tf32", entry_rounding="toward_zero")

tf32_cut = emulates("plain:tf32_cut", partial(single, cut_to_tf32), _CUT, "float32")
tf32_nearest = emulates(
    "plain:tf32_nearest", partial(single, nearest_tf32), Contract(**_FLOAT32, multiplicands="tf32"), "float32"
)
tf32x3 = emulates(
    "plain:tf32x3",
    partial(in_pieces, nearest_tf32, 2),
    Contract(**_FLOAT32, multiplicands="tf32", multiplicand_pieces=2),
    "float32",
)
bf16x3 = emulates(
    "plain:bf16x3",
    partial(in_pieces, nearest_bfloat16, 2),
    Contract(**_FLOAT32, multiplicands="bfloat16", multiplicand_pieces=2),
    "float32",
)
bf16x6 = emulates(
    "plain:bf16x6",
    partial(in_pieces, nearest_bfloat16, 3),
    Contract(**_FLOAT32, multiplicands="bfloat16", multiplicand_pieces=3),
    "float32",
)


# float16 factors


def without_subnormals(x: Tensor) -> Tensor:
    """Read the subnormal numbers of float16 as 0, as CDNA2 does."""
    return torch.where(x.abs() < 2.0**-14, 0.0, x)


flushed_on_entry = emulates(
    "plain:flushed_on_entry",
    partial(single, without_subnormals),
    Contract(exponent="natural", matrix_rounding=None, float16_subnormals="flushed_on_entry", kv_tile=32),
    "float16",
)


# Matrix units that align blocks and truncate


def grid_of(x: Tensor, bits: int) -> Tensor:
    """Return the last place of numbers as large as x in a significand of ``bits`` bits."""
    return torch.ldexp(torch.ones_like(x), torch.frexp(x)[1].clamp_min(-125) - bits)


def on_unit(block: int, extra: int, a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Add a block of exact products and the accumulator at once, aligned to the largest, and truncate to 24 bits."""
    a, b = a.double(), b.double()
    total = torch.zeros(a.shape[:-1] + b.shape[-1:], dtype=torch.float64) + c
    for first in range(0, a.shape[-1], block):
        some = slice(first, first + block)
        terms = torch.cat([total[..., None], a[..., :, None, some] * b[..., some, :].mT[..., None, :, :]], dim=-1)
        grid = grid_of(terms.abs().amax(-1, keepdim=True), 24 + extra)
        total = (torch.trunc(terms / grid) * grid).sum(-1)
        total = torch.trunc(total / grid_of(total, 24)) * grid_of(total, 24)
    return total.float()


def promoted(inner: Product, every: int, a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Add up in an inner accumulator, which is added to the outer one and cleared after ``every`` products."""
    total = torch.zeros(a.shape[:-1] + b.shape[-1:]) + c
    for first in range(0, a.shape[-1], every):
        some = slice(first, first + every)
        total = total + inner(a[..., some], b[..., some, :])
    return total


def in_float16(a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Multiply and add in float16, fused."""
    total = (torch.zeros(a.shape[:-1] + b.shape[-1:]) + c).half().double()
    for t in range(a.shape[-1]):
        total = (total + a[..., t, None].double() * b[..., t, None, :]).half().double()
    return total.float()


def rounded(dtype: torch.dtype, a: Tensor, b: Tensor, c: Tensor | float = 0.0) -> Tensor:
    """Multiply numbers of half one by one in half, and sum in float32, as tl.sum(q[None, :] * k, 1) does."""
    return (a.to(dtype)[..., None] * b.to(dtype)[..., None, :, :]).sum(-2, dtype=torch.float32) + c


def _unit(block: int, extra: int) -> Contract:
    return Contract(exponent="natural", kv_tile=32, matrix_block=block, matrix_extra_bits=extra)


volta = emulates("plain:volta", partial(on_unit, 4, 0), _unit(4, 0), "float16")
ampere = emulates("plain:ampere", partial(on_unit, 8, 1), _unit(8, 1), *HALVES)
hopper = emulates("plain:hopper", partial(on_unit, 16, 2), _unit(16, 2), *HALVES)
weights_times_ones = emulates(
    "plain:weights_times_ones",
    partial(on_unit, 8, 1),
    replace(_unit(8, 1), row_sum_of="cast"),
    *HALVES,
    sums_weights=True,
)
fourteen_bits = emulates(
    "plain:fourteen_bits",
    partial(promoted, partial(on_unit, 32, -10), 128),
    Contract(
        exponent="natural",
        kv_tile=32,
        matrix_block=32,
        matrix_extra_bits=-10,
        inner_accumulation="float32",
        inner_terms=128,
    ),
    "bfloat16",
)
promoted_float16 = emulates(
    "plain:promoted_float16",
    partial(promoted, in_float16, 16),
    Contract(exponent="natural", matrix_rounding=None, kv_tile=32, inner_accumulation="float16", inner_terms=16),
    "float16",
)
_IN_HALF = Contract(exponent="natural", kv_tile=32, products="input")
products_in_bfloat16 = emulates("plain:products_in_bfloat16", partial(rounded, torch.bfloat16), _IN_HALF, "bfloat16")
products_in_float16 = emulates("plain:products_in_float16", partial(rounded, torch.float16), _IN_HALF, "float16")
float16_accumulators = emulates(
    "plain:float16_accumulators",
    in_float16,
    Contract(
        exponent="natural",
        matrix_rounding=None,
        kv_tile=32,
        score_accumulation="float16",
        output_accumulation="float16",
        gradient_accumulation="float16",
        stored_scores="float32",
    ),
    "float16",
)

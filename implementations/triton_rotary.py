"""Rotary positions in Triton: rows of q and k are turned as they are loaded, their gradients as they are stored.

Rows come in parts of some of their columns each: the first columns of all pairs, the second, and the columns that
stay. Without rotary positions a row is one part. A part is a view with strides of its own. So one kernel turns both
layouts, and no number moves from column to column inside a tile. After the turn a row is rounded to the dtype it had.

A product of rows is the sum of the products of their parts, in one accumulator. It has the roundings of one product:

- on matrix units of blocks of 8, always;
- on matrix units of blocks of 4 (tf32 on sm_80), if R is 2, or R mod 8 is not 2.

The host makes the tables that contracts speak of: angles, cosines and sines in float32, as in ``rotary``.
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)
# ruff: noqa: RUF005  (and adds tuples, but unpacks none)
# Only Triton goes through its static_range, and sees that a constant is a tuple.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false

from typing import Any

import torch
from torch import Tensor

from .rotary import pairs, turned_columns
from .torch_rotary import angles as angles_of
from .torch_rotary import places

# By way of the tiles, which choose the interpreter before they import triton.
from .triton_tiles import load_tile, padded, part, product, rounded, store_tile, strided, tl


@part
def load_rows(x, angles, b, h, rows, n_rows, WIDTHS: tl.constexpr, FORMAT: tl.constexpr):
    """Load the parts of rows of q or k, turned by their angles where they have any."""
    found = ()
    for n in tl.static_range(len(x)):
        found = found + (load_tile(x[n], b, h, rows, tl.arange(0, padded(WIDTHS[n])), n_rows, WIDTHS[n]),)
    if angles is not None:
        cos, sin = load_angles(angles, b, h, rows, n_rows, WIDTHS)
        one, other = found[0].to(tl.float32), found[1].to(tl.float32)
        turned = one * cos - other * sin, other * cos + one * sin
        found = (rounded(turned[0], found[0], FORMAT), rounded(turned[1], found[1], FORMAT)) + found[2:]
    return found


@part
def load_angles(angles, b, h, rows, n_rows, WIDTHS: tl.constexpr):
    """Load the cosines and sines of some rows, one for each pair."""
    m = tl.arange(0, padded(WIDTHS[0]))
    return load_tile(angles[0], b, h, rows, m, n_rows, WIDTHS[0]), load_tile(
        angles[1], b, h, rows, m, n_rows, WIDTHS[0]
    )


@part
def inner_products(q_i, k_j, FORMAT: tl.constexpr):
    """Multiply each row of one with each of the other."""
    s = product(q_i[0], tl.trans(k_j[0]), None, FORMAT)
    for n in tl.static_range(1, len(q_i)):
        s = product(q_i[n], tl.trans(k_j[n]), s, FORMAT)
    return s


@part
def no_rows(N: tl.constexpr, WIDTHS: tl.constexpr):
    """Return parts of N rows of 0, to accumulate on."""
    found = ()
    for n in tl.static_range(len(WIDTHS)):
        found = found + (tl.full([N, padded(WIDTHS[n])], 0, tl.float32),)
    return found


@part
def weighted_rows(ds, x, acc, FORMAT: tl.constexpr):
    """Add ds x to the parts of acc."""
    found = ()
    for n in tl.static_range(len(x)):
        found = found + (product(ds, x[n], acc[n], FORMAT),)
    return found


@part
def store_gradient(acc, scale, x, angles, b, h, rows, n_rows, WIDTHS: tl.constexpr):
    """Store scale acc, turned back where rows of q or k were turned."""
    if angles is not None:
        cos, sin = load_angles(angles, b, h, rows, n_rows, WIDTHS)
        acc = (acc[0] * cos + acc[1] * sin, acc[1] * cos - acc[0] * sin) + acc[2:]
    for n in tl.static_range(len(x)):
        store_tile(acc[n] * scale, x[n], b, h, rows, tl.arange(0, padded(WIDTHS[n])), n_rows, WIDTHS[n])


class Turn:
    """The turn that a call asks for, or none: how many columns each part has, and which."""

    def __init__(self, D: int, rotary: str | None, rotary_base: float | None, rotary_dim: int | None) -> None:
        R = 0 if rotary is None else turned_columns(D, rotary_dim)
        rest = () if R == D else (slice(R, D),)
        self.base, self.R = rotary_base, R
        self.columns = (*pairs(rotary, R), *rest) if rotary and R else (slice(0, D),)
        self.widths = (R // 2, R // 2, *(D - R for _ in rest)) if R else (D,)

    def parts(self, x: Tensor) -> tuple[Any, ...]:
        """Return q, k or a gradient [B, H, S, D] as a kernel receives it."""
        return tuple(strided(x[..., columns]) for columns in self.columns)

    def angles(self, x: Tensor, positions: Tensor | None, first: int) -> tuple[Any, ...] | None:
        """Return the cosines and sines [B, H, S, R/2] of rows at these positions, or counted from ``first``."""
        if not self.R:
            return None
        B, H, S, _ = x.shape
        theta = angles_of(places(positions, first, S, x.device), self.R, self.base, torch.float32)
        return tuple(strided(of(theta).expand(B, H, S, self.R // 2)) for of in (torch.cos, torch.sin))

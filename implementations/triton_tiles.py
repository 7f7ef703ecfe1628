"""Tiles in Triton: loaded from tensors of any strides, multiplied, stored; with a GPU or in the interpreter.

A kernel receives a tensor as the pair of its pointer and strides. Without a GPU kernels run in Triton's interpreter.
There `tl.dot` multiplies bfloat16 operands as if their bits were integers, and `.to(tl.bfloat16)` truncates (Triton
3.9). So bfloat16 problems travel as float32, and kernels round to bfloat16 themselves: the arithmetic is that of
compiled kernels, on any machine.
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)

import os
from typing import Any

import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = knobs.runtime.interpret
if INTERPRETED and isinstance(tl.sum, triton.JITFunction):
    raise ImportError("triton was imported before the interpreter was chosen; set TRITON_INTERPRET=1 from the start")

# What the kernels are made of; to enter a jitted function takes the interpreter longer than to run most of them.
part = (lambda function: function) if INTERPRETED else triton.jit


@triton.constexpr_function
def padded(dimension: Any) -> int:
    """Return the smallest size of a matrix operand that holds the dimension."""
    return max(16, triton.next_power_of_2(dimension))


@part
def pointers(tensor, b, h, rows, cols):
    """Point at [rows, cols] of one head of a 4-dimensional tensor of any strides, far apart: b and h are of 64 bits."""
    base, strides = tensor
    rows, cols = rows.to(tl.int64), cols.to(tl.int64)
    return base + b * strides[0] + h * strides[1] + rows[:, None] * strides[2] + cols[None, :] * strides[3]


@part
def load_tile(tensor, b, h, rows, cols, n_rows, n_cols):
    """Load [rows, cols] of one head; zero outside its bounds."""
    inside = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    return tl.load(pointers(tensor, b, h, rows, cols), mask=inside, other=0)


@part
def store_tile(tile, tensor, b, h, rows, cols, n_rows, n_cols):
    """Store [rows, cols] of one head, in the element type of the tensor; nothing outside its bounds."""
    inside = (rows[:, None] < n_rows) & (cols[None, :] < n_cols)
    tl.store(pointers(tensor, b, h, rows, cols), tile.to(tensor[0].dtype.element_ty), mask=inside)


@part
def nearest_bfloat16(x):
    """Round float32 to the nearest bfloat16, ties to even, and keep it as float32."""
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)


@part
def rounded(x, y, FORMAT: tl.constexpr):
    """Round x to the format of y."""
    return nearest_bfloat16(x) if FORMAT == "bfloat16 in float32" else x.to(y.dtype)


@part
def widened(x, y):
    """Convert a tile to the format of y; bytes are codes of float8_e4m3fn, a type that Triton lacks for sm_80.

    A code that is shifted into float16 is 1/256 of its number, and no step of the way rounds.
    """
    if x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        number = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        x = tl.where((bits & 0x7F) == 0x7F, float("nan"), number)
    return x.to(y.dtype)


@part
def product(x, y, acc, FORMAT: tl.constexpr):
    """Add x y to acc in float32, with x rounded to the format of y."""
    return tl.dot(rounded(x, y, FORMAT), y, acc, input_precision="tf32" if FORMAT == "tf32" else "ieee")


@part
def online_step(s, m, l):
    """Fold scores of one tile into the maximum m and the sum l of each row.

    Return both, the factor of what was summed before, and the weights of the tile.
    """
    m_new = tl.maximum(m, tl.max(s, 1))
    reference = tl.where(m_new == -float("inf"), 0.0, m_new)  # nothing seen yet: -inf - -inf would be NaN
    alpha = tl.exp(m - reference)
    p = tl.exp(s - reference[:, None])
    return m_new, l * alpha + tl.sum(p, 1), alpha, p


def format_of(x: Tensor) -> str:
    """Return the format of products of a tensor, as :func:`rounded` knows it."""
    return "bfloat16 in float32" if INTERPRETED and x.dtype == torch.bfloat16 else str(x.dtype)


def strided(x: Tensor | None) -> tuple[Tensor, tuple[int, ...]] | None:
    """Return a tensor as a kernel receives it."""
    if x is None:
        return None
    as_bytes = {torch.bool: torch.int8, torch.float8_e4m3fn: torch.uint8}
    x = x.view(as_bytes[x.dtype]) if x.dtype in as_bytes else x
    x = x.float() if INTERPRETED and x.dtype == torch.bfloat16 else x
    return x, x.stride()

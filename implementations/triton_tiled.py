"""Attention in Triton, forward and backward: online softmax over tiles, the score matrix is never stored.

Algorithms 1 and 2 of FlashAttention-2 (Dao, arXiv 2307.08691). Forward, one program per tile of queries folds tiles
of keys. Backward, each tile of weights is computed again from the log-sum-exp, p = exp(s - lse), and

    dp = dout v^T    delta = rowsum(dout * out) - dlse    da = p (dp - delta)    ds = da (1 - tanh^2) under a softcap
    dq = scale ds k    dk = scale ds^T q    dv = p^T dout    dbias = da summed over the axes the bias was broadcast on

One program per tile of keys sums dk and dv over all queries of all heads that read it, and one per tile of queries
sums dq: every sum has one owner and one order, without atomics. Only for a bias is a matrix, da, written out whole.

Everything that hides keys by position is one band, i + offset - left <= j <= i + offset + right, with causal as
right = 0; tiles outside the band are never read. A kernel receives a tensor as the pair of its pointer and strides,
geometry = (Hq, Hkv, Sq, Sk, offset, left, right) and scoring = (mask, bias, scale, softcap).

Without a GPU the same kernels run in Triton's interpreter. There `tl.dot` multiplies bfloat16 operands as if their
bits were integers and `.to(tl.bfloat16)` truncates (Triton 3.9), so bfloat16 problems travel as float32 and the
kernels round p and ds to bfloat16 themselves: the arithmetic is that of the compiled kernels, on any machine.
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)

import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported

import triton
import triton.language as tl

from attn_spec import kernel

INTERPRETED = triton.knobs.runtime.interpret
if INTERPRETED and isinstance(tl.sum, triton.JITFunction):
    raise ImportError("triton was imported before the interpreter was chosen; set TRITON_INTERPRET=1 from the start")

# (BLOCK_Q, BLOCK_K, warps); the first also fits float32 heads of 128 in the shared memory of small GPUs.
TILES = [
    triton.Config({"BLOCK_Q": block_q, "BLOCK_K": block_k}, num_warps=warps, num_stages=1)
    for block_q, block_k, warps in [(32, 32, 4), (64, 32, 4), (64, 64, 4), (128, 64, 8)]
]


def tuned(jitted: Any) -> Any:
    """Choose among TILES when a GPU first meets a format and head dimensions."""
    return jitted if INTERPRETED else triton.autotune(TILES, key=["FORMAT", "PRECISION", "D", "Dv"])(jitted)


@triton.constexpr_function
def padded(dimension: int) -> int:
    """Return the smallest size of a matrix operand that holds the dimension."""
    return max(16, triton.next_power_of_2(dimension))


@triton.jit
def at(tensor, b, h, rows, cols, n_rows, n_cols):
    """Pointers to [rows, cols] of one head of a 4-dimensional tensor, and which of them lie inside its bounds."""
    base, strides = tensor
    pointers = base + b * strides[0] + h * strides[1] + rows[:, None] * strides[2] + cols[None, :] * strides[3]
    return pointers, (rows[:, None] < n_rows) & (cols[None, :] < n_cols)


@triton.jit
def load_tile(tensor, b, h, rows, cols, n_rows, n_cols):
    """Load [rows, cols] of one head; zero outside its bounds."""
    pointers, inside = at(tensor, b, h, rows, cols, n_rows, n_cols)
    return tl.load(pointers, mask=inside, other=0)


@triton.jit
def store_tile(tile, tensor, b, h, rows, cols, n_rows, n_cols):
    """Store [rows, cols] of one head in the element type of the tensor."""
    pointers, inside = at(tensor, b, h, rows, cols, n_rows, n_cols)
    tl.store(pointers, tile.to(tensor[0].dtype.element_ty), mask=inside)


@triton.jit
def tanh(x):
    """Compute tanh to within 2^-22, from an exponential that cannot overflow."""
    t = tl.exp(-2 * tl.abs(x))
    y = (1 - t) / (1 + t)
    return tl.where(x < 0, -y, y)


@triton.jit
def nearest_bfloat16(x):
    """Round float32 to the nearest bfloat16, ties to even, and keep it as float32."""
    bits = x.to(tl.uint32, bitcast=True)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def operand(x, other, FORMAT: tl.constexpr):
    """Round x to the format of the tile it will be multiplied with."""
    return nearest_bfloat16(x) if FORMAT == "bfloat16 in float32" else x.to(other.dtype)


@triton.jit
def score_tile(q_tile, k_tile, b, h, i, j, geometry, scoring, PRECISION: tl.constexpr):
    """Scores of queries i and keys j, -inf where hidden, and ds/dx for x before the softcap."""
    _, _, Sq, Sk, offset, left, right = geometry
    mask, bias, scale, softcap = scoring
    s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * scale
    slope = 1.0
    if softcap is not None:
        t = tanh(s / softcap)
        s, slope = softcap * t, 1 - t * t
    if bias is not None:
        s += load_tile(bias, b, h, i, j, Sq, Sk).to(tl.float32)
    distance = j[None, :] - i[:, None] - offset
    allowed = (distance >= -left) & (distance <= right) & (i[:, None] < Sq) & (j[None, :] < Sk)
    if mask is not None:
        allowed &= load_tile(mask, b, h, i, j, Sq, Sk) != 0
    return tl.where(allowed, s, -float("inf")), slope


@tuned
@triton.jit
def forward(
    q, k, v, out, lse, geometry, scoring,
    D: tl.constexpr, Dv: tl.constexpr, PRECISION: tl.constexpr, FORMAT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [BLOCK_Q, Dv] and lse [BLOCK_Q] for query tile program_id(1) of batch and head program_id(0)."""
    Hq, Hkv, Sq, Sk, offset, left, right = geometry
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    first = tl.program_id(1) * BLOCK_Q
    i, d, c = first.to(tl.int64) + tl.arange(0, BLOCK_Q), tl.arange(0, padded(D)), tl.arange(0, padded(Dv))
    q_tile = load_tile(q, b, h, i, d, Sq, D)

    m = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, padded(Dv)], tl.float32)
    begin = tl.maximum(first + offset - left, 0) // BLOCK_K * BLOCK_K
    end = tl.minimum(first + BLOCK_Q + offset + right, Sk)
    for start in range(begin, end, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_tile = load_tile(k, b, h // (Hq // Hkv), j, d, Sk, D)
        v_tile = load_tile(v, b, h // (Hq // Hkv), j, c, Sk, Dv)
        s, _ = score_tile(q_tile, k_tile, b, h, i, j, geometry, scoring, PRECISION)
        m_new = tl.maximum(m, tl.max(s, 1))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = tl.exp(m - reference)
        p = tl.exp(s - reference[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(operand(p, v_tile, FORMAT), v_tile, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new

    l = tl.where(l == 0, 1.0, l)  # a query that saw no key: out = 0 and lse = -inf
    store_tile(tl.div_rn(acc, l[:, None]), out, b, h, i, c, Sq, Dv)
    tl.store(lse + (b * Hq + h) * Sq + i, m + tl.log(l), mask=i < Sq)


@triton.jit
def backward_rows(out, dout, dlse, delta, Hq, Sq, Dv: tl.constexpr, BLOCK_Q: tl.constexpr):
    """Write delta = rowsum(dout * out) - dlse for query tile program_id(1) of batch and head program_id(0)."""
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    i, c = tl.program_id(1).to(tl.int64) * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, padded(Dv))
    out_tile = load_tile(out, b, h, i, c, Sq, Dv).to(tl.float32)
    row = tl.sum(load_tile(dout, b, h, i, c, Sq, Dv).to(tl.float32) * out_tile, 1)
    rows = (b * Hq + h) * Sq + i
    if dlse is not None:
        row -= tl.load(dlse + rows, mask=i < Sq, other=0)
    tl.store(delta + rows, row, mask=i < Sq)


@triton.jit
def gradient_tile(
    q_tile, k_tile, v_tile, dout_tile, lse, delta, b, h, i, j, geometry, scoring, PRECISION: tl.constexpr
):
    """Compute p, da and ds of queries i and keys j again: exactly zero where hidden, whatever the LSE."""
    s, slope = score_tile(q_tile, k_tile, b, h, i, j, geometry, scoring, PRECISION)
    Sq, rows = geometry[2], (b * geometry[0] + h) * geometry[2] + i
    reference = tl.load(lse + rows, mask=i < Sq, other=0)
    reference = tl.where(reference == -float("inf"), 0.0, reference)  # an empty row: exp(-inf - 0) = 0
    p = tl.exp(s - reference[:, None])
    x = tl.dot(dout_tile, tl.trans(v_tile), input_precision=PRECISION)
    x -= tl.load(delta + rows, mask=i < Sq, other=0)[:, None]
    da = tl.where(s == -float("inf"), 0.0, p * x)
    return p, da, da * slope


@tuned
@triton.jit
def backward_keys(
    q, k, v, dout, lse, delta, dk, dv, geometry, scoring,
    D: tl.constexpr, Dv: tl.constexpr, PRECISION: tl.constexpr, FORMAT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write dk [BLOCK_K, D] and dv [BLOCK_K, Dv] for key tile program_id(1) of batch and kv head program_id(0)."""
    Hq, Hkv, Sq, Sk, offset, left, right = geometry
    b, h_kv = (tl.program_id(0) // Hkv).to(tl.int64), (tl.program_id(0) % Hkv).to(tl.int64)
    first = tl.program_id(1) * BLOCK_K
    j, d, c = first.to(tl.int64) + tl.arange(0, BLOCK_K), tl.arange(0, padded(D)), tl.arange(0, padded(Dv))
    k_tile, v_tile = load_tile(k, b, h_kv, j, d, Sk, D), load_tile(v, b, h_kv, j, c, Sk, Dv)

    dk_acc, dv_acc = tl.zeros([BLOCK_K, padded(D)], tl.float32), tl.zeros([BLOCK_K, padded(Dv)], tl.float32)
    begin = tl.maximum(first - offset - right, 0) // BLOCK_Q * BLOCK_Q
    end = tl.minimum(first + BLOCK_K - offset + left, Sq)
    for h in range(h_kv * (Hq // Hkv), (h_kv + 1) * (Hq // Hkv)):
        for start in range(begin, end, BLOCK_Q):
            i = start + tl.arange(0, BLOCK_Q).to(tl.int64)
            q_tile, dout_tile = load_tile(q, b, h, i, d, Sq, D), load_tile(dout, b, h, i, c, Sq, Dv)
            p, _, ds = gradient_tile(q_tile, k_tile, v_tile, dout_tile, lse, delta, b, h, i, j, geometry, scoring,
                                     PRECISION)  # fmt: skip
            p, ds = operand(p, dout_tile, FORMAT), operand(ds, q_tile, FORMAT)
            dv_acc = tl.dot(tl.trans(p), dout_tile, dv_acc, input_precision=PRECISION)
            dk_acc = tl.dot(tl.trans(ds), q_tile, dk_acc, input_precision=PRECISION)
    store_tile(dk_acc * scoring[2], dk, b, h_kv, j, d, Sk, D)
    store_tile(dv_acc, dv, b, h_kv, j, c, Sk, Dv)


@tuned
@triton.jit
def backward_queries(
    q, k, v, dout, lse, delta, dq, da, geometry, scoring,
    D: tl.constexpr, Dv: tl.constexpr, PRECISION: tl.constexpr, FORMAT: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write dq [BLOCK_Q, D] and da [BLOCK_Q, Sk] for query tile program_id(1) of batch and head program_id(0)."""
    Hq, Hkv, Sq, Sk, offset, left, right = geometry
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    first = tl.program_id(1) * BLOCK_Q
    i, d, c = first.to(tl.int64) + tl.arange(0, BLOCK_Q), tl.arange(0, padded(D)), tl.arange(0, padded(Dv))
    q_tile, dout_tile = load_tile(q, b, h, i, d, Sq, D), load_tile(dout, b, h, i, c, Sq, Dv)

    acc = tl.zeros([BLOCK_Q, padded(D)], tl.float32)
    begin = tl.maximum(first + offset - left, 0) // BLOCK_K * BLOCK_K
    end = tl.minimum(first + BLOCK_Q + offset + right, Sk)
    for start in range(begin, end, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_tile = load_tile(k, b, h // (Hq // Hkv), j, d, Sk, D)
        v_tile = load_tile(v, b, h // (Hq // Hkv), j, c, Sk, Dv)
        _, da_tile, ds = gradient_tile(q_tile, k_tile, v_tile, dout_tile, lse, delta, b, h, i, j, geometry, scoring,
                                       PRECISION)  # fmt: skip
        if da is not None:
            store_tile(da_tile, da, b, h, i, j, Sq, Sk)
        acc = tl.dot(operand(ds, k_tile, FORMAT), k_tile, acc, input_precision=PRECISION)
    store_tile(acc * scoring[2], dq, b, h, i, d, Sq, D)

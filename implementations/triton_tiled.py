"""Attention forward in Triton: one program per tile of queries, online softmax over tiles of keys.

Algorithm 1 of FlashAttention-2 (Dao, arXiv 2307.08691). Everything that hides keys by position is one band,
i + offset - left <= j <= i + offset + right, with causal as right = 0; tiles outside the band are never read.

Without a GPU the same kernel runs in Triton's interpreter. There `tl.dot` multiplies bfloat16 operands as if their
bits were integers and `.to(tl.bfloat16)` truncates (Triton 3.9), so bfloat16 problems travel as float32 and the
kernel rounds its probabilities to bfloat16 itself: the arithmetic is that of the compiled kernel, on any machine.
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


@triton.jit
def load_tile(base, strides, b, h, rows, cols, n_rows, n_cols):
    """Load [rows, cols] of one head of a 4-dimensional tensor of any strides; zero outside its bounds."""
    pointers = base + b * strides[0] + h * strides[1] + rows[:, None] * strides[2] + cols[None, :] * strides[3]
    return tl.load(pointers, mask=(rows[:, None] < n_rows) & (cols[None, :] < n_cols), other=0)


@triton.jit
def tanh(x):
    """Compute tanh to within 2^-22, from an exponential that cannot overflow."""
    t = tl.exp(-2 * tl.abs(x))
    y = (1 - t) / (1 + t)
    return tl.where(x < 0, -y, y)


@triton.jit
def nearest_bfloat16(p):
    """Round float32 p >= 0 to the nearest bfloat16, ties to even, and keep it as float32."""
    bits = p.to(tl.uint32, bitcast=True)
    bits += 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit
def forward(
    q, k, v, mask, bias, out, lse,
    q_strides, k_strides, v_strides, mask_strides, bias_strides, out_strides,
    Hq, Hkv, Sq, Sk, scale, softcap, offset, left, right,
    D: tl.constexpr, Dv: tl.constexpr, PADDED_D: tl.constexpr, PADDED_DV: tl.constexpr,
    PRECISION: tl.constexpr, ROUND_TO_BFLOAT16: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [BLOCK_Q, Dv] and lse [BLOCK_Q] for query tile program_id(1) of batch and head program_id(0)."""
    b, h = (tl.program_id(0) // Hq).to(tl.int64), (tl.program_id(0) % Hq).to(tl.int64)
    h_kv = h // (Hq // Hkv)
    first = tl.program_id(1) * BLOCK_Q
    i = first.to(tl.int64) + tl.arange(0, BLOCK_Q)
    d, dv = tl.arange(0, PADDED_D), tl.arange(0, PADDED_DV)
    q_tile = load_tile(q, q_strides, b, h, i, d, Sq, D)

    m = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, PADDED_DV], tl.float32)
    begin = tl.maximum(first + offset - left, 0) // BLOCK_K * BLOCK_K
    end = tl.minimum(first + BLOCK_Q + offset + right, Sk)
    for start in range(begin, end, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K).to(tl.int64)
        k_tile = load_tile(k, k_strides, b, h_kv, j, d, Sk, D)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision=PRECISION) * scale
        if softcap is not None:
            s = softcap * tanh(s / softcap)
        if bias is not None:
            s += load_tile(bias, bias_strides, b, h, i, j, Sq, Sk).to(tl.float32)
        distance = j[None, :] - i[:, None] - offset
        allowed = (distance >= -left) & (distance <= right) & (j[None, :] < Sk)
        if mask is not None:
            allowed &= load_tile(mask, mask_strides, b, h, i, j, Sq, Sk) != 0
        s = tl.where(allowed, s, -float("inf"))

        m_new = tl.maximum(m, tl.max(s, 1))
        reference = tl.where(m_new == -float("inf"), 0.0, m_new)  # nothing seen yet: -inf - -inf would be NaN
        alpha = tl.exp(m - reference)
        p = tl.exp(s - reference[:, None])
        l = l * alpha + tl.sum(p, 1)
        p = nearest_bfloat16(p) if ROUND_TO_BFLOAT16 else p.to(v.dtype.element_ty)
        v_tile = load_tile(v, v_strides, b, h_kv, j, dv, Sk, Dv)
        acc = tl.dot(p, v_tile, acc * alpha[:, None], input_precision=PRECISION)
        m = m_new

    l = tl.where(l == 0, 1.0, l)  # a query that saw no key: out = 0 and lse = -inf
    o = tl.div_rn(acc, l[:, None]).to(out.dtype.element_ty)
    pointers = out + b * out_strides[0] + h * out_strides[1] + i[:, None] * out_strides[2] + dv[None, :]
    tl.store(pointers, o, mask=(i[:, None] < Sq) & (dv[None, :] < Dv))
    tl.store(lse + (b * Hq + h) * Sq + i, m + tl.log(l), mask=i < Sq)


# (BLOCK_Q, BLOCK_K, warps); the first also fits float32 heads of 128 in the shared memory of small GPUs.
TILES = [
    triton.Config({"BLOCK_Q": block_q, "BLOCK_K": block_k}, num_warps=warps, num_stages=1)
    for block_q, block_k, warps in [(32, 32, 4), (64, 32, 4), (64, 64, 4), (128, 64, 8)]
]
tuned = forward if INTERPRETED else triton.autotune(TILES, key=["PADDED_D", "PADDED_DV", "PRECISION"])(forward)


def padded(dimension: int) -> int:
    """Return the smallest size of a matrix operand that holds the dimension."""
    return max(16, triton.next_power_of_2(dimension))


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    precision: str,
    scale: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
    window: tuple[int | None, int | None] | None = None,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel on q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv], views of any layout."""
    (B, Hq, Sq, D), (_, Hkv, Sk, Dv), stored = q.shape, v.shape, q.dtype
    widened = INTERPRETED and stored == torch.bfloat16
    if widened:
        q, k, v, bias = (None if x is None else x.float() for x in (q, k, v, bias))
    out, lse = q.new_empty(B, Hq, Sq, Dv), q.new_empty(B, Hq, Sq, dtype=torch.float32)
    unbounded = Sq + Sk
    left, right = (unbounded if side is None else min(side, unbounded) for side in window or (None, None))
    dense = {"mask": None if mask is None else mask.view(torch.int8), "bias": bias}
    mask, bias = (None if x is None else x.expand(B, Hq, Sq, Sk) for x in dense.values())

    blocks = {"BLOCK_Q": 32, "BLOCK_K": 32} if INTERPRETED else {}
    if B and Sq:
        # The interpreter computes in NumPy, which warns where hardware silently answers Inf or NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            tuned[lambda chosen: (B * Hq, triton.cdiv(Sq, chosen["BLOCK_Q"]))](
                q, k, v, mask, bias, out, lse,
                *(None if x is None else x.stride() for x in (q, k, v, mask, bias, out)),
                Hq, Hkv, Sq, Sk, 1 / math.sqrt(D) if scale is None else scale, softcap,
                offset=Sk - Sq if causal_alignment == "bottom_right" else 0, left=left, right=0 if causal else right,
                D=D, Dv=Dv, PADDED_D=padded(D), PADDED_DV=padded(Dv),
                PRECISION=precision, ROUND_TO_BFLOAT16=widened, **blocks,
            )  # fmt: skip
    return out.to(stored), lse


SUPPORTS = (
    *("scale", "causal", "causal_alignment", "window", "mask", "bias", "softcap"),
    *("gqa", "dv", "cross", "empty", "lse"),
)


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract="fused",
    supports=SUPPORTS,
    slowness=16 if INTERPRETED else 1,
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "batch_invariant": True},
)
def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Multiply float32 in full precision; half precision on matrix units, accumulated in float32."""
    return launch(q, k, v, precision="ieee", **options)


@kernel(
    framework="torch",
    dtypes=("float32",),
    contract="tf32",
    supports=SUPPORTS,
    slowness=16 if INTERPRETED else 1,
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "batch_invariant": True},
)
def attention_tf32(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Multiply float32 on tensor cores, which read 10 bits of each fraction (the interpreter reads all 23)."""
    return launch(q, k, v, precision="tf32", **options)

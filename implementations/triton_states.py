"""A merge of two attention states in Triton: each program merges the states of one token and head.

The two states have strides of their own, so each may be a view of a larger tensor. A state whose weight is 0 may hold
anything.
"""
# ruff: noqa: ANN001, ANN201, PLR0917  (Triton reads the signature of a kernel itself)

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec import kernel

from .torch_states import MERGING

# By way of the tiles, which choose the interpreter before they import triton.
from .triton_tiles import INTERPRETED, padded, part, strided, tl, triton


@part
def load_output(state, t, h, c, seen, D: tl.constexpr):
    """Load the output of a state in float32, 0 where its weight is 0."""
    base, strides = state
    at = base + t * strides[0] + h * strides[1] + c.to(tl.int64) * strides[2]
    return tl.where(seen, tl.load(at, mask=c < D, other=0).to(tl.float32), 0.0)


@part
def load_lse(lse, t, h):
    """Load the log-sum-exp of a state."""
    base, strides = lse
    return tl.load(base + h * strides[0] + t * strides[1])


@triton.jit
def merge(v_a, s_a, v_b, s_b, out, lse, H, T, D: tl.constexpr):
    """Write out [T, H, D] and lse [H, T] of token and head program_id(0)."""
    t, h = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    c = tl.arange(0, padded(D))
    a, b = load_lse(s_a, t, h), load_lse(s_b, t, h)
    top = tl.maximum(a, b)
    reference = tl.where(top == -float("inf"), 0.0, top)  # both are empty: -inf - -inf would be NaN
    p_a, p_b = tl.exp(a - reference), tl.exp(b - reference)
    total = p_a + p_b
    o_a, o_b = load_output(v_a, t, h, c, p_a > 0, D), load_output(v_b, t, h, c, p_b > 0, D)
    safe = tl.where(total == 0, 1.0, total)
    merged = tl.div_rn(p_a * o_a + p_b * o_b, safe)
    base, strides = out
    found = merged.to(base.dtype.element_ty)
    tl.store(base + t * strides[0] + h * strides[1] + c * strides[2], found, mask=c < D)
    tl.store(lse + h * T + t, top + tl.log(total))


@kernel(
    framework="torch",
    dtypes=("float32", "float16", "bfloat16"),
    contract=MERGING,
    supports=("lse",),
    conventions={"empty_row": "zero", "masked_nonfinite": "excluded"},
    devices=("cuda", "cpu") if INTERPRETED else ("cuda",),
    slowness=8 if INTERPRETED else 1,
    signatures=None if INTERPRETED else 4,
    presentation="states_pair_ht",
)
def pair(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Map v_a [T, H, D], s_a [H, T], v_b, s_b of two states to out [T, H, D], lse [H, T]."""
    T, H, D = v_a.shape
    given: dict[str, Any] = {"v_a": strided(v_a), "s_a": strided(s_a), "v_b": strided(v_b), "s_b": strided(s_b)}
    out, lse = given["v_a"][0].new_empty(T, H, D), s_a.new_empty(H, T)
    given |= {"out": strided(out), "lse": lse, "H": H, "T": T, "D": D}
    # Triton launches on the current device, whatever device the tensors are on. The interpreter computes in NumPy,
    # which warns where hardware silently answers -Inf.
    with torch.cuda.device_of(v_a), np.errstate(divide="ignore"):
        if T * H:
            merge[(T * H,)](**given)
    return out.to(v_a.dtype), lse

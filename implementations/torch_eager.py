"""Textbook attention in PyTorch, differentiable, with every option, sound where textbooks are not.

Two places need care, both about queries that may attend no key at all. softmax of a row of -inf is NaN, and so is its
gradient; so such a row is given finite scores, and its probabilities are cleared afterwards. Clearing also makes
the gradient exactly zero wherever the mask hides a key, since the backward of ``masked_fill`` writes a zero there.
"""

import math

import torch

from attn_spec import Contract, kernel


def attended(q, k, causal, causal_alignment, window, mask, bias):
    """bool [Sq, Sk], or [B, Hq, Sq, Sk] by broadcast when mask or bias says so: may query i attend key j?"""
    Sq, Sk = q.shape[-2], k.shape[-2]
    offset = Sk - Sq if causal_alignment == "bottom_right" else 0
    distance = torch.arange(Sk, device=q.device) - torch.arange(Sq, device=q.device)[:, None] - offset
    left, right = window or (None, None)
    allowed = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        allowed = allowed & (distance <= 0)
    if left is not None:
        allowed = allowed & (distance >= -left)
    if right is not None:
        allowed = allowed & (distance <= right)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -math.inf)
    return allowed


def masked_softmax(s, allowed):
    """softmax over the allowed keys of s [B, Hq, Sq, Sk]; a row without one is all zeros, with zero gradient."""
    empty = ~allowed.any(dim=-1, keepdim=True)
    s = s.masked_fill(~allowed, -math.inf).masked_fill(empty, 0.0)
    return s.softmax(dim=-1).masked_fill(~allowed, 0.0)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract={
        "float64": Contract(exp_error=2**-50, tanh_error=2**-50, normalise="before_product", subnormals="kept"),
        "float32": "eager",
        "float16": "eager",
        "bfloat16": "eager",
    },
    supports=("causal", "causal_alignment", "window", "scale", "mask", "bias", "softcap", "gqa", "dv", "cross",
              "empty", "lse", "backward"),
    conventions={"causal_alignment": "top_left", "empty_row": "zero", "empty_lse": "-inf",
                 "masked_nonfinite": "may_leak", "deterministic": True, "batch_invariant": False},
)
def attention(q, k, v, *, scale=None, causal=False, causal_alignment="top_left", window=None, mask=None, bias=None,
              softcap=None):
    """q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] -> out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    group = q.shape[1] // k.shape[1]  # query head h reads key-value head h // group
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale

    s = q @ k.transpose(-1, -2) * scale
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    allowed = attended(q, k, causal, causal_alignment, window, mask, bias)
    out = masked_softmax(s, allowed) @ v

    # For inspection only: the log-sum-exp of the scores as they were stored, outside the graph.
    work = torch.promote_types(q.dtype, torch.float32)
    lse = s.detach().masked_fill(~allowed, -math.inf).to(work).logsumexp(dim=-1)
    return out, lse

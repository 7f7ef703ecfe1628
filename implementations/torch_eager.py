"""Textbook attention in PyTorch, differentiable, with every option, and sound where textbooks are not.

A query may have no key to attend; the softmax of its row of -inf is NaN, and so is the gradient. ``masked_fill``
replaces both. After the softmax it clears the probabilities of masked keys, and the backward pass of the one before
writes their score gradients as exact zeros. Every key of such a row is masked, so that no NaN remains.
"""

import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

from .lengths import LENGTHS, first_aligned, within
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

OPTIONS = ("scale", *BY_POSITION, "mask", "bias", "alibi_slopes", "softcap", "sinks", *LENGTHS)
DROPOUT = ("dropout_keep", "dropout_p")
SHAPES = ("gqa", "dv", "cross", "empty")


def places(
    s: Tensor, causal_alignment: str, seqused_q: Tensor | None = None, seqused_k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the key that each query is aligned with, [Sq, 1] or [B, 1, Sq, 1], and the keys, [Sk]."""
    Sq, Sk = s.shape[-2:]
    first = first_aligned(causal_alignment, Sq, Sk, seqused_q, seqused_k)
    return torch.arange(Sq, device=s.device)[:, None] + first, torch.arange(Sk, device=s.device)


def attended(
    s: Tensor,
    *,
    causal_alignment: str = "top_left",
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    **by_position: Any,
) -> Tensor:
    """Return whether query i may attend key j: boolean that broadcasts to the scores s [B, Hq, Sq, Sk]."""
    diagonal, j = places(s, causal_alignment, seqused_q, seqused_k)
    i = torch.arange(s.shape[-2], device=s.device)[:, None]
    allowed = band(**by_position).sees(diagonal, j) & within(i, seqused_q) & within(j, seqused_k)
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -math.inf)
    return allowed


def masked_softmax(s: Tensor, allowed: Tensor) -> Tensor:
    """Compute the softmax of s [B, Hq, Sq, Sk] over the allowed keys; a row without one is 0, with gradient 0."""
    return s.masked_fill(~allowed, -math.inf).softmax(dim=-1).masked_fill(~allowed, 0.0)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract={
        "float64": Contract(
            normalize="before_product",
            kv_tile=None,  # the softmax sees whole rows
            subnormals="kept",
            backward_weights="stored",
            delta="probabilities",
        ),
        "float32": "eager",
        "float16": "eager",
        "bfloat16": "eager",
    },
    supports=(*OPTIONS, *DROPOUT, *SHAPES, "lse", "backward", "mask_of_two_axes"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak", "unused_rows": "zero"},
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    group = q.shape[1] // k.shape[1]  # query head h reads key-value head h // group
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return from_scores(q @ k.transpose(-1, -2) * scale, v, **options)


def from_scores(
    s: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    causal_alignment: str = "top_left",
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    dropout_keep: Tensor | None = None,
    dropout_p: float | None = None,
    **seen: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention from scaled scores [B, Hq, Sq, Sk] and a v [B, Hq, Sk, Dv] for each query head."""
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias
    if alibi_slopes is not None:  # in the arithmetic of s: float16 holds no distance above 2,048 exactly
        diagonal, j = places(s, causal_alignment, seqused_q, seqused_k)
        wide = alibi_slopes.to(torch.promote_types(s.dtype, torch.float32))
        s = s - (wide * (diagonal - j).abs()).to(s.dtype)
    lengths = {"seqused_q": seqused_q, "seqused_k": seqused_k}
    allowed = attended(s, causal_alignment=causal_alignment, bias=bias, **lengths, **seen)
    if sinks is not None:  # one more column, whose probability is dropped
        s = torch.cat([s, sinks.to(s.dtype).expand(*s.shape[:3], 1)], dim=-1)
        allowed = torch.cat([allowed.expand(*s.shape[:3], -1), s[..., -1:] > -math.inf], dim=-1)
    p = masked_softmax(s, allowed)[..., : v.shape[2]]
    if dropout_keep is not None:
        p = (p * (1 / (1 - (dropout_p or 0.0)))).masked_fill(~dropout_keep, 0.0)
    out = p @ v

    # For inspection, outside the graph: the log-sum-exp of the scores as they were stored.
    work = torch.promote_types(s.dtype, torch.float32)
    lse = s.detach().masked_fill(~allowed, -math.inf).to(work).logsumexp(dim=-1)
    return out, lse

"""Merges of attention states: outputs of parts of the keys, weighted by their log-sum-exps. Cascade, FlashDecoding.

A state without keys has a log-sum-exp of minus infinity, and takes no part whatever its output is. Where all states of
a token are so, the output is 0 and the log-sum-exp minus infinity.
"""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel

#: All in float32, whatever the outputs of states are, and rounded in the end; no tiles of states.
MERGING = Contract(
    **dict.fromkeys(("multiplicands", "softmax", "probabilities"), "float32"), exponent="natural", kv_tile=None
)
DECLARED: dict[str, Any] = {
    "framework": "torch",
    "dtypes": ("float32", "float16", "bfloat16"),
    "contract": MERGING,
    "conventions": {"empty_row": "zero", "masked_nonfinite": "excluded", "unused": "unread"},
}


def merged(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Merge outputs v [states, .., D] with log-sum-exps s [states, ..] to out [.., D], lse [..]."""
    top = s.amax(0)
    weights = torch.exp(s - top.masked_fill(top == -math.inf, 0.0))
    values = v.float().masked_fill((weights == 0)[..., None], 0.0)  # 0 NaN would be NaN
    total = weights.sum(0)
    out = (weights[..., None] * values).sum(0) / total.masked_fill(total == 0, 1.0)[..., None]
    return out.to(v.dtype), top + torch.log(total)


@kernel(presentation="states_pair_ht", supports=("lse",), **DECLARED)
def pair(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Map v_a [T, H, D], s_a [H, T], v_b, s_b of two states to out [T, H, D], lse [H, T]."""
    out, lse = merged(torch.stack([v_a, v_b]), torch.stack([s_a.T, s_b.T]))
    return out, lse.T


@kernel(presentation="states_list", supports=("lse",), **DECLARED)
def listed(v: Tensor, s: Tensor, *, indptr: Tensor) -> tuple[Tensor, Tensor]:
    """Map v [states, H, D], s [states, H] to out [T, H, D], lse [T, H]; token t has states indptr[t] to indptr[t + 1].

    Nothing behind the last state is read.
    """
    T = len(indptr) - 1
    out, lse = v.new_zeros(T, *v.shape[1:]), s.new_full((T, s.shape[1]), -math.inf)
    for token, (first, end) in enumerate(itertools.pairwise(indptr.tolist())):
        if first < end:
            out[token], lse[token] = merged(v[first:end], s[first:end])
    return out, lse

"""Other scores than a product of q and k, as models have them: bilinear, and cosine with a temperature a head."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attn_spec import Contract, kernel
from attn_spec.contract.presets import EAGER

from .parts import HALVES, for_query_heads, hidden, sigma_of

#: All in float32, but for q, k, v and the output.
WIDE = Contract(
    multiplicands="work", operands="work", probabilities="work", score_gradients="work", exponent="natural",
    matrix_rounding=None, kv_tile=None, normalize="before_product", backward_weights="stored", delta="probabilities",
)  # fmt: skip


@kernel(
    framework="torch",
    dtypes=HALVES,
    contract=WIDE,
    supports=("score_weight", "causal", "mask", "scale", "gqa", "dv", "cross", "backward"),
    always=("score_weight",),
    conventions={"empty_row": "zero"},
)
def luong(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_weight: Tensor,
    causal: bool = False,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend as Luong's general attention, in float32 inside: the query is multiplied by W once, not every key."""
    dtype, dark = q.dtype, hidden(q, k, causal=causal, mask=mask)
    q, k, v, W = (x.float() for x in (q, k, v, score_weight))
    k, v = (for_query_heads(x, q.shape[1]) for x in (k, v))
    s = (q @ W) @ k.mT * sigma_of(q, scale)
    weights = s.masked_fill(dark, -torch.inf).softmax(-1).masked_fill(dark, 0.0)
    return (weights @ v).to(dtype)


@kernel(
    framework="torch",
    dtypes=("float32", "bfloat16"),
    contract=replace(EAGER, softmax="work", exponent="natural"),
    supports=("score_gamma", "bias", "dv", "cross", "backward"),
    always=("score_gamma",),
    conventions={"empty_row": "mean_of_v"},
)
def swin_v2(q: Tensor, k: Tensor, v: Tensor, *, score_gamma: Tensor, bias: Tensor | None = None) -> Tensor:
    """Attend as Swin Transformer V2: cosines times a temperature of each head, plus a bias by relative position."""
    s = (normalize(q, dim=-1) @ normalize(k, dim=-1).mT) * score_gamma
    s = (s if bias is None else s + bias).clamp_min(torch.finfo(s.dtype).min)
    return s.softmax(-1, dtype=torch.float32).to(q.dtype) @ v

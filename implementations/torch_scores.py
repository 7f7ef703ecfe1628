"""Attention with other scores than a product of q and k, in PyTorch: bilinear, cosine, rotary and additive.

Sources: Luong et al., arXiv 1508.04025, section 3.1 (general); Graves et al., arXiv 1410.5401; Su et al., arXiv
2104.09864; Bahdanau et al., arXiv 1409.0473, appendix A.1.2. All but the last change q or k and call textbook
attention, as their users do; additive scores are their own. PyTorch differentiates all of them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attn_spec import kernel

from . import rotary as positions
from . import torch_eager, torch_rotary
from .lengths import PADDED, first_aligned

eager, from_scores = torch_eager.attention.function, torch_eager.from_scores
FACTS: dict[str, Any] = {
    name: getattr(torch_eager.attention, name) for name in ("framework", "dtypes", "contract", "conventions")
}
SUPPORTS = torch_eager.attention.supports


@kernel(**FACTS, supports=SUPPORTS | {"score_weight"}, always=("score_weight",))
def bilinear(
    q: Tensor, k: Tensor, v: Tensor, *, score_weight: Tensor, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend by scores q^T W k, W [B or 1, Hq or 1, D, D]; shapes and results are those of ``torch_eager``."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return eager(q, k @ score_weight.mT, v, scale=scale, **options)


@kernel(**FACTS, supports=SUPPORTS | {"score_gamma"}, always=("score_gamma",))
def cosine(
    q: Tensor, k: Tensor, v: Tensor, *, score_gamma: Tensor, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attend by scores gamma cos(q, k), gamma [B or 1, Hq or 1, 1, 1]; shapes and results are as in ``torch_eager``."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    # The default, 1e-12, is 0 in float16: it would make NaN of zeros, and so of the gradients of unseen keys.
    smallest = torch.finfo(q.dtype).smallest_normal * torch.finfo(q.dtype).eps
    q, k = (normalize(x, dim=-1, eps=max(smallest, 1e-12)) for x in (q, k))
    return eager(q, score_gamma * k, v, scale=1.0 if scale is None else scale, **options)


@kernel(**FACTS, supports=SUPPORTS | set(positions.OPTIONS), always=("rotary",))
def rotary(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotary: str,
    rotary_base: float | None = None,
    rotary_dim: int | None = None,
    rotary_query_positions: Tensor | None = None,
    rotary_key_positions: Tensor | None = None,
    causal_alignment: str = "top_left",
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend by scores of q and k turned by their positions; shapes and results are those of ``torch_eager``."""
    turn: Any = {"rotary": rotary, "rotary_base": rotary_base, "rotary_dim": rotary_dim}
    first = first_aligned(causal_alignment, q.shape[2], k.shape[2], *map(options.get, PADDED))
    sides = (q, rotary_query_positions, first), (k, rotary_key_positions, 0)
    places = [torch_rotary.places(given, start, x.shape[2], x.device) for x, given, start in sides]
    q, k = (torch_rotary.turned(x, at, **turn) for x, at in zip((q, k), places, strict=True))
    return eager(q, k, v, causal_alignment=causal_alignment, **options)


@kernel(
    **FACTS,
    supports=SUPPORTS | {"score_vector", "score_key_weight", "score_query_weight", "score_bias"},
    always=("score_vector", "score_key_weight", "score_query_weight"),
)
def additive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_vector: Tensor,
    score_key_weight: Tensor,
    score_query_weight: Tensor,
    score_bias: Tensor | None = None,
    scale: float | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Attend by scores w^T tanh(W1 k + W2 q + b), W1, W2 [B or 1, Hq or 1, A, D], w, b [B or 1, Hq or 1, 1, A]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    x, y = q @ score_query_weight.mT, k @ score_key_weight.mT
    x = x if score_bias is None else x + score_bias
    bent = torch.tanh(x[..., :, None, :] + y[..., None, :, :])  # [B, Hq, Sq, Sk, A]
    s = (bent @ score_vector[:, :, None].mT).squeeze(-1)
    return from_scores(s if scale is None else s * scale, v, **options)

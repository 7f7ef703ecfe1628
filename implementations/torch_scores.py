"""Attention with other scores than a product of q and k, in PyTorch: bilinear, and cosine.

Luong et al., arXiv 1508.04025, section 3.1 (general), and Graves et al., arXiv 1410.5401. Each changes q or k and calls
textbook attention, as its users do; PyTorch differentiates both.
"""

from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from attn_spec import kernel

from . import torch_eager

eager = torch_eager.attention.function
FACTS: dict[str, Any] = {
    name: getattr(torch_eager.attention, name) for name in ("framework", "dtypes", "contract", "conventions")
}
SUPPORTS = torch_eager.attention.supports


@kernel(**FACTS, supports=SUPPORTS | {"score_weight"}, always=("score_weight",))
def bilinear(
    q: Tensor, k: Tensor, v: Tensor, *, score_weight: Tensor, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Scores q^T W k, W [B or 1, Hq or 1, D, D]; shapes and results as those of ``torch_eager``."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    return eager(q, k @ score_weight.mT, v, scale=scale, **options)


@kernel(**FACTS, supports=SUPPORTS | {"score_gamma"}, always=("score_gamma",))
def cosine(
    q: Tensor, k: Tensor, v: Tensor, *, score_gamma: Tensor, scale: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Scores gamma cos(q, k), gamma [B or 1, Hq or 1, 1, 1]; shapes and results as those of ``torch_eager``."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scaled = score_gamma * normalize(k, dim=-1)
    return eager(normalize(q, dim=-1), scaled, v, scale=1.0 if scale is None else scale, **options)

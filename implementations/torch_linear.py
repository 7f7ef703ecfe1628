"""Linear attention in PyTorch, as models write it: features, one state for all keys or one per query, autograd.

    o_i = phi(q_i) S_i / (epsilon + phi(q_i) z_i)    S_i = sum_j phi(k_j) v_j^T    z_i = sum_j phi(k_j)

Katharopoulos et al., "Transformers are RNNs" (arXiv 2006.16236). Without a mask there is one state. A causal one is a
cumulative sum over the keys. What is no number is read by every query.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from attn_spec import Contract, kernel

from .rotary import first_position

FEATURES = {"elu_plus_one": lambda x: elu(x) + 1, "relu": torch.relu, "exp": torch.exp}
#: States are as wide as the sums are; features and weights stay in the dtype of q where that is float32 or wider.
CONTRACT = Contract(operands="work", subnormals="kept", kv_tile=1, backward_weights="stored", delta="probabilities")


def states(b: Tensor, v: Tensor, last: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return S [B, H, 1 or Sq, D, Dv] and z [B, H, 1 or Sq, D] of the keys up to each query's ``last``, or of all."""
    S, z = b[..., :, None] * v[..., None, :], b
    if last is None:
        return S.sum(2, keepdim=True), z.sum(2, keepdim=True)
    # The first state is the sum over no key, 0.
    S, z = (torch.cat([torch.zeros_like(x[:, :, :1]), x.cumsum(2)], dim=2) for x in (S, z))
    return S[:, :, last], z[:, :, last]


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract=CONTRACT,
    supports=("feature_map", "feature_epsilon", "causal", "causal_alignment", "gqa", "dv", "cross", "backward"),
    always=("feature_map",),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature_map: str,
    feature_epsilon: float | None = None,
    causal: bool = False,
    causal_alignment: str = "top_left",
) -> Tensor:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv]."""
    (Hq, Sq), (Hkv, Sk) = q.shape[1:3], k.shape[1:3]
    wide: Any = torch.promote_types(q.dtype, torch.float32)
    a, b = (FEATURES[feature_map](x.to(wide)) for x in (q, k))
    b, values = (x.repeat_interleave(Hq // Hkv, dim=1) for x in (b, v.to(wide)))
    last = None
    if causal:
        last = (torch.arange(Sq, device=q.device) + first_position(causal_alignment, Sq, Sk) + 1).clamp(0, Sk)
    S, z = states(b, values, last)
    n = (a * z).sum(-1, keepdim=True) + (feature_epsilon or 0.0)
    out = torch.einsum("bhid,bhidv->bhiv", a, S.expand(-1, -1, Sq, -1, -1))
    if last is not None:  # a query that sees no key: 0, and no gradient
        n = n.masked_fill((last == 0)[:, None], 1.0)
    return (out / n).to(q.dtype)

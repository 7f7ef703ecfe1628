"""Attention that quantises its queries and keys to int8 by blocks, in PyTorch, as SageAttention does.

Zhang et al., arXiv 2410.02367, section 4. The mean of the keys of each head is subtracted first, since it moves all
scores of a row alike. A block of 32 queries, or of 64 keys, has the scale s = max |x| / 127 and the codes round(x / s),
from -127 to 127. The products of codes are sums of integers in int32, which are exact, times both scales. Weights are
rounded to the dtype of v for their product with it, which float32 accumulates.

The log-sum-exp is that of the keys with their mean, so that q.mean is added to it again. Blocks and means count all
tokens of the tensors, masked ones too. Each division is correctly rounded, as PyTorch's on a CPU is.
"""

import math
from typing import Any

import torch
from torch import Tensor

from attn_spec import Contract, kernel
from attn_spec.contract.quantisers import Quantiser

from .lengths import first_aligned
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

QUERY_BLOCK, KEY_BLOCK = 32, 64
LARGEST = 127.0
QUANTISERS = (
    Quantiser(of="q", block=QUERY_BLOCK, over="buffer", division_error=0.0),
    Quantiser(of="k", block=KEY_BLOCK, over="buffer", division_error=0.0, subtracts="mean_of_keys"),
)


def quantised(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Return the codes of x [B, H, S, D] in int32, and the scale of each token in float32, [B, H, S, 1]."""
    B, H, S, D = x.shape
    blocks = -(-S // block)
    padded = torch.nn.functional.pad(x, (0, 0, 0, blocks * block - S)).reshape(B, H, blocks, block, D)
    largest = padded.abs().amax((-1, -2)) if padded.numel() else padded.new_zeros(B, H, blocks)
    scale = (largest / LARGEST).repeat_interleave(block, dim=2)[:, :, :S, None]
    codes = torch.round(x / torch.where(scale == 0, 1.0, scale)).clamp(-LARGEST, LARGEST)
    return codes.to(torch.int32), scale


@kernel(
    framework="torch",
    dtypes=("float16", "bfloat16", "float32"),
    contract=Contract(exponent="natural", matrix_rounding=None, kv_tile=None, quantisers=QUANTISERS),
    supports=("scale", *BY_POSITION, "mask", "bias", "gqa", "dv", "cross", "empty", "lse"),
    devices=("cpu",),
)
def int8_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal_alignment: str = "top_left",
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    **by_position: Any,
) -> tuple[Tensor, Tensor]:
    """Attend to the codes of queries, and of keys without their mean."""
    (Sq, D), Sk, group = q.shape[2:], k.shape[2], q.shape[1] // k.shape[1]
    scale = 1 / math.sqrt(D) if scale is None else scale
    mean = k.float().sum(2, keepdim=True) / max(Sk, 1)
    (codes_q, scale_q), (codes_k, scale_k) = quantised(q.float(), QUERY_BLOCK), quantised(k.float() - mean, KEY_BLOCK)
    codes_k, scale_k, mean = (x.repeat_interleave(group, 1) for x in (codes_k, scale_k, mean))
    s = (codes_q @ codes_k.mT).float() * scale_q * scale_k.mT * scale
    diagonal = torch.arange(Sq)[:, None] + first_aligned(causal_alignment, Sq, Sk, None, None)
    seen = band(**by_position).sees(diagonal, torch.arange(Sk)).expand(s.shape)
    seen = seen if mask is None else seen & mask
    if bias is not None:
        s, seen = s + bias, seen & (bias != -math.inf)
    s = s.masked_fill(~seen, -math.inf)
    m = s.amax(-1, keepdim=True) if Sk else s.new_full((*s.shape[:3], 1), -math.inf)
    p = torch.exp(s - torch.where(m == -math.inf, 0.0, m))
    total = p.sum(-1, keepdim=True)
    weighted = p.to(v.dtype).float() @ v.float().repeat_interleave(group, 1)
    out = weighted / torch.where(total == 0, 1.0, total)
    lse = m + torch.log(torch.where(total == 0, 1.0, total)) + q.float() @ mean.mT * scale
    return out.to(q.dtype), lse[..., 0]

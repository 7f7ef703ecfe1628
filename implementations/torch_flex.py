"""FlexAttention of PyTorch, which takes masks as a function of indices and skips blocks without a visible key.

Without ``torch.compile``, as here, it stores every score and weight; the masks and the block map are those of compiled
code. Dong et al., "Flex Attention: a programming model for generating optimized attention kernels" (arXiv 2412.05496).
"""

import warnings
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attn_spec import Contract, kernel

from .rotary import first_position
from .visibility import OPTIONS as BY_POSITION
from .visibility import band

#: Queries, and keys, of a block.
BLOCK = 16
# Scores are stored as the product gives them, and the scale, the softmax and its weights are float32.
CONTRACT = Contract(normalize="before_product", kv_tile=None)
CONTRACT_FLOAT64 = replace(CONTRACT, subnormals="kept")


def block_mask(q: Tensor, k: Tensor, *, first: int, mask: Tensor | None, **by_position: Any) -> BlockMask | None:
    """Return the block mask of the keys that each query sees; None if every query sees every key."""
    positions = band(**by_position)
    if positions == band() and mask is None:
        return None
    (B, Hq, Sq, _), Sk = q.shape, k.shape[2]
    seen = None if mask is None else mask.expand(B, Hq, Sq, Sk)

    def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        allowed = positions.sees(i + first, j)
        return allowed if seen is None else allowed & seen[b, h, i, j]

    return create_block_mask(sees, B, Hq, Sq, Sk, device="cpu", BLOCK_SIZE=BLOCK)


@kernel(
    framework="torch",
    dtypes=("float64", "float32"),
    contract={"float64": CONTRACT_FLOAT64, "float32": CONTRACT},
    supports=("scale", *BY_POSITION, "mask", "gqa", "dv", "cross", "lse"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
    devices=("cpu",),
    slowness=4.0,  # each call traces both functions anew
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal_alignment: str = "top_left",
    mask: Tensor | None = None,
    **by_position: Any,
) -> tuple[Tensor, Tensor | None]:
    """Map q [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv] to out [B, Hq, Sq, Dv], lse [B, Hq, Sq]."""
    first = first_position(causal_alignment, q.shape[2], k.shape[2])
    seen = block_mask(q, k, first=first, mask=mask, **by_position)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the warning that the function is not compiled
        out, aux = flex_attention(
            q, k, v, block_mask=seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1], return_aux=AuxRequest(lse=True)
        )
    return out, aux.lse

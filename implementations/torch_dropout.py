"""Attention with dropout by PyTorch's own reference, whose keep mask is an argument.

``torch.ops.aten._scaled_dot_product_attention_math`` multiplies the values by 1 / (1 - p) and clears the weights that
are not kept. It is what the other backends are compared with, and runs on every device.
"""

import math

import torch
from torch import Tensor

from attn_spec import Contract, kernel

#: Without p the operation would not look at the mask: of this 1 - p is 1.
NEXT_TO_NOTHING = 2.0**-60


#: Eager: every result is stored in the dtype of q, and roots of the scale multiply q and k.
EAGER = Contract(
    scale_on="operands",
    stored_scores="input",
    softmax="input",
    exp_error=32,
    normalize="before_product",
    kv_tile=None,
    backward_weights="stored",
    delta="probabilities",
    partial_gradients="input",
)


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract=EAGER,
    supports=("dropout_keep", "dropout_p", "scale", "mask", "dv", "cross", "backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout_keep: Tensor | None = None,
    dropout_p: float | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """From q [B, H, Sq, D], k [B, H, Sk, D], v [B, H, Sk, Dv] to out [B, H, Sq, Dv]."""
    if mask is not None:  # a bool would be added as 0 and 1
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -math.inf)
    dropped = {} if dropout_keep is None else {"dropout_p": dropout_p or NEXT_TO_NOTHING, "dropout_mask": dropout_keep}
    attend = torch.ops.aten._scaled_dot_product_attention_math  # noqa: SLF001 - no public function takes a keep mask
    out, _ = attend(q, k, v, mask, **dropped, scale=scale)
    return out

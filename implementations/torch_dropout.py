"""Attention with dropout by PyTorch's own reference: its keep mask is an argument, or drawn by chance.

``torch.ops.aten._scaled_dot_product_attention_math`` multiplies the values by 1 / (1 - p) and clears the weights that
are not kept. It is what the other backends are compared with, and runs on every device. Given p alone, as by
``torch.nn.functional.scaled_dot_product_attention``, it multiplies the weights, some by 0.
"""

import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import Contract, kernel

from .torch_sdpa import MATH, MATH_FLOAT64

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
    """Map q [B, H, Sq, D], k [B, H, Sk, D], v [B, H, Sk, Dv] to out [B, H, Sq, Dv]."""
    if mask is not None:  # a bool would be added as 0 and 1
        mask = torch.zeros(mask.shape, dtype=q.dtype, device=q.device).masked_fill(~mask, -math.inf)
    dropped = {} if dropout_keep is None else {"dropout_p": dropout_p or NEXT_TO_NOTHING, "dropout_mask": dropout_keep}
    attend = torch.ops.aten._scaled_dot_product_attention_math  # noqa: SLF001 - no public function takes a keep mask
    out, _ = attend(q, k, v, mask, **dropped, scale=scale)
    return out


@kernel(
    framework="torch",
    dtypes=("float64", "float32", "float16", "bfloat16"),
    contract={"float64": MATH_FLOAT64, "float32": MATH, "float16": MATH, "bfloat16": MATH},
    supports=("dropout_by_chance", "scale", "causal", "mask", "gqa", "dv", "cross", "backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
    exclusive=(("causal", "mask"),),
)
def by_chance(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Call ``scaled_dot_product_attention`` on the one backend that drops on a CPU."""
    masking = {"attn_mask": attn_mask, "is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, scale=scale, **masking)

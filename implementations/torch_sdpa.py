"""Each backend of ``torch.nn.functional.scaled_dot_product_attention`` as a kernel of its own.

``sdpa_kernel`` pins the backend, so a problem that a backend cannot take is an error and never a silent fall-back.
The CPU backends declare what was measured on torch 2.13; the CUDA backends what their sources say, in
``aten/src/ATen/native/transformers/cuda``: which problems, in ``sdp_utils.cpp``, and in which arithmetic.

``is_causal`` aligns the diagonal with the top left corner and is refused next to ``attn_mask``; so a causal problem
that also has a mask or a bias gets all of them written into one ``attn_mask``.
"""

import math as real
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attn_spec import Contract, kernel
from attn_spec.kernels.defects import Defect

HALVES = ("float16", "bfloat16")
CPU_DTYPES = ("float64", "float32", *HALVES)

# The math backend widens half precision to float32 first, so nothing but its output and gradients is stored in half.
MATH = Contract(
    multiplicands="work",
    scale_on="operands",
    probabilities="work",
    normalize="before_product",
    kv_tile=None,
    exp_error=32,
    backward_weights="stored",
    delta="probabilities",
    score_gradients="work",
)
MATH_FLOAT64 = replace(MATH, exp_error=8, subnormals="kept")

# The CPU flash kernel trades the accuracy of exp for speed: 20 ulp in float32; 2^-13 in half, even at exp(0).
# In half it also stores dK and dV in half after every tile of queries of every head of a group. The tiles hold 32
# queries, 64 from Sq = 192 on and 256 from 768 on: 96 stores last for 8 heads up to Sq = 767, and for 6 up to 4096.
FLASH = Contract(exponent="natural", matrix_rounding=None, kv_tile=512, exp_error=32)
FLASH_HALF = replace(FLASH, exp_error=2**11.1, exp_of_zero_is_one=False, partial_gradients="input", gradient_stores=96)
# Neither backend declares "empty": for no keys torch 2.13 gives 0 times the sum of q, NaN where that overflows float16.
FLASH_CONTRACTS = {"float64": "fp64", "float32": FLASH, "float16": FLASH_HALF, "bfloat16": FLASH_HALF}
FLASH_DEFECTS = tuple(
    Defect(
        property="special_values.an_infinite_score_gives_no_number",
        dtype=dtype,
        reason="from 16 keys on the exponential that torch 2.13 takes in half gives a number for NaN",
    )
    for dtype in HALVES
)


def attention_mask(
    q: Tensor, k: Tensor, *, causal: bool = False, mask: Tensor | None = None, bias: Tensor | None = None
) -> Tensor | None:
    """Write causality, mask and bias into one tensor, boolean unless there is a bias; None for nothing at all."""
    if causal:
        lower = torch.ones(1, 1, q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        mask = lower if mask is None else mask & lower
    if bias is None:
        return mask
    return bias if mask is None else bias.masked_fill(~mask, -real.inf)


def run(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **masking: Any) -> Tensor:
    """Call scaled_dot_product_attention on one backend only."""
    only_causal = masking.get("causal", False) and set(masking) == {"causal"}
    attn_mask = None if only_causal else attention_mask(q, k, **masking)
    if attn_mask is not None and backend == SDPBackend.EFFICIENT_ATTENTION:
        (attn_mask,) = laid(attn_mask.expand(*attn_mask.shape[:-1], k.shape[-2]))
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=attn_mask,
            is_causal=only_causal,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )


@kernel(
    framework="torch",
    dtypes=CPU_DTYPES,
    contract={"float64": MATH_FLOAT64, "float32": MATH, "float16": MATH, "bfloat16": MATH},
    supports=("scale", "causal", "mask", "mask_of_two_axes", "bias", "gqa", "dv", "cross", "backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
)
def math(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the composition of matmul, softmax and matmul, on any device.

    A bias that is written into one mask with others is widened first. Otherwise its gradient would be rounded to half
    before it is summed over the queries.
    """
    if options.get("bias") is not None and len({"causal", "mask", "bias"} & set(options)) > 1:
        options["bias"] = options["bias"].to(torch.promote_types(q.dtype, torch.float32))
    return run(SDPBackend.MATH, q, k, v, **options)


@kernel(
    framework="torch",
    dtypes=CPU_DTYPES,
    contract=FLASH_CONTRACTS,
    supports=("scale", "causal", "mask", "mask_of_two_axes", "gqa", "cross", "backward"),
    conventions={"empty_row": "zero", "masked_nonfinite": "may_leak"},
    devices=("cpu",),
    positive_scale=True,
    known_defects=FLASH_DEFECTS,
)
def flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the CPU flash kernel. It wants Dv = D, unit stride along D, and no bias that requires a gradient.

    The kernel masks keys by causality before it scales, so that its output is NaN for a scale that is not positive.
    """
    return run(SDPBackend.FLASH_ATTENTION, q.contiguous(), k.contiguous(), v.contiguous(), **options)


@kernel(
    framework="torch",
    dtypes=CPU_DTYPES,
    contract=FLASH_CONTRACTS,
    supports=("scale", "causal", "mask", "bias", "gqa", "cross", "lse"),
    conventions={"empty_row": "zero", "empty_lse": "undeclared", "masked_nonfinite": "may_leak"},
    devices=("cpu",),
    known_defects=FLASH_DEFECTS,
)
def flash_operator(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, **masking: Any
) -> tuple[Tensor, Tensor]:
    """Call the operator beneath `flash`, which also returns the LSE. It divides by zero when there are no keys."""
    attn_mask = attention_mask(q, k, **masking)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -real.inf)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
        q.contiguous(), k.contiguous(), v.contiguous(), attn_mask=attn_mask, scale=scale
    )


def laid(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors whose last axis has another stride than 1, which the CUDA backends refuse."""
    return tuple(x if x.stride(-1) == 1 else x.contiguous() for x in tensors)


# An axis of a CUDA grid, other than the first, has at most 65,535 blocks. Measured with PyTorch 2.11 on an H100: flash
# fails beyond as many batch entries or heads, cuDNN in its backward pass alone, the memory-efficient kernel beyond as
# many heads, and beyond as many batch entries if there is a bias. A limit is of all calls of a kernel.
GRID = {"B": 65535, "H": 65535}

# Gradients of q, or of all three, are added by atomic operations in the order that programs happen to run.
CUDA: dict[str, Any] = {
    "framework": "torch",
    "dtypes": HALVES,
    "devices": ("cuda",),
    "conventions": {"empty_row": "zero", "masked_nonfinite": "may_leak", "deterministic": False},
}


@kernel(
    # The logarithm may be that of fast mathematics, off by 2^-21.41. Heads of a group store dK and dV before the sum.
    contract=Contract(log_error=8, partial_gradients="input"),
    supports=("scale", "causal", "gqa", "backward"),
    head_dims=(8, 16, 32, 64, 72, 96, 104, 128, 192, 256),
    largest=GRID,
    positive_scale=True,
    **CUDA,
)
def flash_cuda(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run FlashAttention-2 for CUDA. It refuses a causal problem unless Sq = Sk.

    It takes the largest score before it scales, so that its output is NaN for a scale that is not positive. Rows must
    begin at multiples of 16 bytes, or the device is lost.
    """
    return run(SDPBackend.FLASH_ATTENTION, *laid(q, k, v), **options)


@kernel(
    # Its backward pass multiplies dP - delta by weights that are stored in shared memory in half (kernel_backward.h).
    contract=Contract(log_error=8, score_gradients_of="cast"),
    supports=("scale", "causal", "mask", "bias", "backward"),
    head_dims=(8, 16, 32, 64, 72, 96, 104, 128, 256),
    largest=GRID,
    known_defects=(
        Defect(
            property="gradient_independence.each_gradient_may_be_asked_for_without_the_others",
            reason="asked for the gradient of the bias alone, torch 2.11 keeps no LSE, and reads outside memory",
        ),
    ),
    **CUDA,
)
def efficient(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the memory-efficient CUDA kernel, which reads rows of a multiple of 16 bytes."""
    return run(SDPBackend.EFFICIENT_ATTENTION, *laid(q, k, v), **options)


_LOW = "of 64 queries with scores below -20"


@kernel(
    contract=Contract(log_error=8),
    supports=("scale", "causal", "backward"),
    head_dims=(8, 16, 32, 64, 72, 96, 104, 128),
    multiples={"Q": 2, "K": 2},
    largest=GRID,
    positive_scale=True,
    known_defects=tuple(
        Defect(property=name, reason=f"cuDNN 9.19 gives NaN for dQ {where}", rare=rare)
        for name, where, rare in (
            ("gradients.query_and_key_gradients_are_within_their_bounds", _LOW, True),
            ("gradient_laws.a_constant_added_to_all_scores_changes_no_gradient", _LOW, True),
            ("gradient_independence.the_layout_of_the_cotangent_has_no_influence", "of a dO with swapped axes", False),
        )
    ),
    **CUDA,
)
def cudnn(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the fused attention of cuDNN. It refuses a single key, and so is not asked for odd lengths.

    Its output is NaN for a scale that is not positive.
    """
    return run(SDPBackend.CUDNN_ATTENTION, q.contiguous(), k.contiguous(), v.contiguous(), **options)

"""Layers of multi-head attention in PyTorch: as users write them, and the two paths of ``torch.nn.MultiheadAttention``.

Vaswani et al., "Attention is all you need" (2017), section 3.2.2. A model holds the projections of all heads in one
matrix; here they come by head, [1, H, A, D], and are put together first, so that gradients go back to each of them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, multi_head_attention_forward

from attn_spec import kernel

from . import torch_eager, torch_sdpa

SIDES = ("query", "key", "value")
PROJECTIONS = tuple(f"{side}_projection" for side in (*SIDES, "output"))
BIASES = tuple(f"{name}_bias" for name in PROJECTIONS)
LAYER: dict[str, Any] = {"framework": "torch", "dtypes": torch_sdpa.CPU_DTYPES, "always": PROJECTIONS}


def nan_spoils_another_row() -> bool:
    """Return whether a NaN in one row of a bfloat16 product makes NaN of another row too.

    So it is on CPUs with AMX (oneDNN in torch 2.13), where the inner length is odd: the product reads one number too
    many, the first of the next row, and multiplies it by 0.
    """
    rows = torch.zeros(17, 17, dtype=torch.bfloat16)
    rows[4] = torch.nan
    return bool(torch.isnan(rows @ torch.ones(17, 16, dtype=torch.bfloat16))[:4].any())


#: Without bfloat16 where the weights of a row that sees no key, NaN, would reach the row before.
LAYER_WITH_NAN: dict[str, Any] = LAYER | {
    "dtypes": tuple(x for x in torch_sdpa.CPU_DTYPES if x != "bfloat16" or not nan_spoils_another_row())
}


def in_one(options: dict[str, Any], side: str) -> tuple[Tensor, Tensor | None]:
    """Return the projection [H A, D] of all heads of one side, and its bias [H A]."""
    heads, weight = options["query_projection"].shape[1], options[f"{side}_projection"]
    bias = options.get(f"{side}_projection_bias")
    matrix = weight[0].expand(heads, -1, -1).reshape(-1, weight.shape[3])
    return matrix, None if bias is None else bias[0].expand(heads, -1, -1).reshape(-1)


def out_in_one(options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the projection [O, H U] of the outputs of all heads side by side, and its bias [O]."""
    bias = options.get("output_projection_bias")
    matrix = options["output_projection"][0].transpose(0, 1).flatten(1)
    return matrix, None if bias is None else bias.reshape(-1)


@kernel(
    **LAYER,
    contract=torch_eager.attention.contract,
    supports=torch_eager.attention.supports - {"gqa"} | {*PROJECTIONS, *BIASES, "head_widths"},
    conventions=torch_eager.attention.conventions,
)
def attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Map q [B, 1, Sq, D], k [B, 1, Sk, D], v [B, 1, Sk, Dv] to out [B, 1, Sq, O], lse [B, H, Sq]."""
    heads = options["query_projection"].shape[1]
    projected = [linear(x, *in_one(options, side)) for x, side in zip((q, k, v), SIDES, strict=True)]
    # [B, 1, S, H A] -> [B, H, S, A]: a view without the transpose would mix heads and rows.
    every = [x.squeeze(1).unflatten(-1, (heads, -1)).transpose(1, 2) for x in projected]
    inner = {name: value for name, value in options.items() if name not in (*PROJECTIONS, *BIASES)}
    out, lse = torch_eager.attention.function(*every, **inner)
    return linear(out.transpose(1, 2).flatten(2), *out_in_one(options)).unsqueeze(1), lse


def arguments(q: Tensor, k: Tensor, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``multi_head_attention_forward`` beside q, k and v: all three biases, or none."""
    weights, biases = zip(*(in_one(options, side) for side in SIDES), strict=True)
    some = any(bias is not None for bias in biases)
    zeros = (bias if bias is not None else w.new_zeros(len(w)) for w, bias in zip(weights, biases, strict=True))
    mask = torch_sdpa.attention_mask(q, k, **{n: options[n] for n in ("causal", "mask", "bias") if n in options})
    if mask is not None:
        # In a bool mask of PyTorch's layers True masks a key.
        heads = options["query_projection"].shape[1]
        mask = mask.expand(q.shape[0], heads, q.shape[2], k.shape[2]).flatten(0, 1)
        mask = ~mask if mask.dtype == torch.bool else mask
    out_weight, out_bias = out_in_one(options)
    return {
        "embed_dim_to_check": q.shape[-1],
        "num_heads": options["query_projection"].shape[1],
        "in_proj_weight": None,
        "in_proj_bias": torch.cat(list(zeros)) if some else None,
        "bias_k": None,
        "bias_v": None,
        "add_zero_attn": False,
        "dropout_p": 0.0,
        "out_proj_weight": out_weight,
        "out_proj_bias": out_bias,
        "training": False,
        "attn_mask": mask,
        "use_separate_proj_weight": True,
        **{f"{side[0]}_proj_weight": weight for side, weight in zip(SIDES, weights, strict=True)},
    }


def module(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any], *, need_weights: bool) -> Tensor:
    """Call the function of ``torch.nn.MultiheadAttention``'s slow path, whose tensors in and out are [S, B, D]."""
    q_, k_, v_ = (x.squeeze(1).transpose(0, 1) for x in (q, k, v))
    out, _ = multi_head_attention_forward(q_, k_, v_, need_weights=need_weights, **arguments(q, k, options))
    return out.transpose(0, 1).unsqueeze(1)


@kernel(
    **LAYER,
    contract=torch_sdpa.math.contract,
    supports=(*PROJECTIONS, *BIASES, "causal", "mask", "bias", "dv", "cross", "backward"),
    conventions={"empty_row": "zero"},
)
def multihead(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the slow path without weights, over the math backend of scaled_dot_product_attention; D = H A, O = D."""
    if options.get("bias") is not None:  # else its gradient is rounded to half before it is summed over heads
        options["bias"] = options["bias"].to(torch.promote_types(q.dtype, torch.float32))
    with sdpa_kernel(SDPBackend.MATH):
        return module(q, k, v, options, need_weights=False)


@kernel(
    **LAYER_WITH_NAN,
    contract=torch_eager.attention.contract,
    supports=(*PROJECTIONS, *BIASES, "causal", "mask", "bias", "dv", "cross", "backward"),
    conventions={"empty_row": "nan"},
)
def multihead_weights(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the slow path that returns weights too, which multiplies, adds and normalizes by itself."""
    return module(q, k, v, options, need_weights=True)


@kernel(
    **LAYER_WITH_NAN,
    contract=torch_eager.attention.contract,
    supports=(*PROJECTIONS, *BIASES, "causal", "mask"),
    conventions={"empty_row": "nan"},
    devices=("cpu",),
)
def multihead_fast(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Run the fast path, which has no gradients: one fused projection, softmax under a mask, one projection."""
    given = arguments(q, k, options)
    mask = given["attn_mask"]
    weights = torch.cat([given[f"{side[0]}_proj_weight"] for side in SIDES])
    bias, out_bias = given["in_proj_bias"], given["out_proj_bias"]
    out, _ = torch.ops.aten._native_multi_head_attention(  # noqa: SLF001
        *(x.squeeze(1) for x in (q, k, v)),
        given["embed_dim_to_check"],
        given["num_heads"],
        weights,
        weights.new_zeros(len(weights)) if bias is None else bias,
        given["out_proj_weight"],
        weights.new_zeros(q.shape[-1]) if out_bias is None else out_bias,
        None if mask is None else mask.view(q.shape[0], -1, *mask.shape[1:]),
        need_weights=False,
        average_attn_weights=False,
        mask_type=None if mask is None else 2,
    )
    return out.unsqueeze(1)

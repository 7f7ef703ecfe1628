"""Signatures of functions of PyTorch 2.13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    QUERY_KEY_VALUE,
    fixed,
    grouped,
    idle,
    mask_or_bias,
    same,
    scale,
    where,
    window,
)
from attn_spec.kernels.signatures.flash_attention import OF_POSITIVE_SCALE, UNSCALED_2
from attn_spec.kernels.signatures.signature import Argument, Fact, Given, Signature, SignatureError

_DTYPES = ("float64", "float32", "float16", "bfloat16")
#: Pairs of options that one parameter would say, or that PyTorch refuses together.
_APART = (("causal", "mask"), ("causal", "bias"), ("mask", "bias"))

TORCH_SDPA = Signature(
    function="torch.nn.functional.scaled_dot_product_attention",
    framework="torch",
    presentation="BHSD",
    dtypes=_DTYPES,
    arguments=(
        *QUERY_KEY_VALUE,
        mask_or_bias("attn_mask"),
        fixed("dropout_p", 0.0),
        same("is_causal", "causal", False),
        scale("scale"),
        grouped(),
    ),
    limits=Limits(exclusive=_APART, positive_scale=True),
    facts=(
        Fact(
            says="a scale of 0 or less beside is_causal gives NaN on a CPU",
            source="torch 2.13, run: the flash kernel masks scores before it multiplies them by the scale",
        ),
        Fact(
            says="is_causal starts the diagonal in the top left corner, and is refused beside attn_mask",
            source="torch 2.13, docstring: tril(diagonal=0), and the assertion attn_mask is None",
        ),
        Fact(says="True in a bool attn_mask attends; other numbers are added", source="torch 2.13, docstring"),
    ),
    source="torch 2.13, docstring",
)


def _varlen_lse() -> Argument:
    def spell(given: Given) -> Any:
        if not given.get("lse"):
            return None
        from torch.nn.attention.varlen import AuxRequest

        return AuxRequest(lse=True)

    return Argument(name="return_aux", says=("lse",), default=None, spell=spell, read=_nothing, means="AuxRequest(lse)")


def _nothing(value: Any) -> Mapping[str, Any]:
    del value
    return {}


TORCH_VARLEN = Signature(
    function="torch.nn.attention.varlen.varlen_attn",
    framework="torch",
    presentation="THD",
    dtypes=("float16", "bfloat16"),
    arguments=(
        *QUERY_KEY_VALUE,
        *where(cu_seq_q="cu_seqlens_q", cu_seq_k="cu_seqlens_k", max_q="max_seqlen_q", max_k="max_seqlen_k"),
        _varlen_lse(),
        scale("scale"),
        window("window_size", (-1, -1)),
        grouped(),
        fixed("seqused_k", None),
        fixed("block_table", None),
        idle("num_splits"),
    ),
    conventions={"causal_alignment": "bottom_right", "empty_lse": "+inf"},
    limits=OF_POSITIVE_SCALE,
    facts=(
        UNSCALED_2,
        Fact(says="window_size (-1, 0) is causal", source="torch 2.13, docstring"),
        Fact(
            says="the diagonal ends in the bottom right corner, and the log-sum-exp of no key is +inf, as in "
            "flash-attention 2, which it calls",
            source="torch 2.13, varlen.py: torch.ops.aten._flash_attention_forward",
        ),
        Fact(
            says="the log-sum-exp is [Hq, Tq], though the docstring says (Tq, Hq)",
            source="torch 2.13, varlen.py: the fake kernel makes logsumexp (num_heads, total_q)",
        ),
    ),
    source="torch 2.13, varlen.py",
)


def _score_mod() -> Argument:
    def spell(given: Given) -> Any:
        cap, bias, slopes = (given.get(name) for name in ("softcap", "bias", "alibi_slopes"))
        if cap is None and bias is None and slopes is None:
            return None
        import torch

        b_of_slopes = None if slopes is None else slopes.expand(given.length("q", "B"), given.query_heads, 1, 1)
        b_of_pairs = None if bias is None else bias.expand(*_pairs(given))

        def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            score = score if cap is None else cap * torch.tanh(score / cap)
            score = score if b_of_pairs is None else score + b_of_pairs[b, h, i, j]
            return score if b_of_slopes is None else score - b_of_slopes[b, h, 0, 0] * (i - j).abs()

        return score_mod

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        raise SignatureError("attn-spec cannot read a score_mod; say softcap=, bias= or alibi_slopes= in its place")

    return Argument(
        name="score_mod",
        says=("softcap", "bias", "alibi_slopes"),
        default=None,
        spell=spell,
        read=read,
        means="a function of a scaled score and its indices, which attn-spec writes",
    )


def _block_mask() -> Argument:
    names = ("causal", "window", "attention_chunk", "mask")

    def spell(given: Given) -> Any:
        if not any(given.get(name) for name in names[:3]) and given.get("mask") is None:
            return None
        from torch.nn.attention.flex_attention import create_block_mask

        left, right = given.get("window") or (None, None)
        chunk, seen = given.get("attention_chunk"), given.get("mask")
        seen = None if seen is None else seen.expand(*_pairs(given))

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            found = j >= 0
            found = found & (j <= i) if given.get("causal") else found
            found = found if left is None else found & (j >= i - left)
            found = found if right is None else found & (j <= i + right)
            found = found if chunk is None else found & (j // chunk == i // chunk)
            return found if seen is None else found & seen[b, h, i, j]

        return create_block_mask(mask_mod, *_pairs(given), device=given["q"].device)

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        from torch.nn.attention.flex_attention import create_mask

        return {"mask": create_mask(value.mask_mod, *value.shape, device=value.kv_num_blocks.device)}

    return Argument(
        name="block_mask",
        says=names,
        default=None,
        spell=spell,
        read=read,
        means="a BlockMask of the keys that each query sees, which attn-spec writes",
    )


def _pairs(given: Given) -> tuple[int, int, int, int]:
    return given.length("q", "B"), given.query_heads, given.length("q", "S"), given.length("k", "S")


def _flex_lse() -> Argument:
    def spell(given: Given) -> Any:
        if not given.get("lse"):
            return None
        from torch.nn.attention.flex_attention import AuxRequest

        return AuxRequest(lse=True)

    return Argument(name="return_aux", says=("lse",), default=None, spell=spell, read=_nothing, means="AuxRequest(lse)")


def _flex_answer(result: Any, passed: Mapping[str, Any]) -> tuple[Any, Any]:
    del passed
    return (result[0], result[1].lse) if isinstance(result, tuple) else (result, None)


FLEX_ATTENTION = Signature(
    function="torch.nn.attention.flex_attention.flex_attention",
    framework="torch",
    presentation="BHSD",
    dtypes=_DTYPES,
    arguments=(
        *QUERY_KEY_VALUE,
        _score_mod(),
        _block_mask(),
        scale("scale"),
        grouped(),
        fixed("return_lse", False),
        idle("kernel_options"),
        _flex_lse(),
    ),
    answer=_flex_answer,
    facts=(
        Fact(
            says="score_mod changes scores that the scale has multiplied",
            source="torch 2.13, torch/_higher_order_ops/flex_attention.py, _math_attention_inner",
        ),
        Fact(
            says="the caller decides the corner of the diagonal: a block_mask that attn-spec writes has it top left",
            source="torch 2.13, docstring of create_block_mask",
        ),
    ),
    source="torch 2.13, flex_attention.py",
)

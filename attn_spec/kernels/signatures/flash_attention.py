"""Signatures of flash-attention 2, 3 and 4, for equal and for packed sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    asks_lse,
    by_sequence,
    fixed,
    idle,
    per_head,
    same,
    scale,
    tensor,
    where,
    window,
)
from attn_spec.kernels.signatures.signature import Argument, Fact, Signature
from attn_spec.problem.options import FACTORS

_QKV = (tensor("q"), tensor("k"), tensor("v"))
_PLACES = where("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_2 = "flash-attention@0251105, flash_attn/flash_attn_interface.py"
_3 = "flash-attention@0251105, hopper/flash_attn_interface.py"
_4 = "flash-attention@0251105, flash_attn/cute/interface.py"
_CORNER = "the diagonal ends in the bottom right corner, and window_size counts from there"
_HALVES = ("float16", "bfloat16")


def _facts(interface: str, lse: str, empty: str, where_empty: str) -> tuple[Fact, ...]:
    return (
        Fact(says=_CORNER, source=interface),
        Fact(says=f"the log-sum-exp is {lse}, natural", source=interface),
        Fact(says=f"the log-sum-exp of a query that sees no key is {empty}", source=where_empty),
    )


def _unscaled(source: str) -> Fact:
    return Fact(
        says="the largest score is found before the scale multiplies it, so that the scale must be above 0",
        source=f"flash-attention@0251105, {source}",
    )


#: Limits of all versions: a maximum of unscaled scores.
OF_POSITIVE_SCALE = Limits(positive_scale=True)
UNSCALED_2 = _unscaled("csrc/flash_attn/src/softmax.h, scale_apply_exp2")
UNSCALED_3 = _unscaled("hopper/softmax.h, scale_apply_exp2")
_UNSCALED_4 = _unscaled("flash_attn/cute/softmax.py, Softmax.online_softmax")

_OF_2: dict[str, Any] = {
    "framework": "torch",
    "dtypes": _HALVES,
    "limits": OF_POSITIVE_SCALE,
    "option_dtypes": {"alibi_slopes": "float32"},
    "conventions": {"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "+inf"},
    "source": _2,
}
_EMPTY_2 = "flash-attention@0251105, csrc/flash_attn/src/softmax.h, normalize_softmax_lse"
_REST_2 = (
    fixed("dropout_p", 0.0),
    scale("softmax_scale"),
    same("causal", default=False),
    window("window_size", (-1, -1)),
    same("softcap", default=0.0, means="0 is none"),
    per_head("alibi_slopes", "alibi_slopes", by_entry=True),
    idle("deterministic", False),
    asks_lse("return_attn_probs"),
)

FLASH_ATTN = Signature(
    function="flash_attn.flash_attn_func",
    presentation="BSHD",
    arguments=(*_QKV, *_REST_2),
    facts=(*_facts(f"{_2}, docstring of flash_attn_func", "[B, Hq, Sq]", "+inf", _EMPTY_2), UNSCALED_2),
    **_OF_2,
)
FLASH_ATTN_VARLEN = Signature(
    function="flash_attn.flash_attn_varlen_func",
    presentation="THD",
    arguments=(*_QKV, *_PLACES, *_REST_2, fixed("block_table", None)),
    facts=(*_facts(f"{_2}, docstring of flash_attn_varlen_func", "[Hq, Tq]", "+inf", _EMPTY_2), UNSCALED_2),
    **_OF_2,
)

_OF_3: dict[str, Any] = {
    "framework": "torch",
    "dtypes": _HALVES,
    "limits": OF_POSITIVE_SCALE,
    "conventions": {"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "-inf"},
    "source": _3,
}
_EMPTY_3 = "flash-attention@0251105, hopper/softmax.h, finalize"
#: Fields of rows of calls with inputs of 8 bits, of which alone the library reads descales.
OF_EIGHT_BITS: dict[str, Any] = {
    "dtypes": ("float8_e4m3fn",),
    "option_dtypes": dict.fromkeys(FACTORS, "float32"),
    "lacks": frozenset({"descale_by_key"}),
}
DESCALED_3 = Fact(
    says="q_descale, k_descale and v_descale are float32 [B, Hkv], and are read of float8_e4m3fn inputs alone",
    source="flash-attention, hopper/flash_api.cpp, mha_fwd: if (q_type == at::ScalarType::Float8_e4m3fn)",
)


def _rest_3(*, eight_bits: bool = False) -> tuple[Argument, ...]:
    """Return the parameters of calls of flash-attention 3 behind those of the tensors and their places."""
    return (
        scale("softmax_scale"),
        same("causal", default=False),
        fixed("qv", None),
        *(by_sequence(name) if eight_bits else fixed(name, None) for name in FACTORS),
        window("window_size", (-1, -1)),
        same("attention_chunk", default=0, means="0 is none"),
        same("softcap", default=0.0, means="0 is none"),
        idle("num_splits", 1),
        idle("pack_gqa"),
        idle("deterministic", False),
        idle("sm_margin", 0),
        asks_lse("return_attn_probs"),
    )


FLASH_ATTN_3 = Signature(
    function="flash_attn_interface.flash_attn_func",
    presentation="BSHD",
    arguments=(*_QKV, *_rest_3()),
    facts=(*_facts(f"{_3}, docstring of flash_attn_func", "[B, Hq, Sq]", "-inf", _EMPTY_3), UNSCALED_3),
    **_OF_3,
)
FLASH_ATTN_3_VARLEN = Signature(
    function="flash_attn_interface.flash_attn_varlen_func",
    presentation="THD",
    arguments=(*_QKV, *_PLACES, fixed("seqused_q", None), fixed("seqused_k", None), *_rest_3()),
    facts=(*_facts(f"{_3}, docstring of flash_attn_func", "[Hq, Tq]", "-inf", _EMPTY_3), UNSCALED_3),
    **_OF_3,
)
FLASH_ATTN_3_FP8 = replace(
    FLASH_ATTN_3,
    arguments=(*_QKV, *_rest_3(eight_bits=True)),
    facts=(*FLASH_ATTN_3.facts, DESCALED_3),
    **OF_EIGHT_BITS,
)
FLASH_ATTN_3_VARLEN_FP8 = replace(
    FLASH_ATTN_3_VARLEN,
    arguments=(*_QKV, *_PLACES, fixed("seqused_q", None), fixed("seqused_k", None), *_rest_3(eight_bits=True)),
    facts=(*FLASH_ATTN_3_VARLEN.facts, DESCALED_3),
    **OF_EIGHT_BITS,
)

_OF_4: dict[str, Any] = {
    "framework": "torch",
    "dtypes": _HALVES,
    "limits": OF_POSITIVE_SCALE,
    "conventions": {"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "-inf"},
    "source": _4,
}
_EMPTY_4 = "flash-attention@0251105, flash_attn/cute/softmax.py, finalize"
_MASKED_4 = (
    scale("softmax_scale"),
    same("causal", default=False),
    window("window_size", (None, None), unbounded=None),
    per_head("learnable_sink", "sinks"),
    same("softcap", default=0.0, means="0 is none"),
    idle("num_splits", 1),
    idle("pack_gqa"),
    idle("deterministic", False),
    fixed("score_mod", None),
    fixed("score_mod_bwd", None),
    fixed("mask_mod", None),
)
_SINK_4 = Fact(says="the log-sum-exp has the term of learnable_sink", source=_EMPTY_4)

FA4 = Signature(
    function="flash_attn.cute.flash_attn_func",
    presentation="BSHD",
    arguments=(
        *_QKV,
        fixed("qv", None),
        fixed("gather_kv_indices", None),
        *_MASKED_4,
        idle("aux_tensors"),
        idle("aux_scalars"),
        fixed("block_sparse_tensors", None),
        fixed("block_sparse_tensors_bwd", None),
        asks_lse("return_lse"),
    ),
    facts=(*_facts(f"{_4}, flash_attn_func", "[B, Hq, Sq]", "-inf", _EMPTY_4), _UNSCALED_4, _SINK_4),
    **_OF_4,
)
FA4_VARLEN = Signature(
    function="flash_attn.cute.flash_attn_varlen_func",
    presentation="THD",
    arguments=(
        *_QKV,
        fixed("qv", None),
        *(same(name, default=None) for name in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")),
        idle("min_seqlen_k"),
        fixed("seqused_q", None),
        fixed("seqused_k", None),
        fixed("gather_kv_indices", None),
        fixed("page_table", None),
        *_MASKED_4,
        fixed("block_sparse_tensors", None),
        idle("aux_tensors"),
        idle("aux_scalars"),
        asks_lse("return_lse"),
        idle("scheduler_metadata"),
        idle("seqlen_k_per_split"),
        idle("disable_scheduler_metadata", False),
    ),
    facts=(*_facts(f"{_4}, flash_attn_varlen_func", "[Hq, Tq]", "-inf", _EMPTY_4), _UNSCALED_4, _SINK_4),
    **_OF_4,
)

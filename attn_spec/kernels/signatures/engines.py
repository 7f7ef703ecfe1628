"""Signatures of the kernels of vLLM and SGLang, which write their output into a tensor of the caller."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    fixed,
    idle,
    left_window,
    per_head,
    same,
    scale,
    tensor,
    where,
    window,
)
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature

#: Number of parts in which the keys of a sequence are split.
_SPLITS = 4


def _written(given: Given) -> Any:
    """Return a tensor for the output, NaN wherever nothing is written."""
    q, v = given["q"], given["v"]
    return q.new_full((*q.shape[:-1], v.shape[-1]), float("nan"))


def _batch(given: Given) -> int:
    return int(given["kv_indptr"].shape[0]) - 1


def _splits(given: Given) -> Any:
    return given["kv_indptr"].new_full((_batch(given),), _SPLITS)


def _partial(width: bool) -> Any:
    """Return the function that makes room for partial outputs, or for their log-sum-exps, float32."""

    def room(given: Given) -> Any:
        last = (given["v"].shape[-1],) if width else ()
        return given["q"].float().new_zeros((*given["q"].shape[:2], _SPLITS, *last))

    return room


VLLM_UNIFIED = Signature(
    function="vllm.v1.attention.ops.triton_unified_attention.unified_attention",
    framework="torch",
    presentation="paged",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        tensor("q"),
        tensor("k"),
        tensor("v"),
        idle("out", REQUIRED, value=_written),
        *where("cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k"),
        scale("softmax_scale", REQUIRED),
        same("causal", off=False),
        window("window_size"),
        *where("block_table"),
        same("softcap", off=0.0, means="0 is none"),
        fixed("q_descale", REQUIRED, value=None),
        fixed("k_descale", REQUIRED, value=None),
        fixed("v_descale", REQUIRED, value=None),
        idle("seq_threshold_3D"),
        idle("num_par_softmax_segments"),
        idle("softmax_segm_output"),
        idle("softmax_segm_max"),
        idle("softmax_segm_expsum"),
        fixed("alibi_slopes", None),
        fixed("output_scale", None),
        fixed("qq_bias", None),
        per_head("sinks", "sinks"),
        fixed("mm_prefix_range", None),
        fixed("rswa_prefix_lens", None),
        fixed("rswa_window", None),
        fixed("use_alibi_sqrt", False),
        idle("kv_quant_mode", 0),
        fixed("k_scale_cache", None),
        fixed("v_scale_cache", None),
        fixed("chunk_lookback", -1),
        idle("use_td", False),
        fixed("mm_prefix_clamp_sliding_window", False),
    ),
    conventions={"causal_alignment": "bottom_right", "unused": "unread"},
    limits=Limits(always=("causal",), keys_reach_queries=True),
    lacks=frozenset({"dv"}),
    answer=lambda result, passed: (passed["out"], None),
    facts=(
        Fact(
            says="values are as wide as queries, whose width alone is read",
            source="vllm 0.33.0, unified_attention: head_size = q.shape[2]",
        ),
        Fact(says="the output is written into out, and nothing is returned", source="vllm 0.33.0, unified_attention"),
        Fact(
            says="window_size counts the keys on the left; causality alone bounds the right side, so that attn-spec "
            "asks for causal calls",
            source="vllm 0.33.0, unified_attention: SLIDING_WINDOW=(1 + window_size[0])",
        ),
    ),
    source="vllm 0.33.0, vllm/v1/attention/ops/triton_unified_attention.py",
)

SGLANG_DECODE = Signature(
    function="sglang.kernels.ops.attention.decode_attention.decode_attention_fwd",
    framework="torch",
    presentation="decode_token_pool",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        tensor("q"),
        tensor("k_buffer", "k"),
        tensor("v_buffer", "v"),
        idle("o", REQUIRED, value=_written),
        *where("kv_indptr", "kv_indices"),
        idle("attn_logits", REQUIRED, value=_partial(width=True)),
        idle("attn_lse", REQUIRED, value=_partial(width=False)),
        idle("num_kv_splits", REQUIRED, value=_splits),
        idle("max_kv_splits", REQUIRED, value=lambda given: _SPLITS),
        scale("sm_scale", REQUIRED),
        fixed("k_scale", REQUIRED, value=1.0),
        fixed("v_scale", REQUIRED, value=1.0),
        same("logit_cap", "softcap", 0.0, means="0 is none"),
        per_head("sinks", "sinks"),
        fixed("xai_temperature_len", -1),
        fixed("has_mla", False),
        idle("use_pdl", False),
        fixed("page_size", 1),
        fixed("score_mod", None),
        fixed("aux_tensors", None),
        idle("enable_lean"),
        idle("lean_Mp"),
        idle("lean_Lp"),
        idle("lean_Op"),
        idle("lean_locks"),
        idle("uneven_batch"),
    ),
    conventions={"causal_alignment": "bottom_right", "unused": "unread"},
    limits=Limits(least_keys=1),
    index_dtypes={"kv_indices": "int64"},
    answer=lambda result, passed: (passed["o"], None),
    facts=(
        Fact(
            says="kv_indices is int64, since a slot times a stride may need more than 31 bits",
            source="sglang 0.5.23, triton_backend.py: kv_indices = torch.empty(seq_lens_sum, dtype=torch.int64)",
        ),
        Fact(says="the output is written into o, and nothing is returned", source="sglang 0.5.23, decode_attention.py"),
        Fact(
            says="a sequence without keys divides 0 by 0, so that none is asked for",
            source="sglang 0.5.23, decode_attention.py, _fwd_kernel_stage2: acc / e_sum",
        ),
    ),
    source="sglang 0.5.23, sglang/kernels/ops/attention/decode_attention.py",
)


def _longest_extension(given: Given) -> int:
    bounds = given["qo_indptr"]
    return int((bounds[1:] - bounds[:-1]).max()) if len(bounds) > 1 else 0


def _extended(given: Given) -> Any:
    """Return a tensor for the output, NaN wherever nothing is written."""
    return given["q"].new_full((*given["q"].shape[:-1], given["v_new"].shape[-1]), float("nan"))


def _extended_lse() -> Argument:
    def spell(given: Given) -> Any:
        q = given["q"]
        return q.float().new_full(tuple(q.shape[:2]), float("nan")) if given.get("lse") else None

    return Argument(
        name="lse_extend",
        says=("lse",),
        default=None,
        spell=spell,
        read=lambda value: {},
        means="a tensor [tokens, heads] that the log-sum-exp is written into, or None",
    )


_EXTEND = "sglang 0.5.23, sglang/kernels/ops/attention/extend_attention.py"

SGLANG_EXTEND = Signature(
    function="sglang.kernels.ops.attention.extend_attention.extend_attention_fwd",
    framework="torch",
    presentation="extend",
    dtypes=("float32", "float16", "bfloat16"),
    arguments=(
        tensor("q_extend", "q"),
        tensor("k_extend", "k_new"),
        tensor("v_extend", "v_new"),
        idle("o_extend", REQUIRED, value=_extended),
        tensor("k_buffer", "k_cache"),
        tensor("v_buffer", "v_cache"),
        *where("qo_indptr", "kv_indptr", "kv_indices"),
        fixed("custom_mask", REQUIRED, value=None),
        same("is_causal", "causal", off=False),
        fixed("mask_indptr", REQUIRED, value=None),
        idle("max_len_extend", REQUIRED, value=_longest_extension),
        fixed("k_scale", REQUIRED, value=1.0),
        fixed("v_scale", REQUIRED, value=1.0),
        scale("sm_scale"),
        same("logit_cap", "softcap", 0.0, means="0 is none"),
        idle("skip_prefix_custom_mask", True),
        replace(left_window("sliding_window_size"), says=(), spell=lambda given: -1),
        per_head("sinks", "sinks"),
        fixed("window_kv_offsets", None),
        fixed("xai_temperature_len", -1),
        _extended_lse(),
        fixed("skip_prefix", False),
        fixed("skip_extend", False),
        fixed("page_size", 1),
        fixed("score_mod", None),
        fixed("aux_tensors", None),
        idle("extend_seq_lens_cpu"),
        fixed("identity_kv_indices", False),
    ),
    conventions={"causal_alignment": "bottom_right", "unused": "unread"},
    limits=Limits(positive_scale=True),
    index_dtypes={"kv_indices": "int64"},
    swapped={"lse": (0, 1)},
    answer=lambda result, passed: (passed["o_extend"], passed["lse_extend"]),
    facts=(
        Fact(
            says="results are written into o_extend and lse_extend [tokens, heads], natural, and nothing is returned",
            source=f"{_EXTEND}, extend_attention_fwd",
        ),
        Fact(
            says="kv_indptr and kv_indices list the keys before the new ones, which k_extend and v_extend have",
            source=f"{_EXTEND}, _fwd_kernel: cur_seq_len_prefix",
        ),
        Fact(
            says="sliding_window_size counts keys on the left without the own one, and is no window at 0, so that "
            "attn-spec reads it and asks for none",
            source=f"{_EXTEND}, _fwd_kernel: q_id <= kv_id + sliding_window_size, SLIDING_WINDOW_SIZE > 0",
        ),
        Fact(says="an sm_scale of 0 is 1 / sqrt(D)", source=f"{_EXTEND}: sm_scale or 1.0 / (Lq**0.5)"),
    ),
    source=_EXTEND,
)

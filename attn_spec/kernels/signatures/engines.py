"""Signatures of the kernels of vLLM and SGLang, which write their output into a tensor of the caller."""

from __future__ import annotations

from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import fixed, idle, per_head, same, scale, tensor, where, window
from attn_spec.kernels.signatures.signature import REQUIRED, Fact, Given, Signature

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
    answer=lambda result, passed: (passed["out"], None),
    facts=(
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

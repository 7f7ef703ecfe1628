"""Signatures of the kernels of vLLM and SGLang, which write their output into a tensor of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    fixed,
    idle,
    left_window,
    mode,
    one_number,
    per_head,
    same,
    scale,
    tensor,
    where,
    window,
)
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError

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


def _first_number(name: str, *, asked: bool) -> Argument:
    """Return the parameter of a tensor whose first number is a descale, or of None."""
    if not asked:
        return fixed(name, REQUIRED, value=None)

    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            raise SignatureError(f"{name} must be a tensor in a call of kv_quant_mode 1")
        first, *others = np.unique(values_of(value))
        if others:
            raise SignatureError(f"{name} must have equal numbers, since the first one is that of all sequences")
        return {name: np.array(first)}

    means = "a tensor of equal numbers, of which the first is read"
    return Argument(name=name, says=(name,), spell=lambda given: given[name], read=read, means=means)


def _scale_cache(name: str, own: str, *, asked: bool) -> Argument:
    if not asked:
        return fixed(name, None)
    return same(name, own, default=None, means="float32 [pages, page size, Hkv]")


_UNIFIED = "vllm-project/vllm@0013948, vllm/v1/attention/ops/triton_unified_attention.py"
_CACHES = ("q:float16,kv:float8_e4m3fn", "q:bfloat16,kv:float8_e4m3fn")


def _unified(quantized: int, means: str, *facts: Fact, **more: Any) -> Signature:
    """Return the row of vLLM's unified attention whose caches are ``quantized`` as kv_quant_mode says."""
    return Signature(
        function="vllm.v1.attention.ops.triton_unified_attention.unified_attention",
        framework="torch",
        presentation="paged",
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
            *(_first_number(name, asked=quantized == _PER_TENSOR) for name in ("k_descale", "v_descale")),
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
            mode("kv_quant_mode", 0, quantized, means),
            _scale_cache("k_scale_cache", "k_descale", asked=quantized == _PER_TOKEN_AND_HEAD),
            _scale_cache("v_scale_cache", "v_descale", asked=quantized == _PER_TOKEN_AND_HEAD),
            fixed("chunk_lookback", -1),
            idle("use_td", False),
            fixed("mm_prefix_clamp_sliding_window", False),
        ),
        conventions={"causal_alignment": "bottom_right", "unused": "unread"},
        answer=lambda result, passed: (passed["out"], None),
        facts=(
            Fact(
                says="values are as wide as queries, whose width alone is read",
                source="vllm 0.33.0, unified_attention: head_size = q.shape[2]",
            ),
            Fact(
                says="heads have 32 columns or more, and pages a multiple of 16 keys",
                source="vllm 0.33.0, v1/attention/backends/triton_attn.py: supports_head_size, supports_block_size",
            ),
            Fact(
                says="the output is written into out, and nothing is returned",
                source="vllm 0.33.0, unified_attention",
            ),
            Fact(
                says="window_size counts the keys on the left; causality alone bounds the right side, so that "
                "attn-spec asks for causal calls",
                source="vllm 0.33.0, unified_attention: SLIDING_WINDOW=(1 + window_size[0])",
            ),
            *facts,
        ),
        source="vllm 0.33.0, vllm/v1/attention/ops/triton_unified_attention.py",
        **more,
    )


def _limits(*always: str) -> Limits:
    return Limits(
        head_dims=tuple(range(32, 257)),
        page_sizes=(16, 32, 48, 64, 128),
        always=("causal", *always),
        keys_reach_queries=True,
    )


#: Values of kv_quant_mode.
_PER_TENSOR, _PER_TOKEN_AND_HEAD = 1, 3
#: Facts of calls with a cache of 8 bits, which always have descales.
_OF_EIGHT_BITS: dict[str, Any] = {
    "dtypes": _CACHES,
    "option_dtypes": {"k_descale": "float32", "v_descale": "float32"},
    "limits": _limits("k_descale", "v_descale"),
}

VLLM_UNIFIED = _unified(
    0,
    "caches without descales",
    dtypes=("float32", "float16", "bfloat16"),
    limits=_limits(),
    lacks=frozenset({"dv"}),
)
VLLM_UNIFIED_FP8 = _unified(
    _PER_TENSOR,
    "caches of 8 bits with one descale each",
    Fact(
        says="k_descale and v_descale multiply keys and values as these are loaded, and are rounded to the dtype of q",
        source=f"{_UNIFIED}, _cast_kv_tile: (data.to(tl.float32) * tl.load(tensor_scale)).to(Q.dtype)",
    ),
    lacks=frozenset({"dv", "descale_by_head", "descale_by_key"}),
    **_OF_EIGHT_BITS,
)
VLLM_UNIFIED_SCALE_CACHES = _unified(
    _PER_TOKEN_AND_HEAD,
    "caches of 8 bits beside caches of a descale for each key and head",
    Fact(
        says="k_scale_cache multiplies the scale of scores, v_scale_cache the weights, before these are rounded",
        source=f"{_UNIFIED}, kernel_unified_attention: S += tl.dot(Q, K) * (scale * k_token_head_scales[None, :])",
    ),
    Fact(
        says="scales behind the last key of a sequence are not read",
        source=f"{_UNIFIED}, kernel_unified_attention: mask=tile_mask, other=1.0",
    ),
    lacks=frozenset({"dv"}),
    asks_for=frozenset({"descale_by_head", "descale_by_key"}),
    **_OF_EIGHT_BITS,
)

#: Head dimensions of products in Triton, which has none of fewer than 16 columns on a GPU.
_PRODUCT_DIMS = tuple(range(16, 257))
_OF_PRODUCTS = Fact(
    says="heads have 16 columns or more, or a call with groups of query heads raises",
    source="Triton 3.6, tl.dot on CUDA: Input shapes should have K >= 16",
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
        one_number("k_scale", "k_descale", off=1.0),
        one_number("v_scale", "v_descale", off=1.0),
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
    limits=Limits(head_dims=_PRODUCT_DIMS, least_keys=1),
    option_dtypes={"k_descale": "float32", "v_descale": "float32"},
    lacks=frozenset({"descale_by_head", "descale_by_key"}),
    index_dtypes={"kv_indices": "int64"},
    answer=lambda result, passed: (passed["o"], None),
    facts=(
        Fact(
            says="kv_indices is int64, since a slot times a stride may need more than 31 bits",
            source="sglang 0.5.23, triton_backend.py: kv_indices = torch.empty(seq_lens_sum, dtype=torch.int64)",
        ),
        _OF_PRODUCTS,
        Fact(says="the output is written into o, and nothing is returned", source="sglang 0.5.23, decode_attention.py"),
        Fact(
            says="v_scale multiplies the output in float32, before it is stored",
            source="sgl-project/sglang, decode_attention.py, _fwd_kernel_stage2: acc / e_sum * v_scale",
        ),
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
    limits=Limits(head_dims=_PRODUCT_DIMS, positive_scale=True),
    index_dtypes={"kv_indices": "int64"},
    swapped={"lse": (0, 1)},
    answer=lambda result, passed: (passed["o_extend"], passed["lse_extend"]),
    facts=(
        _OF_PRODUCTS,
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
        Fact(
            says="k_scale and v_scale multiply keys and values of the pool alone, so that none is asked for",
            source="sgl-project/sglang, extend_attention.py, _fwd_kernel: qk *= sm_scale * k_scale in the prefix loop",
        ),
        Fact(says="an sm_scale of 0 is 1 / sqrt(D)", source=f"{_EXTEND}: sm_scale or 1.0 / (Lq**0.5)"),
    ),
    source=_EXTEND,
)

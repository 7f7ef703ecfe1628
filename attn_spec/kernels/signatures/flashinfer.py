"""Signatures of FlashInfer's attention: its wrappers, and the decoding that TensorRT-LLM's kernels do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import (
    asks_lse,
    fixed,
    idle,
    left_window,
    one_number,
    same,
    scale,
    tensor,
    where,
)
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError

_SOURCE = "flashinfer-python 0.7.4, flashinfer/decode.py, trtllm_batch_decode_with_kv_cache"


def _caches(name: str = "kv_cache", *, alike: bool = False) -> Argument:
    """Return the parameter of both caches; ``alike`` copies them unless they have equal strides."""

    def spell(given: Given) -> Any:
        k, v = given["k"], given["v"]
        return (k, v) if not alike or k.stride() == v.stride() else (k.contiguous(), v.contiguous())

    def read(value: Any) -> Mapping[str, Any]:
        k, v = value if isinstance(value, tuple | list) else (value[:, 0], value[:, -1])
        return {"k": k, "v": v}

    return Argument(
        name=name,
        says=("k", "v"),
        spell=spell,
        read=read,
        means="the caches of keys and of values, or both in one",
    )


def _layout() -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        if value != "NHD":
            raise SignatureError(f"attn-spec reads caches of kv_layout='NHD', not of {value!r}, the default")
        return {}

    means = "caches [pages, size, H, D]: 'NHD' in every call"
    return Argument(name="kv_layout", default="HND", spell=lambda given: "NHD", read=read, means=means)


def _scale() -> Argument:
    return Argument(
        name="bmm1_scale",
        says=("scale",),
        default=1.0,
        spell=lambda given: float(given.scale),
        read=lambda value: {"scale": value},
        means="the factor of scores, which is not 1 / sqrt(D) by default",
    )


def _longest(given: Given) -> int:
    return int(given["block_table"].shape[1]) * int(given["k"].shape[1])


TRTLLM_DECODE = Signature(
    function="flashinfer.decode.trtllm_batch_decode_with_kv_cache",
    framework="torch",
    presentation="decode_paged",
    dtypes=("float16", "bfloat16"),
    arguments=(
        tensor("query", "q"),
        _caches(),
        idle("workspace_buffer", REQUIRED, value=lambda given: given["q"].new_zeros(1)),
        *where(block_tables="block_table", seq_lens="seqused_k"),
        idle("max_seq_len", REQUIRED, value=_longest),
        _scale(),
        fixed("bmm2_scale", 1.0),
        left_window("window_left"),
        idle("out"),
        fixed("out_dtype", None),
        fixed("o_sf_scale", None),
        fixed("o_sf_vec_size", None),
        fixed("sinks", None),
        _layout(),
        idle("enable_pdl"),
        idle("backend", "auto"),
        fixed("q_len_per_req", 1),
        fixed("o_scale", 1.0),
        fixed("mask", None),
        fixed("max_q_len", None),
        fixed("cum_seq_lens_q", None),
        fixed("skip_softmax_threshold_scale_factor", None),
        fixed("kv_cache_sf", None),
        fixed("uses_shared_paged_kv_idx", True),
        idle("lse"),
        fixed("return_lse", False),
        fixed("bmm1_scale_log2", None),
        idle("multi_ctas_kv_counter_buffer"),
        fixed("enable_block_sparse_attention", False),
        fixed("cp_world", 1),
        fixed("cp_rank", 0),
        fixed("causal_seqlens_kv_global", None),
        idle("bf16q_fp8kv_transform_mode"),
        idle("request_order"),
        idle("request_order_plan"),
        fixed("sparse_top_k", 0),
        idle("length_aware_schedule", False),
    ),
    conventions={"causal_alignment": "bottom_right"},
    facts=(
        Fact(says="bmm1_scale is 1.0 by default, so that 1 / sqrt(D) is always passed", source=_SOURCE),
        Fact(says="window_left counts inclusive keys on the left, -1 is unbounded", source=_SOURCE),
    ),
    source=_SOURCE,
)


_WRAPPERS = "flashinfer-python 0.7.4, flashinfer"
_LSE = Fact(
    says="the log-sum-exp is [tokens, Hq], of base 2",
    source=f"{_WRAPPERS}/prefill.py, BatchPrefillWithPagedKVCacheWrapper.run: lse_base log2, lse_layout NH",
)
_LEFT = Fact(
    says="window_left counts inclusive keys on the left, -1 is unbounded; causality alone bounds the right side, so "
    "that attn-spec asks for windows in causal calls only",
    source=f"{_WRAPPERS}/prefill.py, BatchPrefillWithPagedKVCacheWrapper.plan",
)
_PAGES = Fact(
    says="the last page of each sequence has from 1 to page_size keys, so that no sequence without keys is asked for",
    source="flashinfer.ai, documentation of the layouts of caches: last_page_len",
)


def _of(method: str, *arguments: Argument) -> tuple[Argument, ...]:
    return tuple(replace(one, of=method) for one in arguments)


def _counted(name: str, count: Callable[[Given], int], default: Any = REQUIRED) -> Argument:
    """Return the parameter of a length that follows from the shapes of a call."""
    return idle(name, default, value=count)


def _dtype(name: str, of: str, default: Any) -> Argument:
    return idle(name, default, value=lambda given: given[of].dtype)


def _page_size(cache: str) -> Callable[[Given], int]:
    return lambda given: int(given[cache].shape[1])


def _width(tensor: str) -> Callable[[Given], int]:
    return lambda given: int(given[tensor].shape[-1])


_HEADS = (
    _counted("num_qo_heads", lambda given: given.query_heads),
    _counted("num_kv_heads", lambda given: given.kv_heads),
)
_CAP = same("logits_soft_cap", "softcap", default=None, means="None is none")
#: First parameters of the method run of a wrapper of pages.


def _run(*, alike: bool) -> tuple[Argument, ...]:
    """Return the parameters that run has of both wrappers."""
    return (
        tensor("q"),
        _caches("paged_kv_cache", alike=alike),
        one_number("q_scale", "q_descale", None),
        one_number("k_scale", "k_descale", None),
        fixed("v_scale", None),
        *(idle(name) for name in ("out", "lse")),
        asks_lse("return_lse"),
    )


#: Dtypes of scales that are numbers of Python, and the abilities that no call with these has.
_FLOATS = {"q_descale": "float32", "k_descale": "float32"}
_ONE_NUMBER = frozenset({"descale_by_head", "descale_by_key"})
_SCALES = (
    Fact(
        says="q_scale and k_scale multiply sm_scale",
        source="flashinfer-ai/flashinfer@002752a, flashinfer/decode.py: sm_scale *= q_scale, sm_scale *= k_scale",
    ),
    Fact(
        says="v_scale multiplies the output after it was rounded to its dtype, which no contract says, so that none is "
        "asked for",
        source="flashinfer-ai/flashinfer, flashinfer/decode.py: the `out *= v_scale` that other backends still need",
    ),
)


def _plans_and_runs(wrapper: str) -> Fact:
    return Fact(
        says="plan takes the places of pages and the options, run the tensors; kv_layout of the wrapper is NHD",
        source=f"{_WRAPPERS}/{wrapper}",
    )


FLASHINFER_DECODE = Signature(
    function="flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper",
    methods=("plan", "run"),
    framework="torch",
    presentation="decode_csr",
    dtypes=("float16", "bfloat16"),
    arguments=(
        *_of(
            "plan",
            *where(indptr="kv_indptr", indices="kv_indices", last_page_len="kv_last_page_len"),
            *_HEADS,
            _counted("head_dim", _width("q")),
            _counted("page_size", _page_size("k")),
            fixed("pos_encoding_mode", "NONE"),
            left_window("window_left"),
            fixed("window_right", 0),
            _CAP,
            _dtype("q_data_type", "q", "float16"),
            _dtype("kv_data_type", "k", None),
            fixed("o_data_type", None),
            scale("sm_scale"),
            fixed("q_len_per_req", 1),
        ),
        *_of(
            "run",
            *_run(alike=True),
            idle("enable_pdl"),
            fixed("sinks", None),
        ),
    ),
    conventions={"causal_alignment": "bottom_right", "lse_base": "2"},
    option_dtypes=_FLOATS,
    lacks=_ONE_NUMBER,
    limits=Limits(group_sizes=(1, 2, 3, 4, 6, 8, 16), least_keys=1),
    facts=(
        Fact(
            says="a kv head has 1, 2, 3, 4, 6, 8 or 16 query heads; any other number raises",
            source="flashinfer-python 0.7.4, include/flashinfer/utils.cuh, DISPATCH_GQA_GROUP_SIZE",
        ),
        Fact(
            says="both caches have equal strides, so that a call copies others",
            source="flashinfer-python 0.7.4, csrc/batch_decode.cu: K/V strides differ at dim",
        ),
        replace(_LSE, source=f"{_WRAPPERS}/decode.py, BatchDecodeWithPagedKVCacheWrapper.run"),
        *_SCALES,
        _PAGES,
        _plans_and_runs("decode.py, BatchDecodeWithPagedKVCacheWrapper"),
    ),
    source=f"{_WRAPPERS}/decode.py, BatchDecodeWithPagedKVCacheWrapper: plan, _plan_impl and run",
)

FLASHINFER_PREFILL = Signature(
    function="flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper",
    methods=("plan", "run"),
    framework="torch",
    presentation="paged_csr",
    dtypes=("float16", "bfloat16"),
    arguments=(
        *_of(
            "plan",
            *where(
                "qo_indptr",
                paged_kv_indptr="kv_indptr",
                paged_kv_indices="kv_indices",
                paged_kv_last_page_len="kv_last_page_len",
            ),
            *_HEADS,
            _counted("head_dim_qk", _width("q")),
            _counted("page_size", _page_size("k")),
            _counted("head_dim_vo", _width("v"), default=None),
            fixed("custom_mask", None),
            fixed("packed_custom_mask", None),
            same("causal", default=False),
            fixed("pos_encoding_mode", "NONE"),
            scale("sm_scale"),
            left_window("window_left"),
            _CAP,
            _dtype("q_data_type", "q", "float16"),
            _dtype("kv_data_type", "k", None),
            fixed("o_data_type", None),
        ),
        *_of(
            "run",
            *_run(alike=False),
            fixed("lse_base", "log2"),
            fixed("lse_layout", "NH"),
            idle("enable_pdl"),
            fixed("sinks", None),
        ),
    ),
    conventions={"causal_alignment": "bottom_right", "lse_base": "2"},
    option_dtypes=_FLOATS,
    lacks=_ONE_NUMBER,
    limits=Limits(beside={"window": ("causal",)}, keys_reach_queries=True, least_keys=1, tight_buffers=True),
    swapped={"lse": (0, 1)},
    facts=(
        Fact(
            says="q has the tokens of the sequences and no other",
            source=f"{_WRAPPERS}/prefill.py, run: q.shape[0] does not match qo_indptr[-1]",
        ),
        _LSE,
        *_SCALES,
        _LEFT,
        _PAGES,
        _plans_and_runs("prefill.py, BatchPrefillWithPagedKVCacheWrapper"),
    ),
    source=f"{_WRAPPERS}/prefill.py, BatchPrefillWithPagedKVCacheWrapper: plan and run",
)

_MLA = f"{_WRAPPERS}/mla/_batch_mla/_wrapper.py, BatchMLAPagedAttentionWrapper"


def _lse_mode() -> Argument:
    return Argument(
        name="lse_mode",
        says=("lse",),
        default="none",
        spell=lambda given: "base2" if given.get("lse") else "none",
        read=lambda value: {},
        means="base2 if a log-sum-exp is asked for",
    )


FLASHINFER_MLA = Signature(
    function="flashinfer.mla.BatchMLAPagedAttentionWrapper",
    methods=("plan", "run"),
    framework="torch",
    presentation="mla_csr",
    dtypes=("float16", "bfloat16"),
    arguments=(
        *_of(
            "plan",
            *(same(name, default=None) for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")),
            _counted("num_heads", lambda given: int(given["q_nope"].shape[1]), default=None),
            _counted("head_dim_ckv", _width("q_nope"), default=None),
            _counted("head_dim_kpe", _width("q_pe"), default=None),
            _counted("page_size", _page_size("ckv"), default=None),
            Argument(
                name="causal",
                says=("causal",),
                default=None,
                spell=lambda given: given.get("causal", False),
                read=lambda value: {} if value is None else {"causal": value},
                means="a bool in every call",
            ),
            scale("sm_scale"),
            _dtype("q_data_type", "q_nope", None),
            _dtype("kv_data_type", "ckv", None),
            _lse_mode(),
        ),
        *_of(
            "run",
            same("q_nope", default=None),
            same("q_pe", default=None),
            same("ckv_cache", "ckv", default=None),
            same("kpe_cache", "kpe", default=None),
            idle("out"),
            idle("lse"),
            asks_lse("return_lse"),
            fixed("return_lse_base_on_e", False),
            fixed("o_scale", None),
            fixed("sinks", None),
        ),
    ),
    conventions={"causal_alignment": "bottom_right", "lse_base": "2"},
    limits=Limits(head_dims=((576, 512),), keys_reach_queries=True, least_keys=1),
    swapped={"lse": (0, 1)},
    facts=(
        Fact(says="values are the 512 columns of ckv_cache, beside 64 rotated ones of kpe_cache", source=f"{_MLA}"),
        Fact(says="sm_scale is a number in every call, captured by plan", source=f"{_MLA}.plan"),
        Fact(says="the log-sum-exp is [tokens, heads], of base 2, unless return_lse_base_on_e", source=f"{_MLA}.run"),
    ),
    source=f"{_MLA}: plan and run, the separate parameters of CSR metadata",
)

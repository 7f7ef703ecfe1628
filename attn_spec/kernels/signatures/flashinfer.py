"""Signature of the decoding of FlashInfer that TensorRT-LLM's kernels do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.signatures.arguments import fixed, idle, left_window, tensor, where
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Fact, Given, Signature, SignatureError

_SOURCE = "flashinfer@fb28d72, flashinfer/decode.py, trtllm_batch_decode_with_kv_cache"


def _caches() -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        k, v = value if isinstance(value, tuple | list) else (value[:, 0], value[:, -1])
        return {"k": k, "v": v}

    return Argument(
        name="kv_cache",
        says=("k", "v"),
        spell=lambda given: (given["k"], given["v"]),
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
        idle("bf16q_fp8kv_transform_mode"),
    ),
    conventions={"causal_alignment": "bottom_right"},
    facts=(
        Fact(says="bmm1_scale is 1.0 by default, so that 1 / sqrt(D) is always passed", source=_SOURCE),
        Fact(says="window_left counts inclusive keys on the left, -1 is unbounded", source=_SOURCE),
    ),
    source=_SOURCE,
)

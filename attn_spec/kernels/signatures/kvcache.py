"""Signatures of flash-attention's functions with a cache, which append new keys and values before they attend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.arguments import asks_lse, fixed, idle, lengths, per_head, same, scale, tensor, window
from attn_spec.kernels.signatures.signature import Argument, Fact, Signature, SignatureError

_2 = "flash-attention@0053002, flash_attn/flash_attn_interface.py, flash_attn_with_kvcache"
_3 = "flash-attention@01afd16, hopper/flash_attn_interface.py, flash_attn_with_kvcache"
_HALVES = ("float16", "bfloat16")


def _before() -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not hasattr(value, "shape"):
            raise SignatureError(
                "attn-spec reads cache_seqlens as a tensor, int32 [B], with a number for each sequence"
            )
        return {"seqused_k": value}

    return Argument(
        name="cache_seqlens",
        says=("seqused_k",),
        default=None,
        spell=lambda given: given["seqused_k"],
        read=read,
        means="int32 [B], the number of keys in the cache before the call",
    )


def _rotary(name: str) -> Argument:
    def read(value: Any) -> Mapping[str, Any]:
        if value is not None:
            raise SignatureError(f"attn-spec judges no call that rotates the keys which it appends; leave {name} out")
        return {}

    return Argument(name=name, default=None, spell=lambda given: None, read=read, means="None in every call")


_QKV = (
    tensor("q"),
    tensor("k_cache"),
    tensor("v_cache"),
    same("k", "k_new", default=None),
    same("v", "v_new", default=None),
)
_ROTARY = (_rotary("rotary_cos"), _rotary("rotary_sin"))


def _where(of: str, table: str) -> tuple[Argument, ...]:
    """Return the parameters that say where the keys of each sequence lie, for calls "rows", "indexed" or "paged"."""
    return (
        same("cache_batch_idx", default=None) if of == "indexed" else fixed("cache_batch_idx", None),
        fixed("cache_leftpad", None) if of == "paged" else lengths("cache_leftpad", "leftpad_k"),
        same(table, "block_table", default=None) if of == "paged" else fixed(table, None),
    )


def _facts(source: str, empty: str, where_empty: str) -> tuple[Fact, ...]:
    return (
        Fact(
            says="k and v are written to the cache in place, behind the first cache_seqlens keys",
            source=f"{source}, docstring",
        ),
        Fact(
            says="the diagonal ends in the bottom right corner of all keys, and window_size counts from there",
            source=f"{source}, docstring",
        ),
        Fact(says="the log-sum-exp is [B, Hq, S], natural", source=f"{source}, docstring"),
        Fact(says=f"the log-sum-exp of a query that sees no key is {empty}", source=where_empty),
        Fact(
            says="rotary_cos rotates the keys on their way to the cache; attn-spec leaves it out",
            source=f"{source}, docstring",
        ),
    )


_PAGES_2 = Fact(says="a page has a multiple of 256 keys", source=f"{_2}, docstring")
_NO_LEFTPAD = Fact(
    says="cache_leftpad is left out of calls with pages",
    source="flash-attention@0251105, csrc/flash_attn/flash_api.cpp, mha_fwd_kvcache",
)


def _of_2(presentation: str, of: str, **more: Any) -> Signature:
    return Signature(
        function="flash_attn.flash_attn_with_kvcache",
        framework="torch",
        presentation=presentation,
        dtypes=_HALVES,
        option_dtypes={"alibi_slopes": "float32"},
        conventions={"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "+inf"},
        arguments=(
            *_QKV,
            *_ROTARY,
            _before(),
            *_where(of, "block_table"),
            scale("softmax_scale"),
            same("causal", default=False),
            window("window_size", (-1, -1)),
            same("softcap", default=0.0, means="0 is none"),
            idle("rotary_interleaved", True),
            per_head("alibi_slopes", "alibi_slopes", by_entry=True),
            idle("num_splits", 0),
            asks_lse("return_softmax_lse"),
        ),
        facts=(
            *_facts(_2, "+inf", "flash-attention@0251105, csrc/flash_attn/src/softmax.h, normalize_softmax_lse"),
            *((_PAGES_2, _NO_LEFTPAD) if of == "paged" else ()),
        ),
        source=_2,
        **more,
    )


def _of_3(presentation: str, of: str) -> Signature:
    return Signature(
        function="flash_attn_interface.flash_attn_with_kvcache",
        framework="torch",
        presentation=presentation,
        dtypes=_HALVES,
        conventions={"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "-inf"},
        arguments=(
            *_QKV,
            fixed("qv", None),
            *_ROTARY,
            _before(),
            *_where(of, "page_table"),
            fixed("cu_seqlens_q", None),
            fixed("cu_seqlens_k_new", None),
            fixed("max_seqlen_q", None),
            fixed("rotary_seqlens", None),
            fixed("q_descale", None),
            fixed("k_descale", None),
            fixed("v_descale", None),
            scale("softmax_scale"),
            same("causal", default=False),
            window("window_size", (-1, -1)),
            same("attention_chunk", default=0, means="0 is none"),
            same("softcap", default=0.0, means="0 is none"),
            idle("rotary_interleaved", True),
            idle("scheduler_metadata"),
            idle("num_splits", 0),
            idle("pack_gqa"),
            idle("sm_margin", 0),
            asks_lse("return_softmax_lse"),
        ),
        facts=_facts(_3, "-inf", "flash-attention@0251105, hopper/softmax.h, finalize"),
        source=_3,
    )


FLASH_ATTN_KVCACHE = _of_2("append", "rows")
FLASH_ATTN_KVCACHE_INDEXED = _of_2("append_indexed", "indexed")
FLASH_ATTN_KVCACHE_PAGED = _of_2("append_paged", "paged", limits=Limits(page_sizes=(256,)))
FA3_KVCACHE = _of_3("append", "rows")
FA3_KVCACHE_PAGED = _of_3("append_paged", "paged")

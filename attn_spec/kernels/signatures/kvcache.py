"""Signatures of flash-attention's functions with a cache, which append new keys and values before they attend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attn_spec.kernels.signatures.arguments import (
    asks_lse,
    by_sequence,
    fixed,
    idle,
    lengths,
    per_head,
    same,
    scale,
    tensor,
    window,
)
from attn_spec.kernels.signatures.flash_attention import (
    DESCALED_3,
    OF_EIGHT_BITS,
    OF_POSITIVE_SCALE,
    UNSCALED_2,
    UNSCALED_3,
)
from attn_spec.kernels.signatures.signature import Argument, Fact, Signature, SignatureError
from attn_spec.problem.options import FACTORS

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


_QKV = (
    tensor("q"),
    tensor("k_cache"),
    tensor("v_cache"),
    same("k", "k_new", default=None),
    same("v", "v_new", default=None),
)
_TABLES = (same("rotary_cos", default=None), same("rotary_sin", default=None))
_INTERLEAVED = same(
    "rotary_interleaved", default=True, means="a pair is the columns 2m and 2m + 1, or else m and m + R/2"
)
#: Options beside which calls rotate as attn-spec has it. Others rotate all queries by the position of the first one.
_ALIGNED = ("causal", "window")


def _without_tables(found: dict[str, Any]) -> dict[str, Any]:
    """Return what one call says that has no tables; the queries of another one are unknown after their rotation."""
    if any(found.get(name) is not None for name in ("rotary_cos", "rotary_sin")):
        raise SignatureError(
            "the queries of a call that rotates them are not known after it; pass q rotated, the caches and lengths "
            "after the call, and leave k, v, rotary_cos and rotary_sin out"
        )
    return {name: x for name, x in found.items() if name != "rotary_interleaved"}


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
            says="rotary_cos and rotary_sin rotate the new keys on their way to the cache, and the queries",
            source=f"{source}, docstring",
        ),
        Fact(
            says="a call that is neither causal nor local rotates all queries by the position of the first new key; no "
            "problem is such a call",
            source=f"{source}, docstring",
        ),
    )


_PAGES_2 = Fact(says="a page has a multiple of 256 keys", source=f"{_2}, docstring")
_NO_LEFTPAD = Fact(
    says="cache_leftpad is left out of calls with pages",
    source="flash-attention@0251105, csrc/flash_attn/flash_api.cpp, mha_fwd_kvcache",
)


def _of_2(presentation: str, of: str, **limits: Any) -> Signature:
    return Signature(
        function="flash_attn.flash_attn_with_kvcache",
        framework="torch",
        presentation=presentation,
        dtypes=_HALVES,
        option_dtypes={"alibi_slopes": "float32"},
        conventions={"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "+inf"},
        arguments=(
            *_QKV,
            *_TABLES,
            _before(),
            *_where(of, "block_table"),
            scale("softmax_scale"),
            same("causal", default=False),
            window("window_size", (-1, -1)),
            same("softcap", default=0.0, means="0 is none"),
            _INTERLEAVED,
            per_head("alibi_slopes", "alibi_slopes", by_entry=True),
            idle("num_splits", 0),
            asks_lse("return_softmax_lse"),
        ),
        facts=(
            *_facts(_2, "+inf", "flash-attention@0251105, csrc/flash_attn/src/softmax.h, normalize_softmax_lse"),
            UNSCALED_2,
            *((_PAGES_2, _NO_LEFTPAD) if of == "paged" else ()),
        ),
        source=_2,
        opened=_without_tables,
        limits=replace(OF_POSITIVE_SCALE, beside={"rotary": _ALIGNED}, **limits),
    )


def _of_3(presentation: str, of: str, *, eight_bits: bool = False) -> Signature:
    own: dict[str, Any] = OF_EIGHT_BITS if eight_bits else {"dtypes": _HALVES}
    return Signature(
        function="flash_attn_interface.flash_attn_with_kvcache",
        framework="torch",
        presentation=presentation,
        conventions={"causal_alignment": "bottom_right", "empty_row": "zero", "empty_lse": "-inf"},
        arguments=(
            *_QKV,
            fixed("qv", None),
            *((fixed(name, None) for name in ("rotary_cos", "rotary_sin")) if eight_bits else _TABLES),
            _before(),
            *_where(of, "page_table"),
            fixed("cu_seqlens_q", None),
            fixed("cu_seqlens_k_new", None),
            fixed("max_seqlen_q", None),
            fixed("rotary_seqlens", None),
            *(by_sequence(name) if eight_bits else fixed(name, None) for name in FACTORS),
            scale("softmax_scale"),
            same("causal", default=False),
            window("window_size", (-1, -1)),
            same("attention_chunk", default=0, means="0 is none"),
            same("softcap", default=0.0, means="0 is none"),
            idle("rotary_interleaved", True) if eight_bits else _INTERLEAVED,
            idle("scheduler_metadata"),
            idle("num_splits", 0),
            idle("pack_gqa"),
            idle("sm_margin", 0),
            asks_lse("return_softmax_lse"),
        ),
        facts=(
            *_facts(_3, "-inf", "flash-attention@0251105, hopper/softmax.h, finalize"),
            UNSCALED_3,
            *((DESCALED_3,) if eight_bits else ()),
        ),
        source=_3,
        opened=_without_tables,
        limits=replace(OF_POSITIVE_SCALE, beside={"rotary": _ALIGNED}),
        **own,
    )


FLASH_ATTN_KVCACHE = _of_2("append", "rows")
FLASH_ATTN_KVCACHE_INDEXED = _of_2("append_indexed", "indexed")
FLASH_ATTN_KVCACHE_PAGED = _of_2("append_paged", "paged", page_sizes=(256,))
FA3_KVCACHE = _of_3("append", "rows")
FA3_KVCACHE_PAGED = _of_3("append_paged", "paged")
FA3_KVCACHE_FP8 = _of_3("append", "rows", eight_bits=True)
FA3_KVCACHE_PAGED_FP8 = _of_3("append_paged", "paged", eight_bits=True)

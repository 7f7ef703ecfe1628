"""The table of presentations: the ways in which a call hands over a problem, by the name that a kernel declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations.appending.append import Append, CacheRows
from attn_spec.kernels.presentations.appending.extend import Extend
from attn_spec.kernels.presentations.layout import Layout
from attn_spec.kernels.presentations.packing.latent_calls import LatentCalls
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.packing.pages import CountedPages, ListedPages, ListedSlots, Pages
from attn_spec.kernels.presentations.packing.places import Bounds, EqualEach, OneEach, Places, Rectangle, Segments
from attn_spec.kernels.presentations.placement import DRAWN_ONCE
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.kernels.presentations.states import Lists, Pairs, States


def _presentation(says: str, *axes: str) -> Presentation:
    return Presentation(says=says, layout=Layout(axes))


def _packed(says: str, queries: Places, keys: Places, **further: Any) -> Packed:
    return Packed(says=says, layout=Layout(queries.axes), queries=queries, keys=keys, **further)


def _appending(says: str, keys: Places) -> Append:
    queries = EqualEach(side="q")
    limits = Limits(keys_reach_queries=True)
    return Append(
        says=says, layout=Layout(queries.axes), queries=queries, keys=keys, limits=limits, asks_for=frozenset({"cross"})
    )


#: Queries of sequences one behind the other.
_QUERIES = Bounds(side="q")
#: Bounds of queries under the name that lists of pages have beside them.
_LISTED_QUERIES = Bounds(side="q", bounds="qo_indptr", states_longest=False)
#: Limits of a call with one query of each sequence, and the ability that it asks for.
_DECODING: dict[str, Any] = {"limits": Limits(query_lengths=(1,)), "asks_for": frozenset({"cross"})}

#: Options and abilities of every call of latent attention: a scale, which is not 1/sqrt(D), and values that are
#: narrower than keys.
_OF_LATENT = ("scale", "dv")


def _latent(says: str, queries: Places, keys: Places, **further: Any) -> LatentCalls:
    limits = Limits(kv_heads=(1,), always=("latent", *_OF_LATENT), query_lengths=further.pop("query_lengths", None))
    asks_for = frozenset({*_OF_LATENT, *further.pop("asks_for", ())})
    layout = Layout(queries.axes)
    return LatentCalls(
        says=says, layout=layout, queries=queries, keys=keys, limits=limits, asks_for=asks_for, **further
    )


def _states(says: str, of: type[States] = States, *, largest: Mapping[str, int] | None = None, **axes: Any) -> States:
    """Return the row of a merge of states, which has one query for each token and head."""
    return of(
        says=says,
        layout=Layout(("B", "H", "D")),
        limits=Limits(query_lengths=(1,), always=("states", "bias"), largest=largest or {}),
        asks_for=frozenset({"cross"}),
        option_dtypes={"bias": "float32"},
        **axes,
    )


#: Every presentation by the name a kernel declares.
PRESENTATIONS: dict[str, Presentation] = {
    "BHSD": _presentation("batch, heads, length, dimension", "B", "H", "S", "D"),
    "BSHD": _presentation("batch, length, heads, dimension", "B", "S", "H", "D"),
    "BS(HD)": _presentation("batch, length, the dimensions of all heads side by side", "B", "S", "HD"),
    "HSD": _presentation("one batch entry at a time: heads, length, dimension", "H", "S", "D"),
    "SD": _presentation("one head at a time: length, dimension", "S", "D"),
    "BSHD_lengths": _packed(
        "BSHD, with the lengths seqused_q and seqused_k of each sequence, int32 [B], as in jax.nn and flash-attention",
        Rectangle(side="q"),
        Rectangle(side="k"),
    ),
    "THD": _packed(
        "sequences one behind the other: tokens of all, heads, dimension; cu_seqlens_q and cu_seqlens_k say where",
        _QUERIES,
        Bounds(side="k"),
    ),
    "THD_gaps": _packed(
        "THD with gaps between sequences: cu_seqlens_q_padded and cu_seqlens_k_padded say where each begins, as in "
        "TransformerEngine and cuDNN",
        Bounds(side="q", gaps=True),
        Bounds(side="k", gaps=True),
    ),
    "THD_qkv": _packed(
        "THD with one tensor of queries, keys and values: tokens, 3, heads, dimension; cu_seqlens and max_seqlen say "
        "where, as in flash-attention's varlen_qkvpacked",
        Bounds(side="q", bounds="cu_seqlens", longest="max_seqlen"),
        Bounds(side="k", bounds="cu_seqlens", longest="max_seqlen"),
        joined="qkv",
        joined_at=1,
        limits=Limits(equal_lengths=True),
    ),
    "THD_kv": _packed(
        "THD with one tensor of keys and values: tokens, 2, heads, dimension; as in flash-attention's varlen_kvpacked",
        _QUERIES,
        Bounds(side="k"),
        joined="kv",
        joined_at=1,
    ),
    "segments": _packed(
        "sequences one behind the other in one row: length, heads, dimension; q_segment_ids and kv_segment_ids say "
        "whose each query and key is, 0 padding, as in JAX's kernels for TPU",
        Segments(side="q"),
        Segments(side="k"),
    ),
    "decode": _packed(
        "one query of each sequence [B, Hq, D]; keys in BSHD with seqused_k, as in flash-attention with a cache",
        OneEach(side="q"),
        Rectangle(side="k"),
        **_DECODING,
    ),
    "decode_paged": _packed(
        "one query of each sequence [B, Hq, D]; caches, block_table and seqused_k as in paged, for instance in vLLM",
        OneEach(side="q"),
        Pages(states_longest=False),
        **_DECODING,
    ),
    "paged": _packed(
        "queries as in THD; caches of pages, page size, heads, dimension; block_table lists pages, as in vLLM and "
        "flash-attention",
        _QUERIES,
        Pages(),
    ),
    "paged_hnd": _packed(
        "paged, with heads before places: caches of pages, heads, page size, dimension, as in FlashInfer's HND",
        _QUERIES,
        Pages(axes=("pages", "H", "size", "D")),
    ),
    "paged_joined": _packed(
        "paged, with one cache of keys and values: pages, 2, page size, heads, dimension; as in FlashInfer",
        _QUERIES,
        Pages(),
        joined="kv",
        joined_at=1,
    ),
    "paged_csr": _packed(
        "queries and caches as in paged; kv_indptr, kv_indices and kv_last_page_len list pages, qo_indptr bounds "
        "queries, as in FlashInfer",
        _LISTED_QUERIES,
        ListedPages(),
    ),
    "token_pool": _packed(
        "queries as in paged_csr; keys in a pool of slots, heads, dimension; kv_indptr and kv_indices list them, as in "
        "SGLang",
        _LISTED_QUERIES,
        ListedPages(axes=("slots", "H", "D")),
    ),
    "decode_csr": _packed(
        "one query of each sequence [B, Hq, D]; caches and lists of pages as in paged_csr, as in FlashInfer's decode",
        OneEach(side="q"),
        ListedPages(),
        **_DECODING,
    ),
    "decode_token_pool": _packed(
        "one query of each sequence [B, Hq, D]; keys as in token_pool, as in SGLang's decode",
        OneEach(side="q"),
        ListedPages(axes=("slots", "H", "D")),
        **_DECODING,
    ),
    "extend": Extend(
        says="queries and new keys as in THD, both bounded by qo_indptr; the keys before them in a pool as in "
        "token_pool, as in SGLang's extend",
        layout=Layout(_LISTED_QUERIES.axes),
        queries=_LISTED_QUERIES,
        keys=ListedPages(axes=("slots", "H", "D")),
        limits=Limits(keys_reach_queries=True),
        asks_for=frozenset({"cross"}),
    ),
    "mla_joined": _latent(
        "THD for latent attention, without values: keys of one head are values too; head_dim_v is the width of a value",
        _QUERIES,
        Bounds(side="k"),
    ),
    "mla_paged": _latent(
        "paged for latent attention, without values: one cache of pages, page size, 1, dimension; head_dim_v is the "
        "width of a value, as in FlashMLA",
        _QUERIES,
        Pages(),
    ),
    "mla_decode": _latent(
        "one query of each sequence [B, Hq, D], the cache of mla_paged, block_table and seqused_k, as in vLLM",
        OneEach(side="q"),
        Pages(states_longest=False),
        query_lengths=(1,),
        asks_for=("cross",),
    ),
    "mla_paged_apart": _latent(
        "mla_paged with a cache ckv of values and one of the rotated parts of keys, kpe: pages, page size, dimension",
        _QUERIES,
        Pages(),
        two_caches=True,
    ),
    "mla_csr": _latent(
        "queries in q_nope and q_pe, keys in ckv and kpe as in mla_paged_apart; kv_indptr, kv_indices and kv_len_arr "
        "list pages, qo_indptr bounds queries, as in FlashInfer",
        _LISTED_QUERIES,
        CountedPages(),
        two_caches=True,
        queries_apart=True,
    ),
    "mla_csr_last_page": _latent(
        "mla_csr with kv_last_page_len in place of kv_len_arr, as prefills of FlashInfer-Bench's mla_paged",
        _LISTED_QUERIES,
        ListedPages(),
        two_caches=True,
        queries_apart=True,
    ),
    "mla_decode_csr": _latent(
        "one query of each sequence, q_nope and q_pe [B, Hq, ..]; caches and lists of pages as in mla_csr_last_page",
        OneEach(side="q"),
        ListedPages(),
        two_caches=True,
        queries_apart=True,
        query_lengths=(1,),
        asks_for=("cross",),
    ),
    "mla_sparse": _latent(
        "one query of each sequence, q_nope and q_pe [B, Hq, ..]; caches as in mla_paged_apart, of whose slots "
        "sparse_indices lists those of each query's keys and -1 behind the last, as FlashInfer-Bench's dsa_paged",
        OneEach(side="q"),
        ListedSlots(),
        two_caches=True,
        queries_apart=True,
        query_lengths=(1,),
        asks_for=("cross",),
    ),
    "states": _states(
        "a merge of attention states: outputs v [tokens, states, heads, dimension] and log-sum-exps s [tokens, states, "
        "heads], as FlashInfer's merge_states"
    ),
    "states_first": _states(
        "a merge of splits: outputs v [splits, tokens, heads, dimension] and log-sum-exps s [splits, tokens, heads]",
        outputs=("N", "T", "H", "D"),
        lses=("N", "T", "H"),
    ),
    "states_list": _states(
        "a merge of as many states as each token has: outputs v [states, heads, dimension] and log-sum-exps s [states, "
        "heads] of all tokens; indptr says which are whose, as FlashInfer's VariableLengthMergeStates",
        Lists,
    ),
    "states_pair": _states(
        "a merge of two states: v_a [tokens, heads, dimension], s_a [tokens, heads], v_b, s_b; as FlashInfer's "
        "merge_state",
        Pairs,
        largest={"K": 2},
    ),
    "states_pair_ht": _states(
        "states_pair with log-sum-exps [heads, tokens], as vLLM's merge_attn_states",
        Pairs,
        largest={"K": 2},
        lses=("H", "T"),
    ),
    "append": _appending(
        "BSHD; the call appends new keys and values, in BSHD, to caches of batch, most keys, heads, dimension, behind "
        "their seqused_k first ones, as flash-attention's with_kvcache does",
        CacheRows(),
    ),
    "append_indexed": _appending(
        "append, with cache_batch_idx: the row of each sequence in a cache of more rows than sequences",
        CacheRows(axes=("rows", "S", "H", "D"), indexed=True),
    ),
    "append_paged": _appending(
        "append to caches of pages, page size, heads, dimension; block_table lists pages, as in flash-attention",
        Pages(states_longest=False, appended=True),
    ),
}


def presented(name: str, lse_base: str = "e") -> Presentation:
    """Return the presentation of a name whose log-sum-exps of states, if it has any, are of a base: "e" or "2"."""
    return PRESENTATIONS[name].placed(replace(DRAWN_ONCE, lse_base=lse_base))

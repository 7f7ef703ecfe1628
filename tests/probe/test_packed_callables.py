"""Packed and paged callables under names of other libraries: the probe and the first look say what they take."""

import numpy as np
import pytest

from attn_spec.first_look.first_look import explain_failure
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.probe.arithmetic import arithmetic
from attn_spec.probe.contracts import contract
from attn_spec.probe.presentations import presentation


def one(q, k, v):
    """Return the attention of one sequence, q [n, H, D]."""
    s = np.einsum("nhd,ehd->hne", q, k) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hne,ehd->nhd", p / p.sum(-1, keepdims=True), v)


def of_torch(q, k, v, *, cu_seq_q, cu_seq_k, max_q, max_k):
    out = np.zeros_like(q)
    for a, b, c, d in zip(cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], cu_seq_k[1:], strict=True):
        assert b - a <= max_q and d - c <= max_k  # noqa: PT018
        out[a:b] = one(q[a:b], k[c:d], v[c:d])
    return out


def of_pages(q, k_cache, v_cache, *, cu_seqlens_q, page_table, cache_seqlens):
    out = np.zeros_like(q)
    for b, e in enumerate(cache_seqlens):
        k, v = (x[page_table[b]].reshape(-1, *x.shape[2:])[:e] for x in (k_cache, v_cache))
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        out[rows] = one(q[rows], k, v)
    return out


def changes_its_table(q, k_cache, v_cache, *, cu_seqlens_q, page_table, cache_seqlens):
    where = {"cu_seqlens_q": cu_seqlens_q, "page_table": page_table, "cache_seqlens": cache_seqlens}
    out = of_pages(q, k_cache, v_cache, **where)
    page_table[:] = 0
    return out


def with_cache(q, k_cache, v_cache, k=None, v=None, *, cache_seqlens=None):
    """Return the attention of all keys in a cache, as flash-attention's function of this name, and append new ones."""
    if k is None:
        return np.stack([one(*x) for x in zip(q, k_cache, v_cache, strict=True)])
    out = np.zeros_like(q)
    for b, e in enumerate(cache_seqlens):
        behind = slice(e, e + q.shape[1])
        k_cache[b, behind], v_cache[b, behind] = k[b], v[b]
        out[b] = one(q[b], k_cache[b, : behind.stop], v_cache[b, : behind.stop])
    return out


def with_pages(q, key_cache, value_cache, key, value, *, page_table, cache_seqlens):
    out = np.zeros_like(q)
    size = key_cache.shape[1]
    for b, e in enumerate(cache_seqlens):
        j = np.arange(e + q.shape[1])
        places = page_table[b, j // size], j % size
        for cache, new in ((key_cache, key), (value_cache, value)):
            cache[places[0][e:], places[1][e:]] = new[b]
        out[b] = one(q[b], key_cache[places], value_cache[places])
    return out


def keys_of(cache, block_table, lengths):
    """Yield the keys [e, H, D] of each sequence in a cache of pages."""
    for pages, e in zip(block_table, lengths, strict=True):
        yield cache[pages].reshape(-1, *cache.shape[2:])[:e]


def of_one_query(q, k_cache, v_cache, block_table, cache_seqlens):
    both = (keys_of(x, block_table, cache_seqlens) for x in (k_cache, v_cache))
    return np.concatenate([one(row[None], k, v) for row, k, v in zip(q, *both, strict=True)])


def of_latent_keys(q, kv_cache, *, block_table, cache_seqlens, head_dim_v, softmax_scale, first=0):
    out = np.zeros((*q.shape[:2], head_dim_v), dtype=q.dtype)
    for b, keys in enumerate(keys_of(kv_cache, block_table, cache_seqlens)):
        k = np.repeat(keys, q.shape[1], axis=1)
        scaled = q[b][None] * np.float32(softmax_scale * q.shape[-1] ** 0.5)
        out[b] = one(scaled, k, k[..., first : first + head_dim_v])[0]
    return out


def of_latent_keys_at_the_end(q, kv_cache, *, block_table, cache_seqlens, head_dim_v, softmax_scale):
    first = q.shape[-1] - head_dim_v
    where = {"block_table": block_table, "cache_seqlens": cache_seqlens, "head_dim_v": head_dim_v}
    return of_latent_keys(q, kv_cache, **where, softmax_scale=softmax_scale, first=first)


def of_states(out_a, lse_a, out_b, lse_b):
    total = np.logaddexp(lse_a, lse_b)
    p_a, p_b = np.exp(lse_a - total), np.exp(lse_b - total)
    return p_a[..., None] * out_a + p_b[..., None] * out_b, total


def mean_of_states(v_a, s_a, v_b, s_b):
    return (v_a + v_b) / 2, np.logaddexp(s_a, s_b)


def of_nobody(q, k, v, slot_mapping, context_seq_lens):
    raise RuntimeError("slots are missing")


@pytest.mark.parametrize(
    ("function", "name", "says"),
    [
        (of_torch, "THD", "it takes cu_seq_q, max_q, cu_seq_k, max_k, and it alone explains the answer"),
        (of_pages, "paged", "it takes cu_seqlens_q, page_table, cache_seqlens, and it alone explains the answer"),
        (with_cache, "append", "it takes cache_seqlens, and it alone explains the answer"),
        (with_pages, "append_paged", "it takes page_table, cache_seqlens, and it alone explains the answer"),
        (of_one_query, "decode_paged", "it takes block_table, cache_seqlens, and it alone explains the answer"),
        (of_latent_keys, "mla_decode", "it takes block_table, cache_seqlens, head_dim_v, and it alone explains the"),
        (of_latent_keys_at_the_end, None, "; block_table, cache_seqlens are those of mla_decode: its answer is wrong"),
        (of_states, "states_pair", "it alone explains the answer"),
        (mean_of_states, None, "; v_a, s_a, v_b, s_b are those of states_pair: its answer is wrong"),
        (
            of_nobody,
            None,
            "; slot_mapping, context_seq_lens look like those of a packed call that no presentation says",
        ),
    ],
)
def test_a_probe_says_which_parameters_it_took_for_what(function, name, says):
    found = presentation(from_callable(function), "float32")

    assert found.value == name
    assert says in found.evidence


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (of_torch, "presentation='THD'"),
        (of_pages, "presentation='paged'"),
        (with_cache, "presentation='append'"),
        (with_pages, "presentation='append_paged'"),
        (of_latent_keys_at_the_end, "are those of the presentation mla_decode, in which a plain call is not right"),
        (of_states, "presentation='states_pair'"),
        (mean_of_states, "v_a, s_a, v_b, s_b are those of the presentation states_pair, in which a plain call is not"),
        (
            of_nobody,
            "its parameters slot_mapping, context_seq_lens look like those of a packed call that no presentation",
        ),
    ],
)
def test_a_first_look_names_the_presentation_or_says_that_there_is_none(function, says):
    with pytest.raises(MisfitError, match=says):
        explain_failure([Subject(from_callable(function), "float32")], {})


def test_a_table_under_another_name_must_stay_as_it_is():
    found = presentation(from_callable(changes_its_table), "float32")

    assert found.value is None
    assert "the kernel changed its input block_table in place" in found.evidence


@pytest.mark.parametrize(("function", "name"), [(of_states, "states_pair"), (of_latent_keys, "mla_decode")])
def test_a_probe_finds_a_contract_of_calls_that_pass_no_problem_of_its_experiments(function, name):
    subject = Subject(from_callable(function, presentation=name), "float32")

    found = arithmetic(subject)
    assert [(one.name, one.value) for one in found] == [("arithmetic", None)]
    assert "the experiments ask for other problems: " in found[0].evidence
    assert contract([subject], {"float32": found}).value == "fp32"

"""Packed and paged callables under names of other libraries: the probe and the first look say what they take."""

import numpy as np
import pytest

from attn_spec.first_look.first_look import explain_failure
from attn_spec.first_look.misfit import MisfitError
from attn_spec.kernels.declaration import from_callable
from attn_spec.kernels.subject import Subject
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


def of_nobody(q, k, v, slot_mapping, context_seq_lens):
    raise RuntimeError("slots are missing")


@pytest.mark.parametrize(
    ("function", "name", "says"),
    [
        (of_torch, "THD", "it takes cu_seq_q, max_q, cu_seq_k, max_k, and it alone explains the answer"),
        (of_pages, "paged", "it takes cu_seqlens_q, page_table, cache_seqlens, and it alone explains the answer"),
        (with_cache, "append", "it takes cache_seqlens, and it alone explains the answer"),
        (with_pages, "append_paged", "it takes page_table, cache_seqlens, and it alone explains the answer"),
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

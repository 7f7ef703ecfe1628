"""Chunks: a query attends to the keys of one chunk, that of the key which it is aligned with."""

import math
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import Trait, hides_keys, moves_diagonal, positional
from attn_spec.search.assertions import assert_rows_within_bound, assert_within_bound, selected
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.hidden_keys import assert_hidden_keys_have_no_influence
from attn_spec.search.property import attention_property

#: Chunks of one problem that are compared with attention of their own.
CHUNKS = 4
LLAMA = "Llama 4, attention_chunk_size; FlashAttention-3, attention_chunk: floor(j / c) = floor(a / c)"


def chunked(subject: Subject, *without: str | Trait, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with chunks, every second one with queries and keys of different lengths if there may be any."""
    alone = ("attention_chunk",)
    kinds = (alone, (*alone, "cross")) if subject.supports("cross") else (alone,)
    return st.one_of([problems(subject, needs=needs, without=("empty", *without), **drawn) for needs in kinds])


def of_several_chunks(recipe: Recipe) -> bool:
    """Return whether the keys are more than one chunk, so that some are outside the chunk of a query."""
    return recipe.attention_chunk is not None and recipe.key_length > recipe.attention_chunk


def first_aligned(problem: Problem | Recipe) -> int:
    """Return the key that the first query is aligned with: below 0 if it stands before the first key."""
    last = problem.causal_alignment == "bottom_right"
    return problem.key_length - problem.query_length if last else 0


@attention_property(
    source=LLAMA,
    hunts="a chunk that is one key too long, values loaded outside the chunk, keys of the chunk before",
    needs=("attention_chunk",),
    problems=partial(chunked, where=of_several_chunks),
)
def test_keys_outside_the_chunk_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values outside a query's chunk does not change one bit of its result."""
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=LLAMA,
    hunts="chunks counted by the query's own index, a quotient rounded towards 0, chunks lost beside another mask",
    needs=("attention_chunk",),
    problems=lambda subject: chunked(subject, moves_diagonal, where=of_several_chunks),
    each_call=True,
)
def test_a_chunk_is_the_mask_of_its_keys(subject: Subject, problem: Problem) -> None:
    """Attention in chunks is attention under the mask of the keys of the same chunk as the query's aligned key.

    The mask is written out here key by key, on purpose not by attn_spec.problem.masks.
    """
    c, first = problem.attention_chunk, first_aligned(problem)
    assert c is not None
    rows, keys = range(problem.query_length), range(problem.key_length)
    same = np.array([[math.floor(j / c) == math.floor((i + first) / c) for j in keys] for i in rows])
    same = same.reshape(1, 1, len(rows), len(keys))
    mask = same if problem.mask is None else same & problem.mask
    assert_within_bound(subject, problem.replace(attention_chunk=None, mask=mask), subject(problem))


@attention_property(
    source=f"{LLAMA}; a row's result is a function of the keys that it sees",
    hunts="a window of the last c keys in place of a chunk, chunks rounded to a tile, a loop that starts too late",
    needs=("attention_chunk",),
    problems=lambda subject: chunked(subject, positional, hides_keys, where=of_several_chunks),
)
def test_each_chunk_is_attention_of_its_own(subject: Subject, problem: Problem) -> None:
    """The queries of a chunk get what they get alone with its keys; queries of a chunk without keys see none.

    Four chunks of each problem are examined.
    """
    c, first, answer = problem.attention_chunk, first_aligned(problem), subject(problem)
    assert c is not None
    chunks = np.floor(np.arange(first, first + problem.query_length) / c).astype(int)
    for chunk in randomness(problem).permutation(np.unique(chunks))[:CHUNKS]:
        rows = np.flatnonzero(chunks == chunk)
        keys = range(max(chunk * c, 0), min(max((chunk + 1) * c, 0), problem.key_length))
        alone = problem.replace(attention_chunk=None).take("Q", rows).take("K", keys)
        assert_rows_within_bound(subject, alone, selected(answer, np.s_[:, :, rows[0] : rows[-1] + 1]))


@attention_property(
    source=f"{LLAMA}: all keys from 0 to c - 1 are one chunk",
    hunts="a chunk that is cut at a tile, a page or a power of 2, an off-by-one in the number of chunks",
    needs=("attention_chunk",),
    problems=lambda subject: chunked(subject, moves_diagonal, where=lambda recipe: first_aligned(recipe) >= 0),
    each_call=True,
)
def test_a_chunk_of_all_keys_hides_none(subject: Subject, problem: Problem) -> None:
    """With a chunk that ends at the last key or aligned key, or later, the kernel solves the problem without chunks."""
    assert problem.attention_chunk is not None
    least = max(problem.key_length, first_aligned(problem) + problem.query_length)
    one = problem.replace(attention_chunk=least + problem.attention_chunk - 1)
    assert_within_bound(subject, one.replace(attention_chunk=None), subject(one))

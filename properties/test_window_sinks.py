"""Sinks of a window: the first keys, which its left edge does not mask."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import Trait, moves_diagonal
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.hidden_keys import assert_hidden_keys_have_no_influence
from attn_spec.search.property import attention_property

XIAO = "Xiao et al., Efficient Streaming Language Models with Attention Sinks (arXiv 2309.17453), section 3.2"
NEEDS = ("window", "window_sinks")


def with_sinks(subject: Subject, *without: Trait) -> SearchStrategy[Problem]:
    """Draw problems with a narrow window, sinks, and keys between the two for some query; every second one is causal,
    if the kernel takes it. Options of the traits in ``without`` are left out.
    """
    beside = [(), ("causal",)] if subject.supports("causal") else [()]
    return st.one_of([narrow(subject, has_keys_between, *more, without=without) for more in beside])


def of_whole_sequences(subject: Subject) -> SearchStrategy[Problem]:
    """Draw such problems whose sequences have all queries and keys, so that they share one diagonal and first key."""
    return with_sinks(subject, moves_diagonal)


def beside_chunks(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a narrow window, sinks, and keys outside the chunk of some query, without lengths."""

    def where(recipe: Recipe) -> bool:
        return of_several_chunks(recipe) and has_keys_between(recipe)

    return narrow(subject, where, "attention_chunk", without=(moves_diagonal,))


def narrow(
    subject: Subject, where: Callable[[Recipe], bool], *needs: str, without: Sequence[Trait] = ()
) -> SearchStrategy[Problem]:
    """Draw problems with a narrow window that has sinks, and the options that are needed beside it."""
    windows = st.tuples(st.sampled_from((0, 1, 2, 5, 16)), st.sampled_from((None, 0, 1, 5)))
    drawn: dict[str, Any] = {"window": windows, "window_sinks": st.sampled_from((1, 2, 4, 5, 16, 17))}
    return problems(subject, needs=(*NEEDS, *needs), without=("empty", *without), where=where, **drawn)


def of_several_chunks(recipe: Recipe) -> bool:
    """Return whether the keys are more than one chunk."""
    return recipe.attention_chunk is not None and recipe.key_length > recipe.attention_chunk


def has_keys_between(recipe: Recipe) -> bool:
    """Return whether there are more keys than sinks and keys on the left of a query in its window."""
    left = recipe.window[0] if recipe.window else None
    return left is not None and recipe.key_length > left + 1 + (recipe.window_sinks or 0)


@attention_property(
    source=XIAO,
    hunts="keys between the sinks and the window, one sink too many, values loaded though they are masked",
    needs=NEEDS,
    problems=with_sinks,
)
def test_keys_between_sinks_and_window_change_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting keys and values that are neither sinks nor in a query's window changes no bit of its result."""
    assert_hidden_keys_have_no_influence(subject, problem)


@attention_property(
    source=f"{XIAO}: d <= right, and d >= -left or j < sinks, for the distance d of key j from the diagonal",
    hunts="sinks that are lost with a skipped tile, or pass the diagonal or the right edge; sinks of every tile",
    needs=NEEDS,
    problems=of_whole_sequences,
    each_call=True,
)
def test_sinks_are_seen_past_the_left_edge_alone(subject: Subject, problem: Problem) -> None:
    """Attention with sinks is attention under the mask of the window, whose left edge leaves the first keys visible.

    The mask is written out here key by key, on purpose not by attn_spec.problem.masks.
    """
    (left, right), sinks = problem.window or (None, None), problem.window_sinks or 0
    Sq, Sk = problem.query_length, problem.key_length
    first = Sk - Sq if problem.causal_alignment == "bottom_right" else 0

    def seen(i: int, j: int) -> bool:
        distance = j - i - first
        near = left is None or distance >= -left or j < sinks
        return near and (right is None or distance <= right)

    mask = np.array([[seen(i, j) for j in range(Sk)] for i in range(Sq)]).reshape(1, 1, Sq, Sk)
    mask = mask if problem.mask is None else mask & problem.mask
    assert_within_bound(subject, problem.replace(window=None, window_sinks=None, mask=mask), subject(problem))


@attention_property(
    source=f"{XIAO}: a key is masked by the left edge only if it is no sink",
    hunts="sinks beyond the first tile, a fixed number of them, a window that shrinks by the sinks it has",
    needs=NEEDS,
    problems=with_sinks,
    each_call=True,
)
def test_as_many_sinks_as_keys_take_the_left_edge_away(subject: Subject, problem: Problem) -> None:
    """If every key is a sink, or more sinks than keys are asked for, the window has no left edge."""
    assert problem.window is not None
    assert problem.window_sinks is not None
    every = problem.replace(window_sinks=problem.key_length + problem.window_sinks - 1)
    open_left = every.replace(window=(None, problem.window[1]), window_sinks=None)
    assert_within_bound(subject, open_left, subject(every))


@attention_property(
    source="the definition: each mask hides keys by itself, and a window's sinks are an exception of the window alone",
    hunts="sinks that are tested after the chunk, and so are visible from every chunk",
    needs=(*NEEDS, "attention_chunk"),
    problems=beside_chunks,
    each_call=True,
)
def test_the_edge_of_a_chunk_masks_sinks(subject: Subject, problem: Problem) -> None:
    """A query sees no sink outside the chunk of the key that it is aligned with, as if it were no sink."""
    assert problem.attention_chunk is not None
    keys = np.arange(problem.key_length)
    inside = keys // problem.attention_chunk == problem.aligned_keys[:, None] // problem.attention_chunk
    mask = inside if problem.mask is None else inside & problem.mask
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    assert_within_bound(subject, problem.replace(attention_chunk=None, mask=mask), subject(problem))

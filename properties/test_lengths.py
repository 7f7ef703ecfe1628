"""Lengths: each sequence of a batch is solved as if it were alone, whatever lies behind it."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.presentations.placement import PAGE_SIZES
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import positional
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    assert_rows_within_bound,
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    differentiable,
    selected,
)
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import TAME, named, problems
from attn_spec.search.hidden_keys import (
    assert_unused_places_have_no_influence,
    assert_unused_places_reach_no_gradient,
)
from attn_spec.search.property import Refutation, attention_property

DEFINITION = "the definition of lengths: a batch entry has its first queries and keys, and no others"
CORNER = "Dao-AILab/flash-attention, README: the causal mask is aligned to the corner of each sequence"
UNUSED = "problem.Conventions.unused; vllm-project/vllm#936, Dao-AILab/flash-attention#1745"
ROWS = "problem.Conventions.unused_rows; NVIDIA/TransformerEngine#3205"

#: Largest number of short sequences that come beside those of a problem.
SHORT = 2
#: Numbers of sequences, mostly several.
BATCH = st.sampled_from((2, 3, 1, 4))
#: Lengths of keys, most of which leave some keys out, and lengths of queries, most of which leave some in.
KEYS = named(("ragged", "one_less", "last_shorter", "edges", "but_one", "some_empty", "one_each", "full"), axes="B111")
QUERIES = named(("full", "ragged", "last_shorter", "one_each", "but_one", "some_empty", "edges"), axes="B111")
#: Padding on the left, most of which leaves some keys out.
PADS = named(("ragged", "one", "edges", "to_the_end", "zero"), axes="B111")


def of_sequences(subject: Subject, *needs: str, draw: Any = problems, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with lengths of keys, half of them with lengths of queries too if the kernel takes these.

    There are two keys or more.
    """
    drawn = {"without": ("empty", "leftpad_k"), "batch": BATCH, "seqused_k": KEYS, "where": has_several_keys, **drawn}
    ways: list[dict[str, Any]] = [{"needs": ("seqused_k", *needs)}]
    if subject.supports("seqused_q"):
        ways.append({"needs": ("seqused_k", "seqused_q", *needs), "seqused_q": QUERIES})
    return st.one_of([draw(subject, **drawn, **way) for way in ways])


def has_several_keys(recipe: Recipe) -> bool:
    """Return whether a length can leave out one key and leave in another."""
    return recipe.key_length > 1


def of_queries(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with lengths of queries."""
    return problems(subject, needs=("seqused_q",), without=("empty",), batch=BATCH, seqused_q=QUERIES)


def with_corners(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems with lengths, half of them with as many queries as keys, without other positions."""
    return of_sequences(subject, "causal", without=("empty", positional))


def padded_on_the_left(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with padding on the left, half of them with lengths of keys too, without rotary positions.

    Angles are larger where the padding counts, so that the bound of a sequence alone would not be that of the batch.
    """
    drawn: dict[str, Any] = {"without": ("empty", "rotary"), "batch": BATCH, "where": has_several_keys}
    ways: list[dict[str, Any]] = [{"needs": ("leftpad_k",), "leftpad_k": PADS}]
    if subject.supports("seqused_k"):
        ways.append({"needs": ("leftpad_k", "seqused_k"), "leftpad_k": PADS, "seqused_k": KEYS})
    return st.one_of([problems(subject, **drawn, **way) for way in ways])


def with_padded_corners(subject: Subject) -> SearchStrategy[Problem]:
    """Draw causal problems with padding on the left, without other positions."""
    pads = named(("ragged", "one"), axes="B111")
    drawn: dict[str, Any] = {"without": ("empty", positional), "batch": BATCH, "where": has_several_keys}
    return problems(subject, needs=("leftpad_k", "causal"), leftpad_k=pads, **drawn)


def with_windows(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with lengths and a window, without other positions."""
    sides = st.sampled_from((0, 1, 2, 5, 16, None))
    windows = st.tuples(sides, sides).filter(lambda window: window != (None, None))
    return of_sequences(subject, "window", without=("empty", positional), window=windows)


def without_keys(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems in which some sequences have no key, or all."""
    names = named(("some_empty", "none"), axes="B111")
    return of_sequences(subject, seqused_k=names)


def distances(problem: Problem) -> np.ndarray:
    """Return j - a(b, i) for the key a that query i of entry b is aligned with, [B, 1, Sq, Sk], written out by hand."""
    found = np.zeros((problem.batch, 1, problem.query_length, problem.key_length))
    for b in range(problem.batch):
        n = problem.query_length if problem.seqused_q is None else int(problem.seqused_q[b, 0, 0, 0])
        e = problem.key_length if problem.seqused_k is None else int(problem.seqused_k[b, 0, 0, 0])
        f = 0 if problem.leftpad_k is None else int(problem.leftpad_k[b, 0, 0, 0])
        first = e - n if problem.causal_alignment == "bottom_right" else f
        for i in range(problem.query_length):
            found[b, 0, i] = np.arange(problem.key_length) - (i + first)
    return found


def assert_solved_as_if_alone(subject: Subject, problem: Problem) -> None:
    """Raise :class:`Refutation` unless each sequence has the answer that it has alone."""
    answer = subject(problem)
    assert_within_bound(subject, problem, answer)
    for entry in range(problem.batch):
        alone = problem.sequence(entry)
        if alone.query_length:
            rows = selected(answer, np.s_[entry : entry + 1, :, : alone.query_length])
            assert_rows_within_bound(subject, alone, rows)


@attention_property(
    source=DEFINITION,
    hunts="lengths that are ignored, off by one, rounded up to tiles, of another batch entry or of the queries",
    needs=("seqused_k",),
    problems=of_sequences,
)
def test_each_sequence_is_solved_as_if_it_were_alone(subject: Subject, problem: Problem) -> None:
    """The rows of a batch entry are the answer to its queries and keys, without what lies behind them."""
    assert_solved_as_if_alone(subject, problem)


@attention_property(
    source="Dao-AILab/flash-attention, flash_attn_with_kvcache: cache_leftpad is the index at which the cache starts",
    hunts="padding on the left that is read, counted twice, or not counted in the diagonal",
    needs=("leftpad_k",),
    problems=padded_on_the_left,
)
def test_padding_on_the_left_moves_a_sequence_and_changes_nothing(subject: Subject, problem: Problem) -> None:
    """The rows of a batch entry are the answer to its queries and the keys behind its padding, moved to the front."""
    assert_solved_as_if_alone(subject, problem)


@attention_property(
    source="the definition of leftpad_k: the first query is aligned with the first key behind the padding",
    hunts="a diagonal that starts before the padding, or at the last key less the padding",
    needs=("leftpad_k", "causal"),
    problems=with_padded_corners,
    each_call=True,
)
def test_the_diagonal_starts_behind_the_padding(subject: Subject, problem: Problem) -> None:
    """Causal attention with padding on the left is attention under a mask from the corner of the keys behind it.

    The mask is written out row by row, on purpose not by attn_spec.problem.
    """
    seen = distances(problem) <= 0
    mask = seen if problem.mask is None else seen & problem.mask
    assert_within_bound(subject, problem.replace(causal=False, mask=mask), subject(problem))


@attention_property(
    source=CORNER,
    hunts="the corner of the rectangle in place of that of the sequence, or the other corner",
    needs=("seqused_k", "causal"),
    problems=with_corners,
    each_call=True,
)
def test_the_diagonal_is_that_of_each_sequence(subject: Subject, problem: Problem) -> None:
    """Causal attention with lengths is attention under a mask that starts in the corner of each sequence.

    The mask is written out row by row, on purpose not by attn_spec.problem.
    """
    seen = distances(problem) <= 0
    mask = seen if problem.mask is None else seen & problem.mask
    assert_within_bound(subject, problem.replace(causal=False, mask=mask), subject(problem))


@attention_property(
    source=CORNER,
    hunts="a window around the diagonal of the rectangle, or around the query's own number",
    needs=("seqused_k", "window"),
    problems=with_windows,
    each_call=True,
)
def test_the_window_follows_the_diagonal_of_each_sequence(subject: Subject, problem: Problem) -> None:
    """Attention with a window and lengths is attention under the mask of the band around each sequence's diagonal."""
    left, right = problem.window or (None, None)
    d = distances(problem)
    seen = np.ones(d.shape, dtype=bool)
    if left is not None:
        seen &= d >= -left
    if right is not None:
        seen &= d <= right
    mask = seen if problem.mask is None else seen & problem.mask
    assert_within_bound(subject, problem.replace(window=None, mask=mask), subject(problem))


@attention_property(
    source=UNUSED,
    hunts="tiles past the end that are read: a late mask, 0 * NaN of memory that nobody wrote, a neighbour's keys",
    needs=("seqused_k",),
    problems=partial(of_sequences, regimes=TAME, without=("empty",)),
)
def test_what_lies_behind_a_sequence_changes_nothing(subject: Subject, problem: Problem) -> None:
    """Rewriting queries, keys and values behind the lengths, or before the padding's end, changes no bit of the answer.

    They become other numbers and those of another sequence; Inf and NaN too if unused="unread" is declared.
    """
    assert_unused_places_have_no_influence(subject, problem)


@attention_property(
    source="problem.Conventions.empty_row and empty_lse; jax-ml/jax: length 0 averages the padding",
    hunts="0/0 of a sequence without keys, the mean of its padding, a sequence of length 0 that moves the next one",
    needs=("seqused_k",),
    problems=without_keys,
    not_applicable=lambda own: "each sequence must have a key" if own.kernel.limits.least_keys else "",
    each_call=True,
)
def test_a_sequence_without_keys_follows_the_convention(subject: Subject, problem: Problem) -> None:
    """Queries of a sequence of length 0 get what the conventions say, and their neighbours are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


def beside_short_ones(subject: Subject, problem: Problem) -> tuple[Problem, np.ndarray]:
    """Return the sequences of a problem in another order, with short ones beside them, and where each one is then, [B].

    The short ones have 0 or 1 queries and keys, as far as the kernel takes such lengths. One time in two they are the
    last ones, as in the padding of a batch to a size that a CUDA graph has recorded.
    """
    rng, limits, B = randomness(problem), subject.kernel.limits, problem.batch
    short = max(0, int(min(SHORT, limits.most("B") - B, limits.most("BH") / problem.query_heads - B)))
    entries = np.append(rng.permutation(B), np.zeros(short, dtype=int))
    is_short = np.arange(len(entries)) >= B
    if rng.random() < 0.5:
        order = rng.permutation(len(entries))
        entries, is_short = entries[order], is_short[order]
    longer, used = problem.take("B", entries), problem.used_queries[entries]
    few = rng.integers(2 if limits.query_lengths is None or 1 in limits.query_lengths else 1, size=len(entries))
    keys = np.where(is_short, np.maximum(few, limits.least_keys), problem.end_keys[entries])
    if subject.supports("seqused_q") and not problem.projects:  # a layer has one length of queries
        used = np.where(is_short, keys if limits.equal_lengths else few, used)
        longer = longer.replace(seqused_q=used[:, None, None, None])
    elif limits.keys_reach_queries or limits.equal_lengths:
        keys = np.maximum(keys, used)
    where = np.flatnonzero(~is_short)
    return longer.replace(seqused_k=keys[:, None, None, None]), where[np.argsort(entries[~is_short])]


def with_one_placement(subject: Subject) -> Subject:
    """Return the subject with pages of one size and one way to state a longest length, whatever the batch is."""
    size = (subject.kernel.limits.page_sizes or PAGE_SIZES)[0]
    return replace(subject, choices={**subject.choices, "page_sizes": (size,), "longest": ("axis",)})


@attention_property(
    source="batch entries are separate problems; engines pad batches to the sizes of recorded CUDA graphs",
    hunts="an empty sequence that skips the next, a table read by the number of an entry, a special last entry",
    needs=("seqused_k",),
    problems=of_sequences,
)
def test_sequences_carry_their_lengths_along_beside_short_ones(subject: Subject, problem: Problem) -> None:
    """Sequences in any order, beside others of length 0 or 1, are all within their bounds.

    Each keeps its bits if the kernel declares batch_invariant.
    """
    own = with_one_placement(subject)
    longer, where = beside_short_ones(own, problem)
    after = own(longer)
    assert_within_bound(own, longer, after)
    if own.conventions.batch_invariant and compares_bits(own):
        mine = {name: x[where] for name, x in after.items()}
        assert_unchanged(own(problem), mine, "after the order of the sequences changed, with short ones beside them")


@attention_property(
    source=ROWS,
    hunts="rows behind a sequence that nobody writes, so that what the memory held reaches the next layer",
    needs=("seqused_q",),
    problems=of_queries,
    not_applicable=lambda own: (
        "its calls have no such rows"
        if not own.presentation.has_unused_rows
        else ""
        if own.conventions.unused_rows == "zero"
        else "it says nothing of such rows"
    ),
    each_call=True,
)
def test_rows_behind_a_sequence_are_zero(subject: Subject, problem: Problem) -> None:
    """Rows of the output behind the length of their sequence are 0, if unused_rows="zero" is declared."""
    output = subject(problem)["output"]
    behind = np.broadcast_to(~problem.there, output.shape[:3])
    if not (output[behind] == 0).all():
        raise Refutation("a row behind the length of its sequence is not 0")


@attention_property(
    source="the derivative of the definition of lengths",
    hunts="lengths that the backward pass ignores, or reads for another sequence, in dK and dV of the padding",
    needs=("backward", "seqused_k"),
    problems=partial(of_sequences, draw=differentiable),
)
def test_gradients_with_lengths_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """Gradients of a batch of sequences are within their bounds; where nothing is they are 0, if that is declared."""
    assert_gradients_within_bound(subject, problem, dO := cotangent(subject, problem), subject.gradients(problem, dO))


@attention_property(
    source=UNUSED,
    hunts="0 * NaN of unused queries, keys or cotangents in sums over a batch, delta of rows that are not there",
    needs=("backward", "seqused_k"),
    problems=partial(of_sequences, draw=differentiable, regimes=TAME, without=("empty",)),
)
def test_what_lies_behind_a_sequence_reaches_no_gradient(subject: Subject, problem: Problem) -> None:
    """Rewriting queries, keys, values and dO behind the lengths changes no bit of any gradient."""
    assert_unused_places_reach_no_gradient(subject, problem, cotangent(subject, problem))

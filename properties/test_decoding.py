"""Decoding: keys and values that were computed once serve every later query, whatever comes behind them."""

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import positional, positional_absolutely
from attn_spec.search.assertions import (
    assert_rows_within_bound,
    assert_unchanged,
    assert_within_bound,
    compares_bits,
    selected,
)
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import attention_property

#: Steps, or chunks, of one sequence; of a kernel that is compiled for each length, fewer.
MOST, MOST_COMPILED = 4, 2
#: Numbers of query heads that share a kv head.
GROUPS = (3, 1, 5, 8)


def from_the_end(subject: Subject) -> bool:
    """Return whether the last query can be aligned with the last key, as it is beside a cache."""
    return subject.conventions.causal_alignment == "bottom_right" or subject.supports("causal_alignment")


def cached(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw causal problems of which some queries and the keys up to them make a problem of the same kind.

    From the bottom-right corner the last of these queries is aligned with the last of these keys. From the other, one
    query alone sees all keys up to it without the diagonal, and what is counted from there is left out.
    """
    if not from_the_end(subject):
        return problems(subject, needs=("causal", "cross"), without=("empty", positional), regimes=TAME, **drawn)
    return problems(
        subject,
        needs=("causal", "cross"),
        without=("empty", positional_absolutely),
        regimes=TAME,
        causal_alignment="bottom_right",
        **drawn,
    )


def in_groups(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems like :func:`cached` of a few kv heads, whose groups are no power of 2, or fill a tile of rows."""
    kv_heads = (subject.kernel.limits.kv_heads or (2,))[0]
    query_heads = st.sampled_from([kv_heads * group for group in GROUPS])
    drawn: dict[str, Any] = {} if subject.kernel.limits.query_lengths else {"query_length": st.integers(1, 4)}
    return cached(subject, query_heads=query_heads, kv_heads=kv_heads, **drawn)


def up_to(problem: Problem, rows: range) -> Problem:
    """Return some neighbouring queries with the keys up to the last of them."""
    first = problem.key_length - problem.query_length if problem.causal_alignment == "bottom_right" else 0
    keys = min(rows[-1] + first + 1, problem.key_length)
    part = problem.take("Q", rows).take("K", range(keys))
    return part if problem.causal_alignment == "bottom_right" else part.replace(causal=False)


def rows_with_keys(problem: Problem) -> range:
    """Return the queries before which, or at which, there is a key."""
    before = problem.query_length - problem.key_length if problem.causal_alignment == "bottom_right" else 0
    return range(max(before, 0), problem.query_length)


def most(subject: Subject) -> int:
    """Return the number of parts of one sequence that a kernel is called with."""
    return MOST if subject.kernel.signatures is None else MOST_COMPILED


@attention_property(
    source="Vaswani et al., Attention Is All You Need (arXiv 1706.03762), section 3.2.3: what a query gets depends on "
    "the keys up to it alone, so that training on whole sequences and decoding agree",
    hunts="sums of the last step that are gone on from, a newest page that is not read until it is full",
    needs=("causal", "cross"),
    problems=cached,
)
def test_steps_in_a_growing_cache_give_the_whole_sequence(subject: Subject, problem: Problem) -> None:
    """Queries one after the other, each with one key more in the cache, get what all of them get at once.

    Teacher forcing and decoding: both answers are held against the same truth, that of the query alone.
    """
    rows = rows_with_keys(problem)
    if not rows or subject.kernel.limits.step("QK") > 1:
        return
    whole, count = subject(problem), min(most(subject), len(rows))
    start = rows.start + int(randomness(problem).integers(len(rows) - count + 1))
    for i in range(start, start + count):
        step = up_to(problem, range(i, i + 1))
        assert_within_bound(subject, step, subject(step))
        assert_rows_within_bound(subject, step, selected(whole, np.s_[:, :, i : i + 1]))


@attention_property(
    source="Agrawal et al., Sarathi-Serve (arXiv 2403.02310), section 4.1: chunks of a prompt, each beside the cache "
    "of those before, compute what the whole prompt does",
    hunts="a chunk whose diagonal starts at the first key, or at the first of a page; a chunk taken for decoding",
    needs=("causal", "cross"),
    problems=cached,
    not_applicable=lambda subject: "" if from_the_end(subject) else "its diagonal starts at the first key",
)
def test_chunks_of_queries_give_the_whole_sequence(subject: Subject, problem: Problem) -> None:
    """Queries in chunks, each against every key up to its last query, get what all of them get at once.

    The first chunk stands for a prefix, the others for what is put behind it.
    """
    rows = rows_with_keys(problem)
    if not rows or subject.kernel.limits.step("QK") > 1:
        return
    rng, whole = randomness(problem), subject(problem)
    cuts = np.unique(rng.integers(rows.start, rows.stop, size=most(subject) - 1))
    edges = [rows.start, *(int(cut) for cut in cuts if cut > rows.start), rows.stop]
    for start, stop in itertools.pairwise(edges):
        chunk = up_to(problem, range(start, stop))
        assert_within_bound(subject, chunk, subject(chunk))
        assert_rows_within_bound(subject, chunk, selected(whole, np.s_[:, :, start:stop]))


@attention_property(
    source="Ainslie et al., GQA (arXiv 2305.13245); Pope et al. (arXiv 2211.05102): prefill and decode agree",
    hunts="heads of a group packed into rows of a tile and taken apart by a power of 2, padded rows that are read",
    needs=("causal", "cross", "gqa"),
    problems=in_groups,
)
def test_one_query_of_a_group_of_any_size_gets_the_last_row(subject: Subject, problem: Problem) -> None:
    """The last query alone gets the last row of up to four queries, in groups of 1, 3, 5 and 8 query heads."""
    rows = rows_with_keys(problem)
    if not rows or subject.kernel.limits.step("QK") > 1:
        return
    last = up_to(problem, rows[-1:])
    assert_rows_within_bound(subject, last, selected(subject(problem), np.s_[:, :, rows[-1] : rows[-1] + 1]))
    if not subject.kernel.limits.refusal(last):
        assert_within_bound(subject, last, subject(last))


@attention_property(
    source="Kwon et al., PagedAttention (arXiv 2309.06180), section 4.4: sequences that begin alike share the keys and "
    "values of that prefix, and nothing else",
    hunts="a cached prefix that is hit by a part of its keys, and brings the rest of another sequence along",
    problems=lambda subject: problems(subject, without=("empty",), regimes=TAME),
)
def test_one_prefix_serves_every_continuation(subject: Subject, problem: Problem) -> None:
    """Sequences that begin alike and end otherwise get their own answers, one after the other and again.

    Queries that see the shared keys alone keep the bits of their answer, where the kernel declares bits.
    """
    if problem.key_length < 2:
        return
    rng = randomness(problem)
    cut = int(rng.integers(1, problem.key_length))
    behind = (np.arange(problem.key_length) >= cut)[:, None]
    other = {n: bits.nearest(rng.standard_normal(getattr(problem, n).shape), problem.dtype_of(n)) for n in "kv"}
    continued = problem.with_inputs(**{name: np.where(behind, x, getattr(problem, name)) for name, x in other.items()})
    first, second, again = subject(problem), subject(continued), subject(problem)
    assert_within_bound(subject, continued, second)
    if not compares_bits(subject):
        assert_within_bound(subject, problem, again)
        return
    assert_unchanged(first, again, "after another continuation of the same keys was solved")
    prefix = np.logical_not(problem.visible[..., cut:].any(axis=-1))
    if not subject.conventions.empty_rows_are_constant:
        prefix = prefix & ~problem.empty_rows
    assert_unchanged(first, second, f"after the keys and values from {cut} on were replaced", prefix)

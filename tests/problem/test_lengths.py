"""Lengths of sequences: what is there, where diagonals start, and which places belong to nothing."""

import math

import numpy as np
import pytest

from attn_spec.problem.problem import Problem
from attn_spec.problem.used_places import used_places
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"batch": 3, "query_heads": 2, "kv_heads": 1, "query_length": 3, "key_length": 4, "head_dim": 2, "value_dim": 2}


def lengths(*numbers):
    return np.array(numbers).reshape(-1, 1, 1, 1)


def made(**options) -> Problem:
    return Recipe(**SHAPE).problem().replace(**options)


def test_keys_behind_a_length_and_rows_that_are_not_there_are_hidden():
    problem = made(seqused_q=lengths(3, 1, 0), seqused_k=lengths(4, 2, 0))

    seen = problem.visible[:, 0]

    assert seen[0].all()
    assert seen[1].tolist() == [[True, True, False, False], [False] * 4, [False] * 4]
    assert not seen[2].any()
    assert problem.there[:, 0].tolist() == [[True] * 3, [True, False, False], [False] * 3]


@pytest.mark.parametrize(
    ("alignment", "first"), [("top_left", [0, 0, 0]), ("bottom_right", [1, 1, -3])], ids=["top_left", "bottom_right"]
)
def test_each_sequence_has_a_diagonal_of_its_own(alignment, first):
    problem = made(causal=True, causal_alignment=alignment, seqused_q=lengths(3, 1, 3), seqused_k=lengths(4, 2, 0))

    assert problem.aligned_keys[:, 0].tolist() == first
    assert problem.distances.shape == (3, 1, 3, 4)


def test_more_queries_than_keys_leave_blind_queries_before_the_diagonal_and_unused_rows_behind_it():
    problem = made(causal=True, causal_alignment="bottom_right", seqused_q=lengths(3, 2, 3), seqused_k=lengths(1, 1, 4))

    assert problem.blind_queries[:, 0].tolist() == [[True, True, False], [True, False, False], [False] * 3]
    assert problem.empty_rows[1, 0].tolist() == [True, False, True]


def test_a_sequence_is_the_problem_without_what_lies_behind_it():
    problem = made(causal=True, causal_alignment="bottom_right", seqused_q=lengths(3, 2, 0), seqused_k=lengths(4, 3, 2))

    alone = problem.sequence(1)

    assert alone.q.shape == (1, 2, 2, 2)
    assert alone.k.shape == (1, 1, 3, 2)
    assert not alone.has_lengths
    assert (alone.visible == problem.visible[1:2, :, :2, :3]).all()
    assert problem.sequence(2).query_length == 0


def test_rows_keep_their_diagonal_and_what_is_there():
    problem = made(causal=True, causal_alignment="bottom_right", seqused_q=lengths(3, 2, 1), seqused_k=lengths(4, 3, 2))

    some = problem.rows([1, 2])

    assert (some.visible == problem.visible[:, :, 1:]).all()
    assert (some.there == problem.there[..., 1:]).all()
    with pytest.raises(ProblemError, match="rows that are there must be picked before"):
        problem.rows([2, 1])


@pytest.mark.parametrize("options", [{}, {"alibi_slopes": np.ones((1, 1, 1, 1))}, {"rotary": "half"}])
def test_a_merged_mask_moves_no_other_diagonal(options):
    problem = made(causal=True, causal_alignment="bottom_right", seqused_k=lengths(4, 2, 1), **options)

    merged = problem.merged("mask")

    assert (merged.visible == problem.visible).all()
    assert merged.has_lengths == bool(options)
    if options:
        assert (merged.distances == problem.distances).all()


@pytest.mark.parametrize(("alignment", "first"), [("top_left", [0, 2, 4]), ("bottom_right", [1, 0, -1])])
def test_padding_on_the_left_counts_within_the_length(alignment, first):
    problem = made(causal=True, causal_alignment=alignment, seqused_k=lengths(4, 3, 2), leftpad_k=lengths(0, 2, 4))

    assert problem.aligned_keys[:, 0].tolist() == first
    assert problem.keys_there[1, 0].tolist() == [False, False, True, False]
    assert not problem.keys_there[2].any()
    alone = problem.sequence(1)
    assert (alone.k == problem.k[1:2, :, 2:3]).all()
    assert (alone.visible == problem.visible[1:2, :, :, 2:3]).all()


def test_parts_of_a_batch_keep_their_lengths():
    problem = made(seqused_q=lengths(3, 2, 1), seqused_k=lengths(4, 3, 2))

    assert problem.take("B", [2, 0]).end_keys.tolist() == [2, 4]
    assert problem.take("K", range(3)).end_keys.tolist() == [3, 3, 2]
    assert Problem.from_json(problem.to_json()).digest_of_bits() == problem.digest_of_bits()


def test_used_places_are_those_of_queries_and_keys_that_are_there():
    problem = made(seqused_q=lengths(3, 1, 0), seqused_k=lengths(4, 2, 0))

    assert used_places(problem, "dq", problem.q.shape)[1, 0, :, 0].tolist() == [True, False, False]
    assert used_places(problem, "k", problem.k.shape)[1, 0, :, 0].tolist() == [True, True, False, False]
    assert used_places(problem, "lse", (3, 2, 3))[0].all()
    of_shared_bias = used_places(problem, "dbias", (1, 1, 1, 4))
    assert of_shared_bias.all()  # the first sequence has every key
    assert not problem.cleared().q[1, :, 1:].any()
    assert (problem.cleared().q[0] == problem.q[0]).all()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lengths(5, 1, 1), "seqused_k must not contain a number below 0 or above Sk"),
        (lengths(-1, 1, 1), "seqused_k must not contain a number below 0 or above Sk"),
        (lengths(1, 1), r"seqused_k must be an int64 array broadcastable to \[B, 1, 1, 1\]"),
    ],
    ids=["too long", "negative", "too few"],
)
def test_lengths_that_no_sequence_has_are_refused(value, message):
    with pytest.raises(ProblemError, match=message):
        made(seqused_k=value)


def test_a_layer_has_one_length_of_queries():
    shape = {**SHAPE, "kv_heads": 1, "score_width": 2, "head_value_dim": 2, "output_width": 2}
    weights = {f"{name}_projection": "normal" for name in ("query", "key", "value", "output")}

    with pytest.raises(ProblemError, match="seqused_q: a layer has one length of queries; leave one out"):
        Recipe(**shape, **weights, seqused_q="full@B111").problem()


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_and_sinks_of_windows_count_from_the_first_key(alignment, causal):
    """The definition, written out key by key; padding beyond the length of keys puts queries before the first key."""
    ends, starts, queries, chunk, sinks = (9, 6, 5, 3), (0, 2, 4, 3), (7, 4, 6, 7), 4, 2
    shape = {**SHAPE, "batch": 4, "query_length": 7, "key_length": 9}
    problem = Recipe(**shape).problem().replace(
        causal=causal, causal_alignment=alignment, window=(1, 1), window_sinks=sinks, attention_chunk=chunk,
        seqused_q=lengths(*queries), seqused_k=lengths(*ends), leftpad_k=lengths(*starts),
    )  # fmt: skip

    def sees(b, i, j):
        n, e, f = queries[b], ends[b], starts[b]
        a = i + e - n if alignment == "bottom_right" else i + f
        near = j - a <= (0 if causal else 1) and (j - a >= -1 or j - f < sinks)
        return i < n and f <= j < e and near and math.floor((j - f) / chunk) == math.floor((a - f) / chunk)

    expected = [[[sees(b, i, j) for j in range(9)] for i in range(7)] for b in range(4)]
    assert problem.visible[:, 0].tolist() == expected
    for b, (n, e, f) in enumerate(zip(queries, ends, starts, strict=True)):
        alone = problem.sequence(b)
        assert (alone.visible[0] == problem.visible[b, :, :n, f : max(e, f)]).all()
        part = problem.rows([0, 2, 3]).take("B", [b])
        assert (part.visible[0] == problem.visible[b][:, [0, 2, 3]]).all()
    assert (problem.merged("mask").visible == problem.visible).all()
    assert not problem.merged("mask").has_lengths
    assert problem.merged("mask").window_sinks is None
    beside = problem.replace(alibi_slopes=np.full((1, 2, 1, 1), 0.5))
    assert (beside.merged("bias").distances == problem.distances).all()
    assert (beside.merged("bias").visible == problem.visible).all()

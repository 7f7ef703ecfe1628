"""Lengths of sequences are clipped to the limits of a kernel: no problem is drawn that it does not take."""

import numpy as np
import pytest
from hypothesis import given, settings

from attn_spec.emulation.kernels import SUPPORTS, emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.drawing.strategies import recipes

LENGTHS = ("seqused_q", "seqused_k", "leftpad_k")
DRAWN = {"query_length": 6, "key_length": 8, "batch": 40, "seed": 3}
RAGGED = dict.fromkeys(LENGTHS, "ragged@B111")


def lengths(**limits):
    """Return the numbers of queries and keys of each sequence, both [B], of a ragged problem with these limits."""
    problem = Recipe(**{**DRAWN, **RAGGED, **limits}).problem()
    return problem.used_queries, np.maximum(problem.end_keys - problem.first_keys, 0)


def test_no_limit_changes_no_length():
    queries, keys = lengths()

    assert (keys < queries).any()
    assert (keys == 0).any()


def test_a_sequence_has_a_key_for_every_query():
    queries, keys = lengths(keys_reach_queries=True)

    assert (keys >= queries).all()
    assert len(set(queries.tolist())) > 3


def test_a_sequence_has_the_least_number_of_keys():
    _, keys = lengths(least_keys=2)

    assert keys.min() == 2


def test_a_sequence_has_a_number_of_queries_that_is_allowed():
    queries, _ = lengths(query_lengths=(2, 6))

    assert set(queries.tolist()) == {0, 2, 6}


@pytest.mark.parametrize("given", [("seqused_k",), ("seqused_q",), ("seqused_q", "seqused_k")])
def test_a_sequence_has_as_many_keys_as_queries(given):
    found = {name: RAGGED.get(name) if name in given else None for name in LENGTHS}
    queries, keys = lengths(**found, key_length=6, equal_lengths=True)

    assert (queries == keys).all()
    assert len(set(queries.tolist())) > 3


LIMITS = (
    {"keys_reach_queries": True},
    {"least_keys": 2, "multiples": {"K": 2}},
    {"query_lengths": (1, 4)},
    {"keys_reach_queries": True, "least_keys": 3, "multiples": {"K": 4}},
)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("missing", [(), ("seqused_q",), ("leftpad_k",)])
def test_every_problem_with_lengths_is_taken(limits, missing):
    supports = (*SUPPORTS, *(name for name in LENGTHS if name not in missing))
    subject = Subject(emulate("k", PRECISE, supports=[x for x in supports if x != "empty"], **limits), "float32")

    @settings(max_examples=10, deadline=None, database=None, derandomize=True)
    @given(recipes(subject, needs=("seqused_k",)))
    def check(recipe):
        assert subject.kernel.limits.refusal(recipe.problem()) == ""

    check()

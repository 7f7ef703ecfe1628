"""A problem is made smaller within one kind of failure: a wrong answer, a call that raises, a crash."""

from dataclasses import replace

import pytest

from attn_spec import Recipe
from attn_spec.evidence.failure import block
from attn_spec.kernels.misbehaviour import CallFailed, Crashed, Raised
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import Case
from attn_spec.search.drawing import strategies
from attn_spec.search.halves import halves
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import Property, Refutation, Suspicion
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

SUBJECT = Subject(resolve("numpy_tiled"), "float32")


def searched(check):
    property_ = Property(
        id="toy.property", statement="", source="", hunts="", needs=(), check=check, problems=strategies.problems
    )
    return property_, *search(property_, SUBJECT, replace(PROFILES["smoke"], shrink_seconds=5.0), 0)


def failing(*ways):
    """Return a check that raises the first error whose least number of keys a problem has; it keeps what it saw."""

    def check(_, problem):
        seen.append(problem)
        for keys, error in ways:
            if problem.key_length >= keys:
                raise error("of this kind")

    seen = []
    check.seen = seen
    return check


@pytest.mark.parametrize(
    ("large", "small", "verdict"),
    [
        (Refutation, Raised, Verdict.REFUTED),
        (Raised, Refutation, Verdict.REFUTED),
        (CallFailed, Refutation, Verdict.REFUTED),
        (Crashed, Refutation, Verdict.REFUTED),
        (Refutation, Suspicion, Verdict.REFUTED),
    ],
)
def test_a_problem_that_fails_otherwise_is_no_smaller_problem_but_is_told(large, small, verdict):
    def check(_, problem):
        if problem.key_length > 4:
            raise large("a large one")
        if problem.key_length > 1 and seen:
            raise small("a small one")

    seen = []

    def noted(subject, problem):
        try:
            check(subject, problem)
        except large:
            seen.append(problem)
            raise

    property_, row, case = searched(noted)

    assert row.verdict is verdict
    assert (case.message, row.message) == ("a large one", "a large one")
    assert 4 < case.problem.key_length <= 9
    assert [line.partition("; for Recipe(")[0] for line in case.others] == ["a small one"]
    assert Case.from_json(case.to_json()).others == case.others
    assert "  also      a small one; for Recipe(" in block(case, property_, SUBJECT, None, verdict)


@pytest.mark.parametrize("first", [Suspicion, ValueError])
def test_a_refutation_takes_the_place_of_what_says_less(first):
    def check(_, problem):
        if problem.key_length > 4:
            seen.append(problem)
            raise first("a large one")
        if problem.key_length > 1 and seen:
            raise Refutation("a small one")

    seen = []
    _, row, case = searched(check)

    assert (row.verdict, row.message) == (Verdict.REFUTED, "a small one")
    assert case.problem.key_length <= 4


def test_a_problem_of_one_kind_of_failure_has_no_others():
    _, _, case = searched(failing((3, Refutation)))

    assert case.problem.key_length == 3
    assert case.others == ()


def test_a_crash_is_repeated_few_times():
    check = failing((5, Crashed))
    _, _, case = searched(check)

    assert 4 < case.problem.key_length <= 9
    assert sum(problem.key_length > 4 for problem in check.seen) < 32


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        ({"query_length": 5, "key_length": 5}, {("query_length", 3, "key_length", 3)}),
        ({"query_length": 1, "key_length": 8}, {("query_length", 1, "key_length", 4)}),
        ({"query_heads": 4, "kv_heads": 4}, {("query_heads", 2, "kv_heads", 2)}),
        ({"query_heads": 4, "kv_heads": 1}, {("query_heads", 2, "kv_heads", 1)}),
        ({"query_heads": 3, "kv_heads": 3, "batch": 2}, {("batch", 1), ("query_heads", 2, "kv_heads", 2)}),
        ({"query_length": 0, "key_length": 4}, {("query_length", 0, "key_length", 2)}),
        ({}, set()),
    ],
)
def test_halves_ask_for_no_further_ability(recipe, fields):
    whole = Recipe(**recipe)
    wanted = [replace(whole, **dict(zip(each[::2], each[1::2], strict=True))) for each in fields]

    assert set(halves(whole)) == set(wanted)


def test_what_has_a_layer_or_states_is_not_halved():
    assert not list(halves(Recipe(states=True, query_length=1, key_length=8)))

"""Positions: queries and keys that are turned by where they stand, of which their distance alone matters."""

from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import hides_keys, positional_absolutely
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import (
    assert_gradients_within_bound,
    assert_within_bound,
    cotangent,
    differentiable,
    randomness,
)
from attn_spec.search.property import attention_property
from attn_spec.search.strategies import TAME, problems

SU = "Su et al., RoFormer (arXiv 2104.09864)"


def turned(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Problems with rotary positions."""
    return problems(subject, needs=("rotary", *drawn.pop("needs", ())), **drawn)


def shifted(subject: Subject) -> SearchStrategy[Problem]:
    """Problems with rotary positions and a mask that is open, of two queries and keys or more."""
    without = ("empty", hides_keys, positional_absolutely)
    drawn = turned(subject, needs=("mask",), without=without, mask="all@11QK", regimes=TAME)
    return drawn.filter(lambda problem: min(problem.query_length, problem.key_length) > 1)


@attention_property(
    source=f"{SU}, equation 34",
    hunts="columns paired as in another layout, a base, a number of columns or a frequency that is another",
    needs=("rotary",),
    problems=partial(turned, without=("empty",)),
)
def test_turned_queries_and_keys_give_an_answer_within_its_bound(subject: Subject, problem: Problem) -> None:
    """Output and log-sum-exp of queries and keys that are turned by their positions are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source=f"{SU}, section 3.4.2: (R_m q).(R_n k) = q.(R_(n - m) k)",
    hunts="queries or keys counted from elsewhere, from the first visible key or from the start of a tile; angles that "
    "are rounded where positions are large",
    needs=("rotary", "mask"),
    problems=shifted,
)
def test_only_the_distance_between_positions_counts(subject: Subject, problem: Problem) -> None:
    """Later queries that see later keys alone have the answer that they have without those before.

    Both answers are held against that truth, each by the bound of its own positions.
    """
    n = int(randomness(problem).integers(1, min(problem.query_length, problem.key_length)))
    seen = np.broadcast_to(np.arange(problem.key_length) >= n, problem.score_shape)
    late = problem.replace(mask=seen)
    assert_within_bound(subject, late, subject(late))
    rest = problem.take("Q", range(n, problem.query_length)).take("K", range(n, problem.key_length))
    assert_within_bound(subject, rest, subject(rest))


@attention_property(
    source="cos 0 = 1, sin 0 = 0",
    hunts="positions that count from 1, a first query that is aligned with another key, columns left in another order",
    needs=("rotary",),
    problems=lambda subject: turned(
        subject, without=("empty", "causal_alignment"), query_length=st.just(1), key_length=st.just(1)
    ),
)
def test_at_position_zero_nothing_is_turned(subject: Subject, problem: Problem) -> None:
    """One query and one key have the answer that they have without positions.

    Both answers are held against that truth, each by the bound of what rounds on its way; a kernel that always turns
    gives one.
    """
    plain = problem.replace(rotary=None, rotary_base=None, rotary_dim=None)
    for same in (problem,) if "rotary" in subject.kernel.limits.always else (problem, plain):
        assert_within_bound(subject, same, subject(same))


@attention_property(
    source=f"{SU}; the transpose of a turn is the turn back",
    hunts="gradients of what was turned that are not turned back, or turned once more",
    needs=("rotary", "backward"),
    problems=lambda subject: differentiable(subject, needs=("rotary",), without=("empty",)),
)
def test_gradients_are_turned_back(subject: Subject, problem: Problem) -> None:
    """dQ and dK of queries and keys that were turned are within their bounds."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, {name: found[name] for name in ("dq", "dk")})

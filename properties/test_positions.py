"""Positions: queries and keys turned by where they stand, scores that fall with the distance; it alone matters."""

from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.limits import NotTaken, largest_position
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.patterns import FARTHEST
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import Trait, hides_keys, positional, positional_absolutely
from attn_spec.search.assertions import assert_gradients_within_bound, assert_within_bound, differentiable
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.property import attention_property

SU = "Su et al., RoFormer (arXiv 2104.09864)"
#: Options that give positions.
GIVEN = ("rotary_query_positions", "rotary_key_positions")
PRESS = "Press et al., Train short, test long (arXiv 2108.12409)"


def turned(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with rotary positions."""
    return problems(subject, needs=("rotary", *drawn.pop("needs", ())), **drawn)


def placed(subject: Subject, *, without: tuple[str | Trait, ...] = (), **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems with given rotary positions, of queries and of keys."""
    patterns = {name: st.sampled_from([pattern for pattern in OPTIONS[name].draws if pattern]) for name in GIVEN}
    return problems(subject, needs=("rotary", *GIVEN), without=("empty", *without), **patterns, **drawn)


def shifted(subject: Subject, option: str) -> SearchStrategy[Problem]:
    """Draw problems with one kind of positions and a mask that is open, of two queries and keys or more."""
    without = ("empty", hides_keys, positional_absolutely)
    asked = {"needs": (option, "mask"), "without": without, "mask": "all@11QK", "regimes": TAME}
    return problems(subject, where=lambda recipe: min(recipe.query_length, recipe.key_length) > 1, **asked)


def assert_distance_alone_counts(subject: Subject, problem: Problem) -> None:
    """Raise ``Refutation`` unless later queries that see later keys alone have the answer they have without the rest.

    Both answers are held against that truth, each by the bound of its own positions.
    """
    n = int(randomness(problem).integers(1, min(problem.query_length, problem.key_length)))
    seen = np.broadcast_to(np.arange(problem.key_length) >= n, problem.score_shape)
    late = problem.replace(mask=seen)
    assert_within_bound(subject, late, subject(late))
    rest = problem.take("Q", range(n, problem.query_length)).take("K", range(n, problem.key_length))
    assert_within_bound(subject, rest, subject(rest))


def with_alibi(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems whose scores fall with the distance, every second one with groups of heads if there may be any."""
    alone = ("alibi_slopes",)
    kinds = (alone, (*alone, "gqa")) if subject.supports("gqa") else (alone,)
    return st.one_of([problems(subject, needs=needs, without=("empty",), **drawn) for needs in kinds])


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
    problems=partial(shifted, option="rotary"),
)
def test_only_the_distance_between_positions_counts(subject: Subject, problem: Problem) -> None:
    """Later queries that see later keys alone have the answer that they have without those before."""
    assert_distance_alone_counts(subject, problem)


@attention_property(
    source="cos 0 = 1, sin 0 = 0",
    hunts="positions that count from 1, a first query that is aligned with another key, columns left in another order",
    needs=("rotary",),
    problems=lambda subject: turned(
        subject,
        without=("empty", "causal_alignment", positional_absolutely),
        query_length=st.just(1),
        key_length=st.just(1),
    ),
)
def test_at_position_zero_nothing_is_turned(subject: Subject, problem: Problem) -> None:
    """One query and one key have the answer that they have without positions.

    Both answers are held against that truth, each by the bound of what rounds on its way; a kernel that always turns
    gives one.
    """
    off = {row.name: row.off for row in (OPTIONS["rotary"], *parameters("rotary"))}
    plain = problem.replace(**off)
    for same in (problem,) if "rotary" in subject.kernel.limits.always else (problem, plain):
        assert_within_bound(subject, same, subject(same))


@attention_property(
    source=f"{SU}, equation 34, at positions that a call gives, as models hand over position_ids",
    hunts="positions that are ignored, those of keys read for queries, those of another batch entry",
    needs=("rotary", *GIVEN),
    problems=placed,
)
def test_given_positions_give_an_answer_within_its_bound(subject: Subject, problem: Problem) -> None:
    """Output and log-sum-exp of queries and keys at given positions are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source=f"{SU}, section 3.4.2: (R_(m + c) q).(R_(n + c) k) = (R_m q).(R_n k)",
    hunts="positions in float16, which has not all integers from 2048 on, or in bfloat16, from 256 on",
    needs=("rotary", *GIVEN),
    problems=partial(placed, regimes=TAME),
)
def test_one_offset_of_all_positions_changes_nothing(subject: Subject, problem: Problem) -> None:
    """Queries and keys that all stand up to 2**14 further on, where there are positions, have the answer they had.

    It is held against that truth by the bound of the positions that were given, which grows with them.
    """
    limit = subject.kernel.limits.largest_position
    room = (FARTHEST if limit is None else min(limit, FARTHEST)) - largest_position(problem)
    if room < 1:
        raise NotTaken("no position lies further on than those of the problem")
    offset = min(int(2 ** randomness(problem).uniform(0, 14)), room)
    moved = problem.replace(**{name: getattr(problem, name) + offset for name in GIVEN})
    assert_within_bound(subject, moved, subject(moved))


@attention_property(
    source=f"{SU}, section 3.4.2: (R_m q).(R_m k) = q.k",
    hunts="queries that stand one position further on than they should, a sine of another sign on one side",
    needs=("rotary", *GIVEN),
    problems=placed,
)
def test_at_equal_positions_nothing_is_turned(subject: Subject, problem: Problem) -> None:
    """Queries and keys that all stand at one position have the answer that they have without positions."""
    place = int(randomness(problem).integers(300))
    same = problem.replace(**{name: np.full_like(getattr(problem, name), place) for name in GIVEN})
    assert_within_bound(subject, same, subject(same))


@attention_property(
    source="a sum does not depend on the order of its terms; the score of a key depends on its place by its position",
    hunts="positions counted from the start of a tile or a page, or by the row in a cache",
    needs=("rotary", *GIVEN),
    problems=partial(placed, without=(positional,)),
)
def test_keys_carry_their_positions_along(subject: Subject, problem: Problem) -> None:
    """Keys in another order, with their positions, give every query the answer that it had."""
    order = randomness(problem).permutation(problem.key_length)
    assert_within_bound(subject, problem, subject(problem.take("K", order)))


@attention_property(
    source=f"{SU}; the transpose of a turn is the turn back",
    hunts="gradients of what was turned that are not turned back, or turned once more",
    needs=("rotary", "backward"),
    problems=lambda subject: differentiable(subject, needs=("rotary",), without=("empty",)),
)
def test_gradients_are_turned_back(subject: Subject, problem: Problem) -> None:
    """dQ and dK of queries and keys that were turned are within their bounds."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    names = ("dq", subject.presentation.key_gradients[0])
    assert_gradients_within_bound(subject, problem, dO, {name: found[name] for name in names})


@attention_property(
    source=f"{PRESS}, section 3: softmax(q_i K^T + m [-(i - 1), .., -2, -1, 0])",
    hunts="slopes of another head, an offset between queries and keys of a cache, future keys that are preferred; a "
    "scale, a softcap or a logarithm that meets the slope too",
    needs=("alibi_slopes",),
    problems=with_alibi,
    each_call=True,
)
def test_alibi_gives_an_answer_within_its_bound(subject: Subject, problem: Problem) -> None:
    """Output and log-sum-exp of scores that fall by m for each key between are within their bounds."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source=f"{PRESS}: m (i - j) is m ((i - n) - (j - n))",
    hunts="distances that are rounded where positions are large, or counted from the first key of a tile",
    needs=("alibi_slopes", "mask"),
    problems=partial(shifted, option="alibi_slopes"),
)
def test_only_the_distance_counts_under_alibi(subject: Subject, problem: Problem) -> None:
    """Later queries that see later keys alone have the answer, under ALiBi, that they have without those before."""
    assert_distance_alone_counts(subject, problem)


@attention_property(
    source=f"{PRESS}: the slopes are constants",
    hunts="a backward pass whose weights are those of other scores",
    needs=("alibi_slopes", "backward"),
    problems=lambda subject: differentiable(subject, needs=("alibi_slopes",), without=("empty",)),
)
def test_gradients_under_alibi_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """All gradients of attention whose scores fall with the distance are within their bounds."""
    found = subject.gradients(problem, dO := cotangent(subject, problem))
    assert_gradients_within_bound(subject, problem, dO, found)

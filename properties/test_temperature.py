"""Temperature: at infinite temperature the plain mean, at zero temperature the best key, with one key its value."""

from typing import Any

from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_scores
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.property import attention_property

VALUES = ("", "+v_one_hot", "+v_offset", "+v_alternating", "+v_wide")


def under(subject: Subject, regime: str, **fixed: Any) -> SearchStrategy[Problem]:
    """Draw problems of one score regime and any plain values."""
    return problems(subject, without=("empty", adds_to_scores), regimes=[regime + values for values in VALUES], **fixed)


@attention_property(
    source="softmax(0) is uniform over the visible keys",
    hunts="a wrong number of keys in the denominator: padding counted, a tile counted twice, a key lost",
    problems=lambda subject: under(subject, "uniform"),
    each_call=True,
)
def test_equal_scores_give_the_mean_of_the_visible_values(subject: Subject, problem: Problem) -> None:
    """With q = 0 the output is the mean of the visible values, and the log-sum-exp the logarithm of their number."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="lim softmax(t s) for t to infinity is the indicator of the largest score",
    hunts="the leading key lost, in a tail tile, at a tile edge, or rescaled away by later tiles",
    problems=lambda subject: under(subject, "one_hot"),
    each_call=True,
)
def test_one_dominant_key_gives_its_value(subject: Subject, problem: Problem) -> None:
    """If one score exceeds the others by 40, the output is that key's value."""
    assert_within_bound(subject, problem, subject(problem))


@attention_property(
    source="softmax of a single score is 1",
    hunts="weights that do not cancel exactly against their own sum; the wrong key read where a mask leaves one",
    needs=("mask",),
    problems=lambda subject: problems(subject, needs=("mask",), without=("empty",), mask=named(["one_key"])),
    each_call=True,
)
def test_one_visible_key_gives_its_value(subject: Subject, problem: Problem) -> None:
    """A query that sees one key gets that key's value, and its score as the log-sum-exp."""
    assert_within_bound(subject, problem, subject(problem))

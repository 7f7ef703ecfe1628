"""Asked shapes: at shapes that a user asks for, rows, and keys of gradients, that are drawn lie within their bounds."""

from functools import partial

from attn_spec.judgement.long.gradient_blocks import MemoryExceededError
from attn_spec.kernels.misbehaviour import OutOfMemory
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.asked_shapes import check_taken, recipes
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.long_answers import (
    assert_gradients_of_long_answer,
    assert_rows_of_long_answer,
    sample_of,
    sees_no_key,
)
from attn_spec.search.property import NotExamined, attention_property

OF_A_LAYER = "a layer has no heads of q, k and v, which a shape that is asked for has"
WHOLE = "gradients of {} are held against an enclosure of the whole, for which such shapes are too large"


def no_heads(subject: Subject) -> str:
    """Return the reason why the shapes mean nothing to a kernel; empty if they mean something."""
    return OF_A_LAYER if "query_projection" in subject.kernel.limits.always else ""


def judged_whole(subject: Subject) -> str:
    """Return the reason why gradients of a kernel cannot be judged in part; empty if they can."""
    if subject.dtype == "float64":
        return WHOLE.format("float64")
    return no_heads(subject)


@attention_property(
    source="attn_spec.bounds.forward.bounds, the forward bound; attn_spec.judgement.long.row_sample",
    hunts="a path, a grid or an offset that only such a size reaches: many queries and keys at once, many heads",
    recipes=recipes,
    not_applicable=no_heads,
    each_call=True,
)
def test_sampled_rows_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """At a shape asked for, rows of output and log-sum-exp, by strata and at random, lie within their bounds."""
    check_taken(subject, problem)
    try:
        answer = subject(problem)
    except OutOfMemory as error:
        raise NotExamined(str(error)) from error
    assert_rows_of_long_answer(subject, problem, answer, sample=sample_of(problem))


@attention_property(
    source="attn_spec.bounds.backward.gradient_bounds, the backward bound; attn_spec.judgement.long.key_sample",
    hunts="sums over rows that stop, start again or overwrite one another past a size; offsets of the backward pass",
    needs=("backward",),
    recipes=partial(recipes, gradients=True),
    not_applicable=judged_whole,
)
def test_sampled_gradients_are_within_their_bounds(subject: Subject, problem: Problem) -> None:
    """At a shape asked for, dQ of sampled rows, and dK and dV of sampled keys, lie within their bounds."""
    check_taken(subject, problem)
    if subject.conventions.outputs_without_keys != {"zero"} and sees_no_key(problem):
        raise NotExamined("some query sees no key, and the convention gives it an output that is no constant")
    dO = bits.nearest(randomness(problem).standard_normal(problem.output_shape), subject.contract.output)
    try:
        found = subject.gradients(problem, dO, wrt=subject.presentation.inputs)
        assert_gradients_of_long_answer(subject, problem, dO, found)
    except (OutOfMemory, MemoryExceededError) as error:
        raise NotExamined(str(error)) from error

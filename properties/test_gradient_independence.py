"""Independence of gradients: of which others are asked for, of the layout of dO, of history. The output has its own."""

from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Raised
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import (
    assert_gradients_unchanged,
    assert_gradients_within_bound,
    assert_unchanged,
    assert_within_bound,
    differentiable,
)
from attn_spec.search.drawing.cotangents import cotangent, randomness
from attn_spec.search.histories import reason_to_overwrite, rewritten
from attn_spec.search.property import attention_property

#: Backward passes that must agree.
PASSES = 3
FUNCTION = "gradients are functions of the inputs and of the cotangents"
nonempty = partial(differentiable, without=("empty",))


@attention_property(
    source=FUNCTION,
    hunts="a log-sum-exp that is not saved when only the bias needs a gradient, dV that relies on a by-product of dK",
    needs=("backward",),
    problems=nonempty,
)
def test_each_gradient_may_be_asked_for_without_the_others(subject: Subject, problem: Problem) -> None:
    """Gradients of one input alone, and of any subset of the inputs, are within their bounds.

    Equal bits are not declared: autograd may choose another kernel when less is asked for. Explicit backward functions
    always give all gradients, of which the subset is taken.
    """
    inputs = (*subject.presentation.inputs, *(() if problem.bias is None else ("bias",)))
    dO = cotangent(subject, problem)
    alone = {f"d{name}": subject.gradients(problem, dO, wrt=(name,))[f"d{name}"] for name in inputs}
    assert_gradients_within_bound(subject, problem, dO, alone)
    several = [names for n in range(2, max(len(inputs), 3)) for names in combinations(inputs, n)]
    chosen = several[randomness(problem).integers(len(several))]
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO, wrt=chosen))


@attention_property(
    source=FUNCTION,
    hunts="an output that is wrong only when autograd records it, inputs or saved tensors overwritten by the backward",
    needs=("backward",),
    problems=nonempty,
)
def test_asking_for_gradients_leaves_the_output_alone(subject: Subject, problem: Problem) -> None:
    """The output recorded for a backward pass is within its bound, and after one the plain output is what it was."""
    before = subject(problem)
    if subject.kernel.backward_function is None:
        assert_within_bound(subject, problem, subject.recorded(problem))
    subject.gradients(problem, cotangent(subject, problem))
    after = subject(problem)
    if subject.conventions.deterministic:
        assert_unchanged(before, after, "after a backward pass")
    assert_within_bound(subject, problem, after)


@attention_property(
    source=FUNCTION,
    hunts="dO read with the strides of O, or as if it were packed",
    needs=("backward", "strides"),
    problems=nonempty,
)
def test_the_layout_of_the_cotangent_has_no_influence(subject: Subject, problem: Problem) -> None:
    """dO, q, k, v with axes swapped in memory, or inside larger buffers of NaN, give gradients within their bounds."""
    dO = cotangent(subject, problem)
    ways = (memory.swapped, partial(memory.swapped, first=-2, second=-1), memory.sliced)
    rng = randomness(problem)
    arrange, mixed = ways[rng.integers(len(ways))], memory.each_its_own(rng)
    found = subject.gradients(problem, dO, arrange=arrange, arrange_inputs=mixed)
    assert_gradients_within_bound(subject, problem, dO, found)


@attention_property(
    source=FUNCTION + "; the gradient of a sum arrives as one number expanded",
    hunts="a stride of 0 taken for a packed one: out.sum().backward() reads past a single number",
    needs=("backward", "strides"),
    problems=nonempty,
)
def test_an_expanded_cotangent_is_read_right(subject: Subject, problem: Problem) -> None:
    """dO = 1 with all strides 0, as a sum of the output sends it, gives gradients within their bounds."""
    dO = np.ones(problem.output_shape)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO, arrange=memory.expanded_whole))


@attention_property(
    source="problem.Conventions.deterministic",
    hunts="atomic additions or races in a backward pass that promises determinism, gradients accumulated over calls",
    needs=("backward",),
    problems=nonempty,
)
def test_equal_backward_calls_give_equal_gradients(subject: Subject, problem: Problem) -> None:
    """Equal backward calls, again and again, give the same bits if the kernel is deterministic, and stay in bounds."""
    dO = cotangent(subject, problem)
    first, *others = (subject.gradients(problem, dO) for _ in range(PASSES))
    if subject.conventions.deterministic:
        for turn, gradients in enumerate(others, start=2):
            assert_gradients_unchanged(first, gradients, f"in backward pass {turn}")
    assert_gradients_within_bound(subject, problem, dO, others[-1])


@attention_property(
    source="torch.autograd.backward, retain_graph: the graph is kept for as many passes as are asked for",
    hunts="saved tensors changed in place by the first pass, a workspace that is cleared once, gradients added up",
    needs=("backward",),
    problems=nonempty,
)
def test_a_second_pass_through_one_graph_gives_the_same_gradients(subject: Subject, problem: Problem) -> None:
    """The gradients of a second backward pass after one forward call are those of the first, and within their bounds.

    Of a kernel with a backward function it is a second call for the same outputs. Nothing is said of one that refuses.
    """
    dO = cotangent(subject, problem)
    first = subject.gradients(problem, dO)
    try:
        second = replace(subject, passes=2).gradients(problem, dO)
    except Raised as error:
        raise NotTaken(f"it goes through its graph once: {error}") from error
    if subject.conventions.deterministic:
        assert_gradients_unchanged(first, second, "in a second pass through one graph")
    assert_gradients_within_bound(subject, problem, dO, second)


@attention_property(
    source=FUNCTION + "; layers share a kernel, whose calls all come before the backward pass of the first",
    hunts="tensors saved for the backward pass, or gradients, in a workspace that the next call overwrites",
    needs=("backward",),
    problems=nonempty,
    not_applicable=reason_to_overwrite,
)
def test_calls_in_between_leave_gradients_alone(subject: Subject, problem: Problem) -> None:
    """Gradients are within their bounds if another problem is solved between the passes, and no call overwrites them.

    Both passes of the other problem are made between those of the first, and again before its gradients are read.
    """
    dO, other = cotangent(subject, problem), rewritten(problem)
    found = replace(subject, between=lambda own: own.gradients(other, dO)).gradients(problem, dO)
    assert_gradients_within_bound(subject, problem, dO, found)


@attention_property(
    source=FUNCTION,
    hunts="dK or dV of keys that no tile visits left unwritten, workspace that is not cleared before atomic additions",
    needs=("backward", "strides"),
    problems=nonempty,
)
def test_every_element_of_the_gradients_is_written(subject: Subject, problem: Problem) -> None:
    """With NaN left in freed memory of the gradients' sizes all gradients are within their bounds."""
    shapes = (problem.q.shape, problem.k.shape, problem.v.shape, problem.q.shape[:3])
    arrange = partial(memory.after_freed_nan, shapes=shapes)
    dO = cotangent(subject, problem)
    assert_gradients_within_bound(subject, problem, dO, subject.gradients(problem, dO, arrange=arrange))

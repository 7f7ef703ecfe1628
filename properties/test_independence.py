"""Independence: an answer depends on the numbers of its own problem; not on companions, memory layout, or history."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Raised
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import adds_to_scores
from attn_spec.search.assertions import assert_unchanged, assert_within_bound, compares_bits, selected
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import TAME, problems
from attn_spec.search.histories import asked_otherwise, reason_to_overwrite, rewritten
from attn_spec.search.property import attention_property

FUNCTION = "attention is a function of its arguments"
#: Calls of the same problem after which its answer is looked at again.
CALLS = 4


def in_batches(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems of two or three batch entries that overflow nothing."""
    return problems(subject, without=("empty", adds_to_scores), regimes=TAME, batch=st.sampled_from((2, 3)))


def assert_agree(subject: Subject, problem: Problem, before: Answer, after: Answer, what: str) -> None:
    """Raise :class:`Refutation` unless two answers to one problem have equal bits, if the kernel promises them.

    Otherwise the later one must lie within its bound.
    """
    if compares_bits(subject):
        assert_unchanged(before, after, what)
    else:
        assert_within_bound(subject, problem, after)


@attention_property(
    source=FUNCTION + "; batch entries are separate problems",
    hunts="a read across a batch boundary, a scale or maximum shared by the batch",
    problems=in_batches,
)
def test_batch_companions_have_no_influence(subject: Subject, problem: Problem) -> None:
    """Rewriting the other batch entries leaves an entry's answer as it was.

    Bit for bit if the kernel declares batch_invariant, within the bound otherwise: splitting work by what the batch
    holds is legal, and changes rounding.
    """
    mine = int(randomness(problem).integers(problem.batch))
    changed = rewritten(problem, keep=mine)
    after = subject(changed)
    if subject.conventions.batch_invariant and compares_bits(subject):
        entry = np.s_[mine : mine + 1]
        before = selected(subject(problem), (entry,))
        assert_unchanged(before, selected(after, (entry,)), "after the other batch entries were rewritten")
    else:
        assert_within_bound(subject, changed, after)


@attention_property(
    source="a row's result is a function of its own query, keys and values",
    hunts="split or tile choices that depend on the batch, in kernels that promise they do not",
    problems=in_batches,
)
def test_a_batch_entry_alone_gives_its_answer(subject: Subject, problem: Problem) -> None:
    """A batch entry solved alone gets its answer of the whole batch, bit for bit if the kernel is batch_invariant."""
    mine = np.s_[(at := int(randomness(problem).integers(problem.batch))) : at + 1]
    answer = subject(alone := problem.take("B", [at]))
    if subject.conventions.batch_invariant and compares_bits(subject):
        assert_unchanged(selected(subject(problem), (mine,)), answer, "after the other batch entries were left out")
    else:
        assert_within_bound(subject, alone, answer)


def answer_or_refusal(subject: Subject, problem: Problem, arrange: Callable[[Any], Any]) -> Answer | Raised:
    """Call a kernel with tensors laid in memory by ``arrange``; give its answer, or the error that the call raised.

    Raises :class:`CallFailed` where the kernel's process died or hung, which is no way to refuse a call.
    """
    try:
        return subject(problem, arrange=arrange)
    except Raised as refusal:
        return refusal


@attention_property(
    source=FUNCTION,
    hunts="packed strides assumed for a transposed view, rows read by another tensor's stride",
    needs=("strides",),
    problems=lambda subject: problems(subject, without=("empty",)),
    each_call=True,
)
def test_the_layout_in_memory_has_no_influence(subject: Subject, problem: Problem) -> None:
    """q, k, v, mask, bias in any layout (transposed, sliced from NaN buffers, mixed) give an answer within its bound.

    So do views of which the last stride is not 1, of all of q, k and v or of one, unless the kernel's call raises.
    """
    rng = randomness(problem)
    mixed = memory.each_its_own(rng)
    for arrange in (memory.swapped, memory.sliced, mixed):
        assert_within_bound(subject, problem, subject(problem, arrange=arrange, arrange_options=mixed))
    answer = answer_or_refusal(subject, problem, memory.each_its_own(rng, memory.OF_OTHER_LAST_STRIDE))
    if not isinstance(answer, Raised):
        assert_within_bound(subject, problem, answer)


@attention_property(
    source=FUNCTION,
    hunts="a stride of 0 taken for a packed one, a view copied by its storage",
    needs=("strides",),
    problems=in_batches,
    each_call=True,
)
def test_expanded_views_are_read_right(subject: Subject, problem: Problem) -> None:
    """Batch entries, and then heads too, that are one expanded with stride 0 are solved within the bound."""
    for axes in ("B", "BH"):
        firsts = {name: getattr(problem, name)[(slice(1),) * len(axes)] for name in ("q", "k", "v")}
        shapes = {name: getattr(problem, name).shape for name in firsts}
        equal = problem.replace(**{name: np.broadcast_to(x, shapes[name]).copy() for name, x in firsts.items()})
        assert_within_bound(subject, equal, subject(equal, arrange=subject.presentation.expanding(axes)))


@attention_property(
    source=FUNCTION + "; fla-org/flash-linear-attention#1080, facebookresearch/xformers#719",
    hunts="offsets of rows or of batch entries in 32 bits, whose product with a stride has no room there",
    needs=("strides",),
    problems=lambda subject: problems(subject, without=("empty",), regimes=TAME),
    each_call=True,
)
def test_rows_and_batch_entries_may_lie_far_apart(subject: Subject, problem: Problem) -> None:
    """Queries, keys and values whose rows, or whose batch entries, lie 2^31 elements apart are solved within the bound.

    They are views of memory of which the system commits what is touched; where it refuses, nothing is said, nor where
    the kernel's call raises, as that of a library whose strides have 32 bits may.
    """
    answers = [answer_or_refusal(subject, problem, arrange) for arrange in subject.presentation.spreading("SB")]
    for answer in answers:
        if not isinstance(answer, Raised):
            assert_within_bound(subject, problem, answer)
    if all(isinstance(answer, Raised) for answer in answers):
        raise NotTaken(f"it refuses both: {answers[0]}")


@attention_property(
    source="problem.Conventions.deterministic",
    hunts="races, uninitialized memory, atomic additions in a kernel that promises determinism",
    each_call=True,
)
def test_equal_calls_give_equal_answers(subject: Subject, problem: Problem) -> None:
    """Equal calls, again and again, give the same bits if the kernel is deterministic, and stay within the bound.

    The last of several calls is held to the bound too: some defects appear only after a number of calls.
    """
    first, *others = (subject(problem) for _ in range(CALLS))
    if subject.conventions.deterministic:
        for call, answer in enumerate(others, start=2):
            assert_unchanged(first, answer, f"in call {call} of the same problem")
    assert_within_bound(subject, problem, others[-1])


@attention_property(
    source=FUNCTION,
    hunts="answers, or what is made of options, stored under a shape or an address and used again for other contents",
    needs=("in_place",),
    problems=lambda subject: problems(subject, without=("empty",), regimes=TAME),
    each_call=True,
)
def test_old_answers_are_not_given_again(subject: Subject, problem: Problem) -> None:
    """Another problem in the memory of the first gets its own answer, and then the first problem its first answer.

    So does the first problem with other values of its options, such as lengths, slopes or a scale.
    """
    # Buffers that end with the last sequence have other shapes for other lengths, and so no memory in common.
    subject = replace(subject, choices={**subject.choices, "may_be_tight": False})
    arrange = memory.in_the_same_place(tensors=len(subject.presentation.tensors))
    first = subject(problem, arrange=arrange)
    for other in filter(None, (rewritten(problem), asked_otherwise(subject, problem))):
        assert_within_bound(subject, other, subject(other, arrange=arrange))
    again = subject(problem, arrange=arrange)
    assert_agree(subject, problem, first, again, "after another problem of the same shape was solved")


@attention_property(
    source=FUNCTION + "; what a caller has been given is the caller's",
    hunts="one buffer that is returned again and again, so that a later call overwrites an earlier answer",
    problems=lambda subject: problems(subject, without=("empty",), regimes=TAME),
    not_applicable=reason_to_overwrite,
    each_call=True,
)
def test_a_later_call_leaves_an_answer_alone(subject: Subject, problem: Problem) -> None:
    """An answer that is read after another problem was solved is what it was before, and within its bound."""
    other = rewritten(problem)
    assert_within_bound(subject, problem, replace(subject, between=lambda own: own(other))(problem))


@attention_property(
    source=FUNCTION,
    hunts="outputs or workspace that are not written and hold what the allocator left there",
    needs=("strides",),
    problems=lambda subject: problems(subject, without=("empty",)),
    each_call=True,
)
def test_every_element_of_the_output_is_written(subject: Subject, problem: Problem) -> None:
    """With NaN left in the freed memory around a call the answer is still within the bound."""

    def arrange(tensor: Any) -> Any:
        *rows, dim = tensor.shape
        return memory.after_freed_nan(tensor, [(*rows, dim), tuple(rows), (*rows, 2 * dim)])

    assert_within_bound(subject, problem, subject(problem, arrange=arrange))

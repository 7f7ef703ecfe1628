"""Long answers, judged in blocks of rows so that memory stays bounded: all rows, or a sample of each head.

Problems short enough for the theorems to evaluate all scores at once are judged in ``assertions``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from attn_spec.bounds.replay import replayed
from attn_spec.contract.presets import describe
from attn_spec.contract.readings import readings_of
from attn_spec.judgement import bound_terms
from attn_spec.judgement.long.blocks import RowJudgement, blocks_of, judge_parts, parts_of
from attn_spec.judgement.long.gradient_blocks import GradientJudgement, judge_gradient_parts
from attn_spec.judgement.long.gradient_parts import gradient_parts_of
from attn_spec.judgement.long.key_sample import KeySample
from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.quantities import QUANTITIES
from attn_spec.search.drawing import long_problems
from attn_spec.search.drawing.asked_shapes import described
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import Refutation, observe, observe_measured, observe_reading, observe_sample

if TYPE_CHECKING:
    from attn_spec.contract.contract import ResolvedContract
    from attn_spec.judgement.bound_terms import BoundTerm
    from attn_spec.judgement.worst import WorstElement
    from attn_spec.kernels.subject import Answer, Subject
    from attn_spec.problem.problem import Problem

Judged = TypeVar("Judged", bound=RowJudgement)

#: Approximate number of rows judged over all heads, and the limits of the number for one head.
ROWS, LEAST_ROWS, MOST_ROWS = 2**13, 32, 2**10
#: Approximate number of keys judged over all kv heads, within the same limits for one head.
KEYS = 2**12


def sample_of(problem: Problem) -> RowSample:
    """Return the sample of rows of each head that gives about ROWS rows over all heads."""
    return RowSample(_of_each(problem.batch * (1 if problem.projects else problem.query_heads), ROWS))


def _of_each(heads: int, of_all: int) -> int:
    """Return the number for each head that gives about ``of_all`` over all heads, within the limits for one head."""
    return min(max(of_all // max(heads, 1), LEAST_ROWS), MOST_ROWS)


def assert_rows_of_long_answer(
    subject: Subject, problem: Problem, answer: Answer, *quantities: str, sample: RowSample | None = None
) -> RowJudgement:
    """Raise :class:`Refutation` unless every element of the rows, all or a ``sample``, is within its bound.

    ``quantities`` are "output" and "lse", by default all in the answer. If the contract leaves a choice, one choice has
    to explain them all.
    """
    is_whole = sample is None or problem.query_length <= sample.rows
    judgement = judge_parts(
        parts_of(replayed(problem, subject.contract), together=is_whole, **answer),
        subject.contract,
        sample=sample,
        memory=long_problems.MEMORY // 2,
        conventions=subject.conventions,
    )
    return _assert_inside(subject, problem, judgement, quantities, in_part=sample is not None)


def assert_gradients_of_long_answer(
    subject: Subject, problem: Problem, dO: np.ndarray, found: Mapping[str, np.ndarray]
) -> GradientJudgement:
    """Raise :class:`Refutation` unless sampled elements of the gradients "dq", "dk", "dv" are within their bounds.

    dQ is judged at the rows of :func:`sample_of`, dK and dV at about KEYS keys.
    :class:`attn_spec.judgement.long.gradient_blocks.MemoryExceededError` is raised if they must be judged in one piece.
    """
    keys, sample = KeySample(_of_each(problem.batch * problem.kv_heads, KEYS)), sample_of(problem)
    is_whole = problem.query_length <= sample.rows and problem.key_length <= keys.keys
    judgement = judge_gradient_parts(
        gradient_parts_of(problem, dO, dict(found), together=is_whole),
        subject.contract,
        sample=sample,
        keys=keys,
        memory=long_problems.MEMORY // 2,
        conventions=subject.conventions,
    )
    return _assert_inside(subject, problem, judgement, (), in_part=True)


def sees_no_key(problem: Problem) -> bool:
    """Return whether some query of a long problem sees no key."""
    if not any(row.sees is not None and row.is_used(getattr(problem, name)) for name, row in OPTIONS.items()):
        return problem.key_length == 0
    every = np.arange(problem.query_length)
    return any(problem.rows(rows).blind_queries.any() for rows in blocks_of(problem, every, long_problems.MEMORY, 1))


def _assert_inside(
    subject: Subject, problem: Problem, judgement: Judged, quantities: tuple[str, ...], *, in_part: bool
) -> Judged:
    """Raise :class:`Refutation` if an element is outside its bound; report to the search which parts were judged."""
    for name, tally in judgement.tallies.items():
        if quantities and name not in quantities:
            continue
        observe(tally.ratio)
        observe_measured(tally.measured, tally.measured + tally.unmeasured)
        if tally.outside and tally.worst is not None:
            terms = partial(_terms, problem, judgement.contract, tally.worst)
            raise Refutation(f"{_text(tally.worst)}; looked at {judgement}", worst=tally.worst, bound=terms)
    if in_part and isinstance(problem.recipe, Recipe):
        observe_sample(f"{described(problem.recipe)}: {judgement}")
    if len(readings_of(subject.contract, problem)) > 1:
        observe_reading(describe(judgement.contract, problem.dtype))
    return judgement


def _terms(problem: Problem, reading: ResolvedContract, worst: WorstElement) -> Sequence[BoundTerm]:
    """Return the largest terms of the bound at the worst element; none for a gradient, a sum over a long problem."""
    is_forward = QUANTITIES[worst.quantity].made_by == "forward"
    return bound_terms.of_row(problem, reading, worst.quantity, worst.index) if is_forward else ()


def _text(worst: WorstElement) -> str:
    got, truth, allowed = (float.fromhex(x) for x in (worst.got, worst.truth, worst.allowed))
    place = f"{worst.quantity}[{', '.join(map(str, worst.index))}]"
    return (
        f"{place} is {got:.9g}; the truth is {truth:.9g}, allowed error {allowed:.3g}; {worst.outside} of "
        f"{worst.elements} are outside"
    )

"""Long answers, judged in blocks of rows so that memory stays bounded: all rows, or a sample of each head.

Where a problem is short enough for the theorems to look at all of its scores at once, ``assertions`` does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

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
from attn_spec.search import long_problems
from attn_spec.search.asked_shapes import described
from attn_spec.search.property import Refutation, observe, observe_measured, observe_reading, observe_sample
from attn_spec.search.regimes import Recipe

if TYPE_CHECKING:
    from attn_spec.contract.contract import ResolvedContract
    from attn_spec.judgement.bound_terms import BoundTerm
    from attn_spec.judgement.worst import WorstElement
    from attn_spec.kernels.subject import Answer, Subject
    from attn_spec.problem.problem import Problem

Judged = TypeVar("Judged", bound=RowJudgement)

#: Rows looked at of all heads together, about; of one head these at least, and at most.
ROWS, LEAST_ROWS, MOST_ROWS = 2**13, 32, 2**10
#: Keys looked at of all kv heads together, about, within the same limits.
KEYS = 2**12


def sample_of(problem: Problem) -> RowSample:
    """So many rows of each head that all heads together have about ROWS."""
    return RowSample(_of_each(problem.batch * (1 if problem.projects else problem.query_heads), ROWS))


def _of_each(heads: int, of_all: int) -> int:
    """How many of each head, where all heads together have about so many."""
    return min(max(of_all // max(heads, 1), LEAST_ROWS), MOST_ROWS)


def assert_rows_of_long_answer(
    subject: Subject, problem: Problem, answer: Answer, *quantities: str, sample: RowSample | None = None
) -> RowJudgement:
    """Raise :class:`Refutation` unless every element of the rows, all or a ``sample``, lies within its bound.

    ``quantities`` are "output" and "lse", by default all that there are. Under a contract that leaves a choice, one
    choice has to explain them all.
    """
    judgement = judge_parts(
        parts_of(problem, **answer),
        subject.contract,
        sample=sample,
        memory=long_problems.MEMORY // 2,
        conventions=subject.conventions,
    )
    return _assert_inside(subject, problem, judgement, quantities, in_part=sample is not None)


def assert_gradients_of_long_answer(
    subject: Subject, problem: Problem, dO: np.ndarray, found: Mapping[str, np.ndarray]
) -> GradientJudgement:
    """The same of gradients "dq", "dk", "dv": dQ of the rows of :func:`sample_of`, dK and dV of as many keys in all.

    Raises :class:`attn_spec.judgement.long.gradient_blocks.MemoryExceededError` where they have to be judged whole.
    """
    keys = KeySample(_of_each(problem.batch * problem.kv_heads, KEYS))
    parts = gradient_parts_of(problem, dO, dict(found))
    judgement = judge_gradient_parts(
        parts, subject.contract, sample=sample_of(problem), keys=keys, memory=long_problems.MEMORY // 2
    )
    return _assert_inside(subject, problem, judgement, (), in_part=True)


def sees_no_key(problem: Problem) -> bool:
    """Whether some query of a long problem sees no key."""
    if not any(row.sees is not None and row.is_used(getattr(problem, name)) for name, row in OPTIONS.items()):
        return problem.key_length == 0
    every = np.arange(problem.query_length)
    return any(problem.rows(rows).empty_rows.any() for rows in blocks_of(problem, every, long_problems.MEMORY, 1))


def _assert_inside(
    subject: Subject, problem: Problem, judgement: Judged, quantities: tuple[str, ...], *, in_part: bool
) -> Judged:
    """Raise :class:`Refutation` where an element lies outside; tell the search what was looked at in part."""
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
    """The terms that weigh most in what is allowed; of a gradient, which is a sum over a long problem, none."""
    is_forward = QUANTITIES[worst.quantity].made_by == "forward"
    return bound_terms.of_row(problem, reading, worst.quantity, worst.index) if is_forward else ()


def _text(worst: WorstElement) -> str:
    got, truth, allowed = (float.fromhex(x) for x in (worst.got, worst.truth, worst.allowed))
    place = f"{worst.quantity}[{', '.join(map(str, worst.index))}]"
    return (
        f"{place} is {got:.9g}; the truth is {truth:.9g}, allowed error {allowed:.3g}; {worst.outside} of "
        f"{worst.elements} are outside"
    )

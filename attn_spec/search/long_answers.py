"""Long answers, judged in blocks of rows so that memory stays bounded: all rows, or a sample of each head.

Where a problem is short enough for the theorems to look at all of its scores at once, ``assertions`` does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_spec.error.presets import describe
from attn_spec.error.readings import readings
from attn_spec.judgement.blocks import THEOREMS, judge_parts, parts_of
from attn_spec.judgement.row_sample import RowSample
from attn_spec.search.property import Refutation, observe, observe_reading

if TYPE_CHECKING:
    from attn_spec.judgement.blocks import RowJudgement
    from attn_spec.judgement.worst import WorstElement
    from attn_spec.kernels.subject import Answer, Subject
    from attn_spec.problem.problem import Problem

#: Bytes that a judgement may take, about.
MEMORY = 2**30
#: Rows looked at of all heads together, about; of one head these at least, and at most.
ROWS, LEAST_ROWS, MOST_ROWS = 2**13, 32, 2**10


def is_long(problem: Problem) -> bool:
    """Whether the theorems would take more than MEMORY for all rows at once."""
    return 8 * THEOREMS * int(np.prod(problem.score_shape, dtype=np.float64)) > MEMORY


def sample_of(problem: Problem) -> RowSample:
    """So many rows of each head that all heads together have about ROWS."""
    heads = problem.batch * (1 if problem.projects else problem.query_heads)
    return RowSample(min(max(ROWS // max(heads, 1), LEAST_ROWS), MOST_ROWS))


def assert_rows_of_long_answer(
    subject: Subject, problem: Problem, answer: Answer, *quantities: str, sample: RowSample | None = None
) -> RowJudgement:
    """Raise :class:`Refutation` unless every element of the rows, all or a ``sample``, lies within its bound.

    ``quantities`` are "output" and "lse", by default all that there are. Under a contract that leaves a choice, one
    choice has to explain them all.
    """
    agreed = subject.conventions
    judgement = judge_parts(
        parts_of(problem, **answer),
        subject.contract,
        sample=sample,
        memory=MEMORY // 2,
        lse_base=agreed.lse_base,
        empty_row=agreed.empty_row,
        empty_lse=agreed.empty_lse,
    )
    for name, tally in judgement.tallies.items():
        if quantities and name not in quantities:
            continue
        observe(tally.ratio)
        if tally.outside and tally.worst is not None:
            raise Refutation(f"{_text(tally.worst)}; looked at {judgement}", worst=tally.worst)
    if len(readings(subject.contract)) > 1:
        observe_reading(describe(judgement.contract, problem.dtype))
    return judgement


def _text(worst: WorstElement) -> str:
    got, truth, allowed = (float.fromhex(x) for x in (worst.got, worst.truth, worst.allowed))
    place = f"{worst.quantity}[{', '.join(map(str, worst.index))}]"
    return (
        f"{place} is {got:.9g}; the truth is {truth:.9g}, allowed error {allowed:.3g}; {worst.outside} of "
        f"{worst.elements} are outside"
    )

"""How a property speaks: it compares answers with the truth or with one another, and refutes.

Whether a claim is about bits or about bounds is decided here, once: bits are compared only for kernels that promise
to be deterministic and whose rescaling does not wait (a lazy kernel may let one row decide for its neighbors).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from attn_spec import measure
from attn_spec.formats import FORMATS
from attn_spec.property import Refutation, observe

if TYPE_CHECKING:
    from attn_spec.measure import Judgement
    from attn_spec.problem import Problem
    from attn_spec.subject import Answer, Subject


def judged(subject: Subject, problem: Problem, answer: Answer) -> Judgement:
    """Measure an answer against the truth of ``problem`` under the subject's contract and conventions."""
    agreed = subject.conventions
    return measure.judge(
        problem,
        subject.contract,
        output=answer.output,
        lse=answer.lse,
        lse_base=agreed.lse_base,
        empty_row=agreed.empty_row,
        empty_lse=agreed.empty_lse,
    )


def within_bound(subject: Subject, problem: Problem, answer: Answer, *quantities: str) -> Judgement:
    """Raise :class:`Refutation` unless every element lies within its bound; ``quantities`` defaults to all."""
    judgement = judged(subject, problem, answer)
    for measured in judgement.measurements:
        if quantities and measured.name not in quantities:
            continue
        observe(measured.ratio)
        if measured.outside.any():
            at, count = measured.worst, int(measured.outside.sum())
            text = f"{_place(measured.name, at)} is {measured.got[at]:.9g}; the truth is {measured.truth.value[at]:.9g}"
            text += f", allowed error {measured.allowed[at]:.3g}; {count} of {measured.outside.size} are outside"
            raise Refutation(text, measured)
    return judgement


def compares_bits(subject: Subject) -> bool:
    """Whether equal inputs give a row equal bits, whatever the rows beside it hold."""
    return subject.conventions.deterministic and subject.contract.reference_slack == 0


def unchanged(subject: Subject, before: Answer, after: Answer, what: str, rows: np.ndarray | None = None) -> None:
    """Raise :class:`Refutation` unless O and LSE hold the same numbers in ``rows`` (bool [B, Hq, Sq], default all).

    Zeros of either sign are the same number, and so are all NaN. ``what`` says what was done between the answers.
    The LSE of rows that hold -inf, +inf or NaN twice over is compared like any other.
    """
    rows = np.ones(before.output.shape[:3], dtype=bool) if rows is None else rows
    pairs = [("output", before.output, after.output, rows[..., None])]
    if before.lse is not None and after.lse is not None:
        pairs.append(("lse", before.lse, after.lse, rows))
    for name, old, new, compared in pairs:
        differs = compared & ~((old == new) | (np.isnan(old) & np.isnan(new)))
        if differs.any():
            at = tuple(int(n) for n in np.argwhere(differs)[0])
            change = f"{old[at]:.9g} ({old[at].hex()}) became {new[at]:.9g} ({new[at].hex()})"
            raise Refutation(f"{what}, {_place(name, at)} {change}; {int(differs.sum())} of {differs.size} changed")


def randomness(problem: Problem) -> np.random.Generator:
    """A generator seeded by the problem's values, so that a stored problem replays exactly."""
    digest = hashlib.sha256()
    for array in (problem.q, problem.k, problem.v):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(repr(array.shape).encode())
    return np.random.default_rng(int.from_bytes(digest.digest()[:8]))


def largest_key(subject: Subject, problem: Problem) -> float:
    """Magnitude below which the entries of a key overflow no score of this problem under the contract."""
    stages = ("score_accumulation", "stored_scores", "softmax")
    limit = min(FORMATS[problem.dtype].largest, *(subject.contract.format(stage).largest for stage in stages))
    reach = np.abs(problem.q).sum(axis=-1).max(initial=1.0) * max(1.0, abs(problem.scale_value))
    return limit / (16.0 * reach)


def _place(name: str, at: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, at))}]"

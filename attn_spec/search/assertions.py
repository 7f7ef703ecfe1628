"""Assertions for properties, which compare an answer with the truth, or two answers; they raise Refutation.

This module decides whether an assertion compares bits or bounds. Bits are compared only for kernels that declare
themselves deterministic and whose reference is the row maximum. A kernel with a lazy reference may let one row
influence its neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.bounds.operand_bounds import unknown_operands
from attn_spec.contract.presets import describe
from attn_spec.contract.readings import gradient_readings_of, readings, readings_of
from attn_spec.judgement import bound_terms, measure
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.judgement.other_contracts import contracts_that_hold, gradient_contracts_that_hold
from attn_spec.judgement.other_problems import explains, has_gradient, right_for, with_convention, within
from attn_spec.problem.conventions import OF_ANSWERS, OPEN
from attn_spec.problem.quantities import QUANTITIES
from attn_spec.problem.traits import named_by, replaces_score
from attn_spec.search.drawing import strategies
from attn_spec.search.drawing.long_problems import is_long
from attn_spec.search.long_answers import assert_rows_of_long_answer
from attn_spec.search.property import Refutation, observe, observe_measured, observe_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from hypothesis.strategies import SearchStrategy

    from attn_spec.contract.contract import ResolvedContract
    from attn_spec.judgement.bound_terms import BoundTerm
    from attn_spec.judgement.long.blocks import RowJudgement
    from attn_spec.judgement.measure import Judgement, Measurement
    from attn_spec.kernels.subject import Answer, Subject
    from attn_spec.problem.problem import Problem


def judged(subject: Subject, problem: Problem, answer: Answer, contract: ResolvedContract | None = None) -> Judgement:
    """Return the judgement of an answer to ``problem``, under the subject's conventions and its contract or
    ``contract``.
    """
    return measure.judge(problem, contract or subject.contract, **answer, conventions=subject.conventions)


def assert_within_bound(
    subject: Subject, problem: Problem, answer: Answer, *quantities: str
) -> Judgement | RowJudgement:
    """Raise :class:`Refutation` unless every element is within its bound; ``quantities`` defaults to all.

    A long answer is judged in blocks of rows, which takes bounded memory and gives the same verdict.
    """
    judge = assert_rows_of_long_answer if is_long(problem) else measured_within_bound
    return judge(subject, problem, answer, *quantities)


def measured_within_bound(subject: Subject, problem: Problem, answer: Answer, *quantities: str) -> Judgement:
    """Return the measurement of every element. Raises :class:`Refutation` as :func:`assert_within_bound` does."""
    judgement = judged(subject, problem, answer)
    return _assert_inside(
        judgement,
        quantities,
        lambda measured: _hints(subject, problem, answer, measured),
        lambda measured: bound_terms.of_row(problem, judgement.contract, measured.name, measured.worst),
    )


def assert_rows_within_bound(subject: Subject, problem: Problem, rows: Answer) -> None:
    """Raise :class:`Refutation` unless rows that were computed among others are within their bounds.

    ``problem`` has only these rows and the keys that they see. In the larger call the edges of tiles may differ and
    split these keys into one more tile. Nothing is asserted if fully masked tiles also cause roundings.
    """
    contract = _one_tile_more(subject.contract, problem.key_length)
    if not any(_rounds_in_hidden_tiles(problem, reading) for reading in readings_of(contract, problem)):
        judgement = judged(subject, problem, rows, contract)
        constant = subject.conventions.empty_rows_are_constant  # a mean is over all keys of the larger call
        compared = judgement if constant else judgement.of_rows_with_keys()
        _assert_inside(compared, (), lambda _: right_for(problem, lambda other: judged(subject, other, rows, contract)))


def _rounds_in_hidden_tiles(problem: Problem, contract: ResolvedContract) -> bool:
    """Return whether a tile without a visible key may rescale, renormalize, or change the reference of scores."""
    moves = problem.alibi_slopes is not None and contract.alibi == "positions"
    return (
        moves
        or not contract.exp_of_zero_is_one
        or contract.normalize == "every_tile"
        or contract.reference == "upper_bound"
    )


def _one_tile_more(contract: ResolvedContract, keys: int) -> ResolvedContract:
    """Return the contract with smaller tiles, of which ``keys`` keys fill at least one more; a tile of whole rows
    stays.
    """
    tile = None if contract.kv_tile is None else max(min(contract.kv_tile, keys) // 2, 1)
    others = tuple(_one_tile_more(other, keys) for other in contract.alternatives)
    return replace(contract, kv_tile=tile, alternatives=others)


def differentiable(subject: Subject, **drawn: Any) -> SearchStrategy[Problem]:
    """Draw problems, as ``strategies.problems`` does, whose gradients are the same under every convention of the
    subject.

    A query that sees no key has gradients of 0 if its output is 0, whatever the inputs. If its output is a mean of V or
    NaN it has others. The gradient of a bias or of sinks is never a sum of several gradients from the kernel. No
    operand of a score may overflow.
    """
    found = strategies.problems(subject, backward=True, **drawn)
    if not subject.presentation.calls_once or subject.kernel.merge:
        summed = subject.sums_gradient_of
        found = found.filter(lambda problem: not (summed("bias", problem) or summed("sinks", problem)))
    if named_by([replaces_score]) & subject.kernel.supports:
        found = found.filter(lambda problem: not has_unknown_operands(subject, problem))
    zero = subject.conventions.outputs_without_keys == {"zero"}
    return found if zero else found.filter(lambda problem: not problem.blind_queries.any())


def without_values(subject: Subject) -> str:
    """Return why no gradient of the kernel is that of values, or of keys by scores alone; empty if one is."""
    return "" if "dv" in subject.presentation.key_gradients else "its keys are values too"


def has_unknown_operands(subject: Subject, problem: Problem) -> bool:
    """Return whether the operand of some query or key, visible or masked, may overflow; q and k themselves do not."""
    analysis, definite = analysis_of(problem), readings_of(subject.contract, problem)
    unknown = (of.any() for contract in definite for of in unknown_operands(analysis.intermediates, contract))
    return bool(problem.score_option) and any(unknown)


def assert_gradients_within_bound(
    subject: Subject, problem: Problem, dO: np.ndarray, found: Mapping[str, np.ndarray], dL: np.ndarray | None = None
) -> Judgement:
    """Raise :class:`Refutation` unless all gradients ``found``, by name, are within their bounds.

    Names are "dq", "dk", "dv", "dkv", "dbias"; dO and dL are the cotangents of the output and of the log-sum-exp.
    """

    def judge(other: Problem) -> Judgement | None:
        same = all(has_gradient(other, name, x.shape) for name, x in found.items())
        return (
            measure.judge_gradients(other, subject.contract, dO, found, dL, conventions=subject.conventions)
            if same
            else None
        )

    def hints(measured: Measurement) -> list[str]:
        contracts = gradient_contracts_that_hold(subject.contract, problem, dO, found, dL)
        zero = [] if measured.got.any() else [f"{measured.name} is zero everywhere, as where no gradient reaches it"]
        return [*zero, *right_for(problem, judge), *starmap(within, contracts.items())]

    judgement = measure.judge_gradients(problem, subject.contract, dO, found, dL, conventions=subject.conventions)

    def terms(measurement: Measurement) -> Sequence[BoundTerm]:
        return bound_terms.of_gradient(problem, judgement.contract, (dO, dL), measurement.name, measurement.worst)

    return _assert_inside(judgement, (), hints, terms)


@np.errstate(all="ignore")
def gradient_errors_allowed(subject: Subject, problem: Problem, dO: np.ndarray) -> dict[str, np.ndarray]:
    """Return the largest error allowed for each element of each gradient, by name; inf where the contract is silent.

    The function serves laws that relate gradients to one another: it does not evaluate true gradients.
    """
    known = gradient_analysis_of(problem, dO)
    bounds = [known.bound(reading) for reading in gradient_readings_of(subject.contract, problem)]
    return {
        name: np.maximum.reduce([np.where(bound.domain_of(name), bound.allowed[name], np.inf) for bound in bounds])
        for name in known.backward.gradients
    }


def _assert_inside(
    judgement: Judgement,
    quantities: tuple[str, ...],
    explain: Callable[[Measurement], Sequence[str]] = lambda measured: (),
    terms: Callable[[Measurement], Sequence[BoundTerm]] = lambda measured: (),
) -> Judgement:
    for measured in judgement.measurements:
        if quantities and measured.name not in quantities:
            continue
        observe(measured.ratio)
        observe_measured(int((measured.measured & measured.asked).sum()), int(measured.asked.sum()))
        if measured.outside.any():
            at, count = measured.worst, int(measured.outside.sum())
            text = f"{_place(measured.name, at)} is {measured.got[at]:.9g}; the truth is {measured.truth.value[at]:.9g}"
            text += f", allowed error {measured.allowed[at]:.3g}; {count} of {measured.outside.size} are outside"
            raise Refutation(text, measured, partial(explain, measured), bound=partial(terms, measured))
    if judgement.chosen:
        observe_reading(describe(judgement.contract, judgement.problem.dtype))
    return judgement


def _hints(subject: Subject, problem: Problem, answer: Answer, measured: Measurement) -> list[str]:
    """Return declarations, or other problems, that would explain an answer outside its bound."""
    own = subject.conventions
    deciding = {name: row for name, row in OF_ANSWERS.items() if row.shows(problem)}
    others = [(name, other) for name, row in deciding.items() for other in row.choices if other != getattr(own, name)]
    found = [
        with_convention(name, other)
        for name, other in others
        if explains(judged(subject.keeping(**{name: other}), problem, answer))
    ]
    rows = problem.empty_output_rows if measured.name == "output" else problem.empty_rows
    wrong = measured.outside.reshape(*measured.outside.shape[:3], -1).any(axis=-1)
    if not (wrong & ~rows).any():  # all that is wrong are rows without keys
        b, _, i, *_ = measured.worst
        behind = not problem.there[b, 0, i]
        what = "row is behind its sequence" if behind else "query sees no key"
        of_rows = [row for row in deciding.values() if row.without_keys and row.behind_lengths == behind]
        now = ", ".join(f"{row.name}={getattr(own, row.name)!r}" for row in of_rows if measured.name in row.decides)
        return found or [f"this {what}; if that answer is meant, declare a convention (now {now})"]
    found += starmap(within, contracts_that_hold(subject.contract, problem, **answer, conventions=own).items())
    return found + right_for(problem, lambda other: judged(subject, other, answer))


def rows_in_domain(subject: Subject, problem: Problem) -> np.ndarray:
    """Return the rows of the output, bool [B, Hq or 1, Sq], that see a key and that all readings of the contract cover.

    The search is told how many of the rows that see a key these are.
    """
    bounds = [analysis_of(problem).truth_and_bound(contract)[1] for contract in readings_of(subject.contract, problem)]
    seen = ~problem.empty_output_rows
    inside: np.ndarray = np.logical_and.reduce([bound.domain_of("output") for bound in bounds]) & seen
    observe_measured(int(inside.sum()), int(seen.sum()))
    return inside


def compares_bits(subject: Subject) -> bool:
    """Return whether equal inputs give a row equal bits, whatever other rows and masked keys contain."""
    own_maximum = all(
        contract.reference_slack == 0 and contract.reference != "upper_bound" for contract in readings(subject.contract)
    )
    return subject.conventions.deterministic and own_maximum


def selected(answer: Answer, index: tuple[slice, ...]) -> Answer:
    """Return the part of an answer at an index into [B, Hq, Sq]."""
    return {name: values[index] for name, values in answer.items()}


def decided_rows(subject: Subject, problem: Problem) -> np.ndarray:
    """Return the rows [B, Hq, Sq] whose output is decided: a convention may leave rows without a visible key open."""
    return ~subject.conventions.blind_queries(problem)[OPEN]


def assert_kept(  # noqa: PLR0917  (a subject, its problem, and what assert_unchanged takes)
    subject: Subject, problem: Problem, before: Answer, after: Answer, what: str, rows: np.ndarray | None = None
) -> None:
    """Raise :class:`Refutation` unless rows have the answer that they had before numbers were replaced.

    No row among ``rows`` (bool [B, Hq, Sq], default all) sees such a number, so that truth and bounds stay those of
    ``problem``, which has the numbers before. A kernel whose bits are compared must keep its bits. One that may add in
    another order, or subtract another reference, must stay within these bounds: they hold for any order, and for any
    reference between the maximum of a row and the one that ``problem`` allows. Other rows are not looked at.
    """
    if compares_bits(subject):
        assert_unchanged(before, after, what, rows)
        return
    mixed = {name: np.where(_rows_of(name, old, rows), after[name], old) for name, old in before.items()}
    assert_within_bound(subject, problem, mixed)


def assert_unchanged(before: Answer, after: Answer, what: str, rows: np.ndarray | None = None) -> None:
    """Raise :class:`Refutation` unless O and LSE have the same numbers in ``rows`` (bool [B, Hq, Sq], default all).

    Zeros of either sign are the same number, and so are all NaN. ``what`` says what was done between the answers.
    """
    for name, old in before.items():
        _assert_same_numbers(what, name, old, after[name], _rows_of(name, old, rows))


def _rows_of(name: str, values: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Return rows (bool [B, Hq, Sq], None for all) as a bool array that broadcasts to a quantity."""
    of_name: np.ndarray = np.ones(tuple(values.shape[:3]), dtype=bool) if rows is None else rows
    if values.shape[1] != of_name.shape[1]:  # a row of a layer's output has contributions of all heads
        of_name = np.all(of_name, axis=1, keepdims=True)
    return of_name[..., None] if QUANTITIES[name].has_rows else of_name


def assert_gradients_unchanged(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], what: str) -> None:
    """Raise :class:`Refutation` unless gradients by name have the same numbers, as :func:`assert_unchanged` compares
    them.
    """
    for name, old in before.items():
        _assert_same_numbers(what, name, old, after[name], np.ones(old.shape, dtype=bool))


def _place(name: str, at: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, at))}]"


def _assert_same_numbers(what: str, name: str, old: np.ndarray, new: np.ndarray, compared: np.ndarray) -> None:
    differs = compared & ~((old == new) | (np.isnan(old) & np.isnan(new)))
    if differs.any():
        at = tuple(int(n) for n in np.argwhere(differs)[0])
        change = f"{old[at]:.9g} ({old[at].hex()}) became {new[at]:.9g} ({new[at].hex()})"
        raise Refutation(f"{what}, {_place(name, at)} {change}; {int(differs.sum())} of {differs.size} changed")

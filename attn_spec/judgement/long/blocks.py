"""Judgement of long answers, head by head in blocks of query rows of bounded memory, for all rows or a sample.

A row of an answer depends on that row of the query and on all keys, but on no other row. Most rows are cleared at a
glance. The theorems decide on the others, and on the row of each block that came nearest to its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.readings import readings_of
from attn_spec.judgement.analysis import Analysis
from attn_spec.judgement.best_reading import best
from attn_spec.judgement.long.engine import Engine, engine_of
from attn_spec.judgement.long.glance import is_plain, knows, shares
from attn_spec.judgement.long.row_sample import TOLD, RowSample, Sampled, chance, missed
from attn_spec.judgement.measure import Judgement, judge
from attn_spec.judgement.planted_errors import Power
from attn_spec.judgement.worst import WorstElement, worst_element
from attn_spec.problem.conventions import DEFAULTS, Conventions
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import QUANTITIES

#: Largest number of float64 arrays [rows, Sk] that a glance holds at a time, and that the theorems hold.
GLANCE, THEOREMS = 6, 64
#: Bytes for these arrays if the caller names no limit.
MEMORY = 2**28
#: Number of rows that the theorems decide on before the judgement of a refuted answer ends.
ENOUGH = 1024

#: Largest number of scores, or of columns of all rows, of heads that are judged together: the theorems take as long for
#: one head of few.
TOGETHER = 2**15
#: Least number of kv heads that are judged together.
MANY = 4

#: Answer at some rows, by name: "output" [B, H, rows, Dv], "lse" [B, H, rows].
Answer = dict[str, np.ndarray]


@dataclass(frozen=True)
class Part:
    """One head of a problem, [1, 1, ..], or one batch entry of a layer; or several heads whose rows are all there."""

    problem: Problem
    #: Batch entry and head, the first ones of several.
    at: tuple[int, int]
    #: Function from an index of rows to the answer at these rows.
    answer: Callable[[np.ndarray], Answer]
    #: Log-sum-exp of all rows [Sq], if one is known.
    lse: np.ndarray | None = None

    @property
    def heads(self) -> int:
        """Number of heads whose rows are counted; a layer's count once."""
        return self.problem.batch * (1 if self.problem.projects else self.problem.query_heads)


@dataclass(kw_only=True)
class Tally:
    """Results for one quantity, over all parts of the answer together."""

    name: str
    elements: int = 0
    #: Number of elements that the contract is silent about, since they may overflow.
    unmeasured: int = 0
    #: Number of elements whose answer no convention decides.
    undecided: int = 0
    outside: int = 0
    rows_outside: int = 0
    #: Largest error / bound in rows that the theorems decided on.
    ratio: float = 0.0
    #: Largest error of keys, relative to the part of the allowed error that cleared them at a glance.
    share: float = 0.0
    nearest: WorstElement | None = None
    #: Index of the first element that the contract is silent about.
    silent_at: tuple[int, ...] | None = None

    def add(
        self, judgement: Judgement, at: tuple[int, int], rows: np.ndarray, cleared: np.ndarray | None = None
    ) -> None:
        """Count the elements of some rows of a part by their judgement.

        Rows that were ``cleared`` at a glance, bool [B, H, rows], are inside, whatever the theorems say of them.
        """
        (measurement,) = (measurement for measurement in judgement.measurements if measurement.name == self.name)
        silent = measurement.asked & ~measurement.measured
        if cleared is not None:
            silent &= ~cleared.reshape(*cleared.shape, *[1] * (silent.ndim - cleared.ndim))
        if silent.any() and self.silent_at is None:
            b, h, i, *column = np.argwhere(silent)[0]
            self.silent_at = (at[0] + int(b), at[1] + int(h), int(rows[i]), *map(int, column))
        self.unmeasured += int(silent.sum())
        self.undecided += int((~measurement.asked).sum())
        if not measurement.measured.any():
            return
        found = worst_element(measurement)
        if self.nearest is None or (found.outside > 0, measurement.ratio) > (self.outside > 0, self.ratio):
            b, h, i, *column = found.index
            self.nearest = replace(found, index=(at[0] + b, at[1] + h, int(rows[i]), *column))
        self.outside += found.outside
        self.rows_outside += found.rows
        self.ratio = max(self.ratio, measurement.ratio)

    @property
    def measured(self) -> int:
        """Number of elements that the contract covers."""
        return self.elements - self.unmeasured - self.undecided

    @property
    def left_out(self) -> list[str]:
        """Texts that say which elements were not judged."""
        counts = ((self.unmeasured, ""), (self.undecided, " in rows that see no key"))
        return [f"{count:,} of {self.elements:,} elements of {self.name}{where}" for count, where in counts if count]

    @property
    def worst(self) -> WorstElement | None:
        """Element with the largest ratio, with the number of elements outside in all parts."""
        if self.nearest is None:
            return None
        return replace(self.nearest, outside=self.outside, elements=self.elements, rows=self.rows_outside)


@dataclass(kw_only=True, repr=False)
class RowJudgement:
    """Verdict on some rows, or all, of a long answer."""

    #: Reading of the declared contract that explains the answer best.
    contract: ResolvedContract
    #: Results by quantity.
    tallies: dict[str, Tally] = field(default_factory=dict)
    #: Number of rows of all heads that were judged.
    rows: int = 0
    #: Number of rows of all heads.
    of: int = 0
    #: Number of judged rows that were drawn at random.
    drawn: int = 0
    #: Least share of a head's rows that were drawn at random.
    least_drawn: Fraction = Fraction(1)
    #: Number of rows that the theorems decided on; the others were cleared at a glance.
    decided: int = 0
    #: Power of the verdict, if it was asked for.
    power: Power | None = None

    @property
    def refuted(self) -> bool:
        """True if some element is outside its bound for certain."""
        return any(tally.outside for tally in self.tallies.values())

    @property
    def exercised(self) -> bool:
        """True if any element was measured."""
        return any(tally.measured for tally in self.tallies.values())

    @property
    def silent(self) -> int:
        """Number of sampled elements that no reading of the contract covers."""
        return sum(tally.unmeasured for tally in self.tallies.values())

    @property
    def silent_share(self) -> float:
        """Share of silent elements among the sampled ones, without those whose answer no convention decides."""
        asked = sum(tally.elements - tally.undecided for tally in self.tallies.values())
        return self.silent / asked if asked else 0.0

    @property
    def ratio(self) -> float:
        """Largest error / bound that the theorems saw; rows that were cleared at a glance are inside their bounds."""
        return max((tally.ratio for tally in self.tallies.values()), default=0.0)

    @property
    def worst(self) -> WorstElement | None:
        """Worst element over all quantities."""
        tallies = sorted(self.tallies.values(), key=lambda tally: (tally.outside > 0, tally.ratio))
        return tallies[-1].worst if tallies else None

    def missed(self, share: float) -> float:
        """Return an upper bound on the probability that no judged row is among a ``share`` of all rows; 0 if all were
        judged.
        """
        return 0.0 if self.rows == self.of else missed(share, self.telling)

    @property
    def telling(self) -> int:
        """Number of random rows that :func:`row_sample.missed` counts: the least share of all heads, of all rows."""
        return int(self.least_drawn * self.of)

    def __repr__(self) -> str:
        said = f"{', '.join(self.tallies)}: up to {self.ratio:.3g} of the error allowed, {self}"
        return (
            f"{type(self).__name__}({said})" if self.power is None else f"{type(self).__name__}({said}; {self.power})"
        )

    def __str__(self) -> str:
        """Return in one sentence what was sampled, and which elements of it were not judged."""
        left = [words for tally in self.tallies.values() for words in tally.left_out]
        return f"{self._looked_at}; {', '.join(left)} not judged" if left else self._looked_at

    @property
    def _looked_at(self) -> str:
        if self.rows == self.of:
            return f"all {self.of} rows"
        if self.refuted:  # the judgement may have ended early
            return f"{self.rows} of {self.of} rows"
        return f"{self.rows} of {self.of} rows, {self.drawn} of them at random: {chance(TOLD, self.telling)}"


def judge_parts(
    parts: Sequence[Part] | Callable[[], Iterator[Part]],
    contract: ResolvedContract,
    *,
    sample: RowSample | None = None,
    memory: int = MEMORY,
    engine: str = "numpy",
    conventions: Conventions = DEFAULTS,
) -> RowJudgement:
    """Compare the rows of all parts with the truth, under a resolved contract: the rows of a ``sample``, or all.

    ``memory`` is about the number of bytes held at a time, beside the parts. ``conventions`` are as for
    :func:`measure.judge`. ``engine`` evaluates the glance, as "torch:cuda". ``parts`` are asked for once for each
    reading.

    If the contract leaves a choice open, one choice has to explain all parts. The judgement of a refuted answer ends
    after ENOUGH rows. Raises :class:`engine.EngineError` for an unknown engine.
    """
    how: dict[str, Any] = {"memory": memory, "engine": engine_of(engine), "conventions": conventions}

    def judged(reading: ResolvedContract) -> RowJudgement:
        return _judged(parts() if callable(parts) else iter(parts), reading, sample, **how)

    return best(judged, readings_of(contract, problem_of(parts)))


def problem_of(parts: Sequence[Any] | Callable[[], Iterator[Any]]) -> Problem | None:
    """Return the problem of the first part, for the facts that all parts of a call share; None if there is no part."""
    first = next(iter(parts() if callable(parts) else parts), None)
    return None if first is None else first.problem


def _judged(parts: Iterator[Part], contract: ResolvedContract, sample: RowSample | None, **how: Any) -> RowJudgement:
    found = RowJudgement(contract=contract)
    for number, part in enumerate(parts):
        there, behind = (np.flatnonzero(x) for x in (part.problem.there[0, 0], ~part.problem.there[0, 0]))
        n = len(there)
        lse = None if part.lse is None else part.lse[:n]
        chosen = Sampled(there, n, n) if sample is None else sample.of(_first(part.problem, n), number, lse)
        if how["conventions"].unused_rows == "zero" and len(behind):
            _add_unused(found, part, behind, how["conventions"], how["memory"])
        found.of += part.heads * n
        arrays = GLANCE if is_plain(part.problem) else THEOREMS
        for block in blocks_of(part.problem, chosen.index, how["memory"], arrays):
            if not (found.refuted and found.decided >= ENOUGH):
                _add(found, part, block, **how)
                found.rows += part.heads * len(block)
        found.drawn += part.heads * chosen.drawn
        found.least_drawn = min(found.least_drawn, chosen.share_drawn)
    return found


def _first(problem: Problem, count: int) -> Problem:
    """Return the problem of the first queries, those that are there."""
    return problem if count == problem.query_length else problem.rows(np.arange(count))


def _add_unused(found: RowJudgement, part: Part, rows: np.ndarray, conventions: Conventions, memory: int) -> None:
    """Judge rows behind the length of their sequence, which must be 0; of a row of zeros no key matters."""
    output = part.answer(rows).get("output")
    if output is not None:
        tally = found.tallies.setdefault("output", Tally(name="output"))
        tally.elements += output.size
        wrong = (output != 0).any(axis=(0, 1, 3))
        groups = [(part.problem.take("K", []), np.flatnonzero(~wrong))]
        groups += [(part.problem, few) for few in blocks_of(part.problem, np.flatnonzero(wrong), memory, THEOREMS)]
        for problem, few in groups:
            known = Analysis(problem.rows(rows[few]))
            judgement = judge(known, found.contract, output=output[:, :, few], conventions=conventions)
            tally.add(judgement, part.at, rows[few])
    found.of, found.rows = found.of + len(rows), found.rows + len(rows)
    found.decided += len(rows)


def _add(
    found: RowJudgement,
    part: Part,
    rows: np.ndarray,
    *,
    memory: int,
    engine: Engine,
    conventions: Conventions,
) -> None:
    """Judge a block of rows, and add the results."""
    answer = part.answer(rows)
    for name, values in answer.items():
        found.tallies.setdefault(name, Tally(name=name)).elements += values.size
    open_, cleared = np.arange(len(rows)), None
    if is_plain(part.problem) and knows(conventions):
        each = shares(part.problem.rows(rows), found.contract, answer, conventions, engine)
        share, cleared = each.max(axis=(0, 1), initial=0.0), each <= 1
        nearest = np.where(share <= 1, share, -1.0).argmax()
        open_ = np.flatnonzero(~(share <= 1) | (open_ == nearest))
    for few in blocks_of(part.problem, open_, memory, THEOREMS):
        known = Analysis(part.problem.rows(rows[few]))
        own = {name: x[:, :, few] for name, x in answer.items()}
        judgement = judge(known, found.contract, **own, conventions=conventions)
        for tally in found.tallies.values():
            tally.add(judgement, part.at, rows[few], None if cleared is None else cleared[:, :, few])
        found.decided += part.heads * len(few)


def blocks_of(
    problem: Problem, index: np.ndarray, memory: int, arrays: int, most: int | None = None
) -> Iterator[np.ndarray]:
    """Yield consecutive rows of an index, from one to ``most``, as many as fit the memory with so many ``arrays``."""
    heads = problem.batch * problem.query_heads
    count = max(memory // (8 * arrays * heads * max(problem.key_length, 1)), 1)
    count = min(count, most or count)
    for start in range(0, len(index), count):
        yield index[start : start + count]


def parts_of(problem: Problem, *, together: bool = False, **answer: np.ndarray) -> list[Part]:
    """Return the parts of a problem and of its answer: "output" [B, Hq, Sq, Dv], "lse" [B, Hq, Sq].

    With ``together``, for a judgement of all rows, heads of few scores are one part. Raises ValueError for another
    quantity.
    """
    unknown = answer.keys() - {name for name, row in QUANTITIES.items() if row.made_by == "forward"}
    if unknown:
        raise ValueError(f"an answer may have output and lse, not {', '.join(sorted(unknown))}")
    if together and (found := heads_together(problem)):
        return [_several(problem, entries, groups, answer) for entries, groups in found]
    return [_part(problem, b, h, answer) for b in range(problem.batch) for h in _heads(problem)]


def heads_together(problem: Problem) -> list[tuple[range, range]]:
    """Return batch entries and kv heads that are judged together; none if single ones have scores enough.

    Nor are those of a layer, or of a problem of which some rows are not there.
    """
    if problem.projects or not problem.there.all():
        return []
    rows, width = problem.group * problem.query_length, max(problem.q.shape[3], problem.v.shape[3])
    return heads_of_few(problem.batch, problem.kv_heads, rows=rows, keys=problem.key_length, width=width)


def heads_of_few(batch: int, kv_heads: int, *, rows: int, keys: int, width: int) -> list[tuple[range, range]]:
    """Return batch entries and kv heads that are judged together, with ``rows`` queries, ``keys`` and columns each."""
    groups = TOGETHER // max(rows * keys, (rows + keys) * width, 1)
    if groups < MANY:
        return []
    entries, of_batch, of_heads = max(groups // max(kv_heads, 1), 1), range(batch), range(kv_heads)
    return [
        (of_batch[b : b + entries], of_heads[g : g + groups]) for b in of_batch[::entries] for g in of_heads[::groups]
    ]


def _heads(problem: Problem) -> range:
    return range(1 if problem.projects else problem.query_heads)


def _part(problem: Problem, b: int, h: int, answer: dict[str, np.ndarray]) -> Part:
    one = problem.take("B", [b])
    if problem.projects:
        return Part(one, (b, 0), lambda rows: {name: x[b : b + 1][:, :, rows] for name, x in answer.items()})
    head = one.head(h)
    lse = answer["lse"][b, h] if "lse" in answer else None
    return Part(
        head, (b, h), lambda rows: {name: x[b : b + 1, h : h + 1][:, :, rows] for name, x in answer.items()}, lse
    )


def _several(problem: Problem, entries: range, groups: range, answer: dict[str, np.ndarray]) -> Part:
    """Return some batch entries and kv heads, with the query heads of these, as one part."""
    first, last = groups.start * problem.group, groups.stop * problem.group
    own = {name: x[entries.start : entries.stop, first:last] for name, x in answer.items()}
    several = problem.take("B", entries).take("H", groups)
    return Part(several, (entries.start, first), lambda rows: {name: x[:, :, rows] for name, x in own.items()})

"""The power of the suite, measured: mutants, the peers' rules on the same mutants, false alarms, detection limits.

``attn-spec teeth`` runs all of it, in several processes, and writes a page, its Markdown and its rows.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from attn_spec.profiles import PROFILES
from attn_spec.verdict import Verdict

from . import false_alarms, limits, mutants
from .contest import Outcome, contest
from .false_alarms import Alarms, FalseAlarm
from .kill_matrix import Cell, Kill, catalogue, first_kill, row_of_matrix
from .limits import Power

#: Version of the document.
SCHEMA = 1
#: What every property has for every mutant: the fewest problems that the profile ci takes for a verdict.
PROFILE = replace(PROFILES["ci"], examples=PROFILES["ci"].floor)
#: Examples over sound kernels, and how many of them make one task.
EXAMPLES, SHARE = 20_000, 1_000
#: Seeds for each point of a curve of power, and multiply-adds for each seed.
TRIALS, WORK = 3, 2**24


class TeethError(Exception):
    """The measurement cannot be made or read; the text says why and what to do next."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the page says of a mutant before anything is measured."""

    id: str
    family: str
    story: str
    source: str
    dtype: str
    named_by: str


@dataclass(kw_only=True)
class Teeth:
    """Everything that was measured."""

    environment: dict[str, str]
    properties: list[str]
    mutants: list[Told] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    alarms: list[Alarms] = field(default_factory=list)
    powers: list[Power] = field(default_factory=list)

    def to_json(self) -> str:
        """The document, a line for each row."""
        head = {"schema": SCHEMA, "environment": self.environment, "properties": self.properties}
        parts = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        for name in _ROWS:
            lines = ",\n".join(json.dumps(asdict(row)) for row in getattr(self, name))
            parts.append(f'"{name}": [\n{lines}\n]')
        return "{" + ",\n".join(parts) + "}\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of :meth:`to_json`. Raises :class:`TeethError`."""
        try:
            document = json.loads(text)
            if document.pop("schema") != SCHEMA:
                raise TeethError(f"the document is not of schema {SCHEMA}; measure again")
            for cell in (*document["cells"], *document["kills"]):
                cell["verdict"] = Verdict(cell["verdict"])
            for run in document["alarms"]:
                run["refuted"] = [FalseAlarm(**alarm) for alarm in run["refuted"]]
            rows = {name: [made(**row) for row in document.pop(name)] for name, made in _ROWS.items()}
            return cls(**document, **rows)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TeethError(f"not a document that `attn-spec teeth` wrote ({error}); measure again") from error


_ROWS: dict[str, Any] = {
    "mutants": Told,
    "cells": Cell,
    "kills": Kill,
    "outcomes": Outcome,
    "alarms": Alarms,
    "powers": Power,
}

#: Is told how many tasks of how many are done, and which one was.
Watch = Callable[[int, int, str], None]
#: What a task adds to the document: rows by the name of their list.
Rows = dict[str, list[Any]]
Task = tuple[str, Callable[..., Rows], tuple[Any, ...]]


def measure(*, sample: int | None, budget: int, workers: int, seed: int, watch: Watch) -> Teeth:
    """Measure everything, or a stratified sample of the mutants and the same share of the rest.

    Raises :class:`TeethError`.
    """
    zoo = chosen(sample, seed)
    made = Teeth(environment={}, properties=[claim.id for claim in catalogue()])
    made.mutants = [_told(mutant) for mutant in zoo]
    tasks = list(_tasks(zoo, budget, seed, share=len(zoo) / len(mutants.load_all()[0])))
    for done, (name, rows) in enumerate(_run(tasks, workers), start=1):
        for kind, found in rows.items():
            getattr(made, kind).extend(found)
        watch(done, len(tasks), name)
    _in_order(made)
    return made


def chosen(sample: int | None, seed: int) -> list[mutants.Mutant]:
    """All mutants, or ``sample`` of them dealt over the families in turn. Raises :class:`TeethError`."""
    zoo = list(mutants.load_all()[0].values())
    if sample is None:
        return zoo
    if not 1 <= sample <= len(zoo):
        raise TeethError(f"a sample holds 1 to {len(zoo)} mutants, not {sample}")
    families: dict[str, list[mutants.Mutant]] = {}
    for mutant in random.Random(seed).sample(zoo, len(zoo)):  # noqa: S311 -- repeatable, not secret
        families.setdefault(mutant.family, []).append(mutant)
    dealt = [mutant for rank in range(len(zoo)) for own in families.values() for mutant in own[rank : rank + 1]]
    return sorted(dealt[:sample], key=zoo.index)


def examined(mutant_id: str, budget: int, seed: int) -> Rows:
    """One mutant before every property and every contestant."""
    mutant = mutants.load_all()[0][mutant_id]
    cells = row_of_matrix(mutant, PROFILE, seed)
    kill = first_kill(mutant, cells, PROFILE, seed)
    return {"cells": cells, "kills": [] if kill is None else [kill], "outcomes": contest(mutant, budget, seed)}


def alarmed(examples: int, seed: int) -> Rows:
    """A share of the examples over sound kernels."""
    return {"alarms": [false_alarms.run(examples, seed)]}


def limited(defect: str, dtype: str, seed: int) -> Rows:
    """The power against one defect at one dtype."""
    return {"powers": limits.measure([defect], [dtype], trials=TRIALS, work=WORK, seed=seed)}


def _tasks(zoo: Sequence[mutants.Mutant], budget: int, seed: int, share: float) -> Iterator[Task]:
    for mutant in zoo:
        yield mutant.id, examined, (mutant.id, budget, seed)
    for part in range(max(round(share * EXAMPLES / SHARE), 1)):
        yield "false alarms", alarmed, (SHARE, seed + part)
    if share == 1:
        for defect in limits.DEFECTS:
            for dtype in limits.DTYPES:
                yield f"limits of {defect}", limited, (defect, dtype, seed)


def _run(tasks: Sequence[Task], workers: int) -> Iterator[tuple[str, Rows]]:
    """The results as they come. Each process works in a folder of its own, with one thread."""
    os.environ |= {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    with (
        tempfile.TemporaryDirectory(prefix="attn-spec-") as folder,
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=_elsewhere, initargs=(folder,)
        ) as pool,
    ):
        waiting: dict[Future[Rows], str] = {pool.submit(function, *given): name for name, function, given in tasks}
        for future in as_completed(waiting):
            yield waiting[future], future.result()


def _elsewhere(folder: str) -> None:
    """Cases in flight are written to the working directory."""
    own = Path(folder) / str(os.getpid())
    own.mkdir()
    os.chdir(own)


def _told(mutant: mutants.Mutant) -> Told:
    return Told(**{name: getattr(mutant, name) for name in Told.__dataclass_fields__})


def _in_order(made: Teeth) -> None:
    """Rows in the same order, whichever process was faster."""
    rank = {mutant.id: place for place, mutant in enumerate(made.mutants)}
    for rows in (made.cells, made.kills, made.outcomes):
        rows.sort(key=lambda row: rank[row.mutant])
    made.alarms = [_together(made.alarms)]
    made.powers.sort(key=lambda power: (power.defect, power.dtype, power.contestant, power.size))


def _together(runs: Sequence[Alarms]) -> Alarms:
    total = Alarms()
    for run in runs:
        total.add(run)
        total.seconds += run.seconds
    total.refuted.sort(key=lambda alarm: (alarm.seed, alarm.property))
    return total

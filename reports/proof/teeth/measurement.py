"""Measure the power of the suite, in several processes or on many machines: ``attn-spec teeth``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from typing import Any

from attn_spec.search.profiles import PROFILES
from attn_spec.workers.sweep import sweep
from attn_spec.workers.task import Task

from ..validation import false_alarms
from ..validation.false_alarms import Alarms
from ..zoo import mutants
from . import limits
from .contest import contest
from .document import Teeth, TeethError, Told
from .kill_matrix import catalogue, first_kill, row_of_matrix

#: Profile of every property for every mutant, and that for a mutant that none of them catches.
FIRST, SECOND = PROFILES["smoke"], PROFILES["ci"]
#: Examples over sound kernels, and how many of them make one task.
EXAMPLES, SHARE = 20_000, 250
#: Seeds for each point of a curve of power, and multiply-adds for each seed.
TRIALS, WORK = 3, 2**24
#: Callable that receives the number of tasks done, the number of all tasks, and the name of the last one.
Watch = Callable[[int, int, str], None]
#: Rows that a task adds to the document, by the name of their list.
Rows = dict[str, list[Any]]


def measure(
    *, sample: int | None, budget: int, workers: int, seed: int, watch: Watch, scheduler: str | None = None
) -> Teeth:
    """Measure everything, or a stratified sample of the mutants and the same share of the rest.

    ``workers`` processes do the work, or those of a Dask ``scheduler``. Raises :class:`TeethError` and
    :class:`attn_spec.workers.task.WorkersError`.
    """
    zoo = chosen(sample, seed)
    made = Teeth(environment={}, properties=[property_.id for property_ in catalogue()])
    made.mutants = [_told(mutant) for mutant in zoo]
    tasks = list(_tasks(zoo, budget, seed, share=len(zoo) / len(mutants.load_all()[0])))
    with closing(sweep(tasks, jobs=workers, scheduler=scheduler, apart=True)) as results:
        for done, (task, rows) in enumerate(zip(tasks, results, strict=True), start=1):
            for kind, found in rows.items():
                getattr(made, kind).extend(found)
            watch(done, len(tasks), task.name)
    made.alarms = [_together(made.alarms)]
    made.powers.sort(key=lambda power: (power.defect, power.dtype, power.contestant, power.size))
    return made


def chosen(sample: int | None, seed: int) -> list[mutants.Mutant]:
    """Return all mutants, or ``sample`` of them dealt over the families in turn. Raises :class:`TeethError`."""
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
    """Try one mutant on every property and every contestant."""
    mutant = mutants.load_all()[0][mutant_id]
    profile = FIRST
    cells = row_of_matrix(mutant, profile, seed)
    if not any(cell.caught for cell in cells):
        profile = SECOND
        cells = row_of_matrix(mutant, profile, seed)
    kill = first_kill(mutant, cells, profile, seed)
    return {"cells": cells, "kills": [] if kill is None else [kill], "outcomes": contest(mutant, budget, seed)}


def alarmed(examples: int, seed: int) -> Rows:
    """Run a share of the examples over sound kernels."""
    return {"alarms": [false_alarms.run(examples, seed)]}


def limited(defect: str, dtype: str, seed: int) -> Rows:
    """Measure the power against one defect at one dtype."""
    return {"powers": limits.measure([defect], [dtype], trials=TRIALS, work=WORK, seed=seed)}


def _tasks(zoo: Sequence[mutants.Mutant], budget: int, seed: int, share: float) -> Iterator[Task]:
    for mutant in zoo:
        yield Task.of(mutant.id, examined, mutant.id, budget, seed)
    for part in range(max(round(share * EXAMPLES / SHARE), 1)):
        yield Task.of("false alarms", alarmed, SHARE, seed + part)
    if share == 1:
        for defect in limits.DEFECTS:
            for dtype in limits.DTYPES:
                yield Task.of(f"limits of {defect}", limited, defect, dtype, seed)


def _told(mutant: mutants.Mutant) -> Told:
    return Told(**{name: getattr(mutant, name) for name in (column.name for column in fields(Told))})


def _together(runs: Sequence[Alarms]) -> Alarms:
    total = Alarms()
    for run in runs:
        total.add(run)
        total.seconds += run.seconds
    total.refuted.sort(key=lambda alarm: (alarm.seed, alarm.property))
    return total

"""A contest on mutants, with equal budgets of work, between this suite and the accept rules of others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import PROFILES

from ..peers.recipes import PeerError
from ..peers.trial import PEERS, dtype_for, try_out
from ..peers.work import Meter
from ..zoo.mutants import Mutant
from .kill_matrix import CAUGHT, catalogue, examine

#: Name of this suite beside the peers.
SUITE = "attn-spec"
#: Problems given to every property in turn, round after round, until a mutant is caught or the budget is spent.
ROUNDS = (1, 4, 16, 60)
#: The effort of one property in one round; a counterexample need not be small here.
EFFORT = replace(PROFILES["ci"], floor=1, shrink_seconds=0.0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one contestant on one mutant."""

    contestant: str
    mutant: str
    #: Dtype at which the mutant was shown; empty when the contestant covers no dtype at which it is a defect.
    dtype: str = ""
    caught: bool = False
    #: Problems tried, and multiply-adds spent on them.
    problems: int = 0
    work: int = 0
    seconds: float = 0.0
    #: The property that caught it, or what the peer's rule said.
    why: str = ""

    @property
    def applies(self) -> bool:
        return bool(self.dtype)


def contest(mutant: Mutant, budget: int, seed: int = 0) -> list[Outcome]:
    """Show a mutant to every contestant."""
    return [by_suite(mutant, budget, seed), *(by_peer(name, mutant, budget, seed) for name in PEERS)]


def by_suite(mutant: Mutant, budget: int, seed: int = 0) -> Outcome:
    """Search property after property, with few problems each and then with more, until the budget is spent."""
    start, meter, problems = time.monotonic(), Meter(budget), 0
    shared: dict[str, Any] = {"contestant": SUITE, "mutant": mutant.id, "dtype": mutant.dtype}
    for turn, examples in enumerate(ROUNDS):
        for property_ in catalogue():
            if meter.is_spent:
                break
            effort = replace(EFFORT, examples=examples)
            kernel = meter.on(mutant.kernel)
            row, _ = examine(property_, kernel, mutant.dtype, effort, seed + turn, shapes=mutant.shapes)
            problems += row.examples
            if row.verdict in CAUGHT:
                seconds = round(time.monotonic() - start, 2)
                told = {"problems": problems, "work": meter.work, "seconds": seconds}
                return Outcome(**shared, caught=True, why=property_.id, **told)
    return Outcome(**shared, problems=problems, work=meter.work, seconds=round(time.monotonic() - start, 2))


def by_peer(name: str, mutant: Mutant, budget: int, seed: int = 0) -> Outcome:
    """Draw problems of the peer's own recipe and judge the answers by its own rule, until the budget is spent.

    A mutant that takes none of them, for want of grouped heads for instance, is not shown to it.
    """
    dtype = dtype_for(PEERS[name], mutant)
    if dtype is None:
        return Outcome(contestant=name, mutant=mutant.id)
    try:
        found = try_out(PEERS[name], Subject(mutant.at(dtype), dtype), work=budget, seed=seed)
    except PeerError:
        return Outcome(contestant=name, mutant=mutant.id)
    return Outcome(
        contestant=name,
        mutant=mutant.id,
        dtype=dtype,
        caught=found.rejected,
        problems=found.problems,
        work=found.work,
        seconds=round(found.seconds, 2),
        why=found.why,
    )


def score(outcomes: Iterable[Outcome]) -> dict[str, tuple[int, int]]:
    """Count the mutants caught and the mutants shown, by contestant."""
    table: dict[str, tuple[int, int]] = {}
    for outcome in outcomes:
        caught, shown = table.get(outcome.contestant, (0, 0))
        table[outcome.contestant] = (caught + outcome.caught, shown + outcome.applies)
    return table

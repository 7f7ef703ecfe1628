"""Count false alarms: sound kernels drawn at random, each examined by every property that applies to it.

    python -m attn_spec.reports.proof.validation.false_alarms --examples 20000 --seed 0

    python -m attn_spec.reports.proof.validation.false_alarms --examples 2000 --family layers --family accuracy --layers

    python -m attn_spec.reports.proof.validation.false_alarms --examples 2000 --presentation append

An example is one problem that one property checked on one kernel (``random_kernels`` draws them). Exit status 0:
nothing was refuted. Exit status 1: a refutation, which means that a bound or a property is wrong, or that the emulation
does not do what it declares. Each is printed with all that repeats it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from attn_spec.contract.presets import describe
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Property, load_all
from attn_spec.search.search import PropertyError, search
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

from .random_kernels import RandomKernel, random_kernel

#: Effort for one property and one kernel: many kernels are worth more than many problems for one.
PROFILE = Profile(name="false alarms", examples=4, floor=1, seconds=60, shrink_seconds=20, seed=None)
#: Seconds that a call of an emulated kernel may take; linear attention with every rounding takes minutes when others
#: run beside it, and how long it takes says nothing of a bound.
CALL_LIMIT = 600.0
#: Options of a problem that is a layer.
PROJECTIONS = ("query_projection", "key_projection", "value_projection", "output_projection")
#: Kernels under examination, or waiting for it, at once: what is done of them when there are enough is lost.
AHEAD = 64


@dataclass(frozen=True, kw_only=True)
class FalseAlarm:
    """A refutation of a kernel that is sound."""

    #: Seed of the kernel, for ``random_kernels.random_kernel``.
    seed: int
    property: str
    dtype: str
    presentation: str
    #: The contract declared, the order executed.
    contract: str
    order: str
    message: str
    #: The shrunk problem, as an expression.
    problem: str

    def __str__(self) -> str:
        kernel = f"random_kernel({self.seed}), {self.dtype}, {self.presentation}"
        lines = (self.property, kernel, self.contract, self.order)
        return "\n  ".join(("FALSE ALARM", *lines, self.message, self.problem))


@dataclass(kw_only=True)
class Alarms:
    """Totals of a run."""

    #: Problems checked, one property at a time.
    examples: int = 0
    kernels: int = 0
    refuted: list[FalseAlarm] = field(default_factory=list)
    #: Examples by family of properties, and by dtype.
    by_family: dict[str, int] = field(default_factory=dict)
    by_dtype: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, other: Alarms) -> None:
        """Count what another run saw; its seconds are not added."""
        self.examples, self.kernels = self.examples + other.examples, self.kernels + other.kernels
        self.refuted += other.refuted
        self.by_family = dict(Counter(self.by_family) + Counter(other.by_family))
        self.by_dtype = dict(Counter(self.by_dtype) + Counter(other.by_dtype))


def run(
    examples: int,
    seed: int,
    watch: Callable[[Alarms], None] = lambda total: None,
    jobs: int = 1,
    scheduler: str | None = None,
    *,
    families: tuple[str, ...] = (),
    layers: bool = False,
    presentation: str | None = None,
) -> Alarms:
    """Examine random kernels until ``examples`` problems were checked; call ``watch`` with the total after each kernel.

    The result depends on ``examples``, ``seed``, the ``families`` of properties (none: all), on whether ``layers`` are
    all that is examined, and on the ``presentation`` of the kernels (None: any). It does not depend on ``jobs`` and
    ``scheduler``, which only distribute the work.
    """
    start, total = time.monotonic(), Alarms()
    with closing(
        sweep(_tasks(seed, families, presentation, layers=layers), jobs=jobs, scheduler=scheduler, ahead=AHEAD)
    ) as every:
        for found in every:
            total.add(found)
            total.seconds = time.monotonic() - start
            watch(total)
            if total.examples >= examples:
                break
    return total


def _tasks(seed: int, families: tuple[str, ...], presentation: str | None, *, layers: bool) -> Iterator[Task]:
    """Yield the kernels of a run, in the order of their seeds: kernels of different runs differ."""
    for own in itertools.count(seed * 10**6):
        if not layers or "query_projection" in random_kernel(own, presentation).kernel.supports:
            yield Task.of(f"random kernel {own}", examine_seed, own, families, layers, presentation)


def examine_seed(
    seed: int, families: tuple[str, ...] = (), layers: bool = False, presentation: str | None = None
) -> Alarms:
    """Call :func:`examine` for a seed, which processes can send to one another, as they cannot a kernel.

    Of ``layers`` alone the kernel is given nothing else.
    """
    drawn = random_kernel(seed, presentation)
    if layers:
        limits = drawn.kernel.limits
        limits = replace(limits, always=(*limits.always, *PROJECTIONS))
        drawn = replace(drawn, kernel=replace(drawn.kernel, limits=limits))
    return examine(
        drawn, [property_ for property_ in theorems() if not families or property_.id.partition(".")[0] in families]
    )


def theorems() -> list[Property]:
    """Return the properties without false alarms; statistical ones state the probability of theirs."""
    return [property_ for property_ in load_all().values() if not property_.false_alarm]


def examine(drawn: RandomKernel, properties: Iterable[Property] | None = None) -> Alarms:
    """Try properties, by default every theorem, on a random kernel."""
    total, subject = Alarms(kernels=1), Subject(drawn.kernel, drawn.dtype, call_limit=CALL_LIMIT)
    for property_ in theorems() if properties is None else properties:
        family = property_.id.partition(".")[0]
        try:
            row, case = search(property_, subject, PROFILE, drawn.seed)
        except PropertyError as error:
            row, case = error.row, None
            total.refuted.append(_alarm(drawn, property_.id, row.message, "unknown"))
        if case is not None:
            total.refuted.append(_alarm(drawn, property_.id, row.message, repr(case.problem)))
        n = row.examples
        total.add(Alarms(examples=n, by_family={family: n}, by_dtype={drawn.dtype: n}))
    return total


def _alarm(drawn: RandomKernel, property_id: str, message: str, problem: str) -> FalseAlarm:
    return FalseAlarm(
        seed=drawn.seed,
        property=property_id,
        dtype=drawn.dtype,
        presentation=drawn.kernel.presentation,
        contract=describe(drawn.declares),
        order=repr(drawn.order),
        message=message,
        problem=problem,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run, print every refutation when it is found, and the totals."""
    parser = argparse.ArgumentParser(
        prog="python -m attn_spec.reports.proof.validation.false_alarms", description=__doc__
    )
    parser.add_argument("--examples", type=int, default=20000, help="problems checked in all (default 20000)")
    parser.add_argument("--seed", type=int, default=0, help="which kernels and problems are drawn (default 0)")
    families = sorted({property_.id.partition(".")[0] for property_ in theorems()})
    parser.add_argument(
        "--family",
        action="append",
        default=[],
        choices=families,
        metavar="NAME",
        help=f"properties of this family only, which may be given several times: {', '.join(families)}",
    )
    parser.add_argument(
        "--presentation", choices=sorted(PRESENTATIONS), metavar="NAME", help="only kernels that are called in it"
    )
    parser.add_argument("--layers", action="store_true", help="only kernels that take layers, and only layers")
    add_options(parser)
    chosen = parser.parse_args(arguments)
    printed = 0

    def watch(total: Alarms) -> None:
        nonlocal printed
        for alarm in total.refuted[printed:]:
            print(alarm)
        printed = len(total.refuted)
        print(f"{total.examples:7} examples, {total.kernels:4} kernels, {total.seconds:5.0f} s", flush=True)

    with refusals(parser):
        which: dict[str, Any] = {"families": tuple(chosen.family), "layers": chosen.layers}
        which["presentation"] = chosen.presentation
        total = run(chosen.examples, chosen.seed, watch, chosen.jobs, chosen.scheduler, **which)
    print(summary(total))
    return int(bool(total.refuted))


def summary(total: Alarms) -> str:
    """Return the totals of a run."""
    counts = [", ".join(f"{name} {n}" for name, n in sorted(x.items())) for x in (total.by_family, total.by_dtype)]
    first = f"{total.examples} examples on {total.kernels} random sound kernels: {len(total.refuted)} refuted"
    return "\n  ".join((first, *counts))


if __name__ == "__main__":
    sys.exit(main())

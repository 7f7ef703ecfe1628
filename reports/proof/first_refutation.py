"""Seconds until a wrong kernel is refuted, over the zoo of mutants, in the order in which properties are searched.

    python -m attn_spec.reports.proof.first_refutation --sample 60

Each mutant meets the properties with the profile ``smoke`` until one refutes it: the seconds until a problem is found,
and until it is made small and the refutation is shown. They are of one processor, so that a busy machine gives the same
as an idle one. The start of the process, about two of them, comes on top. ``--in-files`` takes the order of the files
instead, to compare.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from attn_spec.kernels.subject import Subject
from attn_spec.search import order
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import Property, load_all
from attn_spec.search.search import PropertyError, search
from attn_spec.search.verdict import Verdict
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

from .teeth.measurement import chosen
from .zoo.mutants import load_all as load_zoo


@dataclass(frozen=True, kw_only=True)
class First:
    """The first refutation of one mutant: the property, and the seconds until a problem is found, and is small."""

    mutant: str
    property_id: str | None
    found: float
    shown: float


def in_order(*, in_files: bool = False) -> list[Property]:
    """Return every property, in the order of the search or of the files."""
    properties = list(load_all().values())
    return properties if in_files else sorted(properties, key=lambda property_: order.rank(property_.id))


def first_of(mutant_id: str, seed: int, in_files: bool) -> First:
    """Let a mutant meet the properties until one refutes it."""
    mutant = load_zoo()[0][mutant_id]
    subject = Subject(mutant.kernel, mutant.dtype, shapes=mutant.shapes)
    begun, moments = time.process_time(), []
    for property_ in in_order(in_files=in_files):
        try:
            row, _ = search(
                property_, subject, PROFILES["smoke"], seed, found=lambda _: moments.append(time.process_time() - begun)
            )
        except PropertyError:
            continue
        if row.verdict is Verdict.REFUTED:
            return First(
                mutant=mutant_id, property_id=property_.id, found=moments[0], shown=time.process_time() - begun
            )
    seconds = time.process_time() - begun
    return First(mutant=mutant_id, property_id=None, found=seconds, shown=seconds)


def summary(every: Sequence[First]) -> list[str]:
    """Return median, 95 % and worst of both times, the slowest mutants, and the mutants that were not refuted."""
    refuted = [one for one in every if one.property_id]
    lines = [f"{len(refuted)} of {len(every)} mutants were refuted by the profile smoke"]
    for what in ("found", "shown"):
        seconds = sorted(getattr(one, what) for one in refuted)
        if seconds:
            most = seconds[min(int(0.95 * len(seconds)), len(seconds) - 1)]
            figures = f"median {statistics.median(seconds):.2f} s, 95 % within {most:.2f} s, worst {seconds[-1]:.2f} s"
            lines.append(f"{what:<6} {figures}")
    slowest = sorted(refuted, key=lambda one: -one.shown)[:5]
    lines += [f"  {one.shown:6.2f} s  {one.mutant}, by {one.property_id}" for one in slowest]
    lines += [f"  not refuted  {one.mutant}, in {one.shown:.2f} s" for one in every if not one.property_id]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="first_refutation", description=__doc__)
    parser.add_argument("--sample", type=int, help="so many mutants, dealt over their families; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-files", action="store_true", help="the order of the files")
    add_options(parser)
    given = parser.parse_args(arguments)
    with refusals(parser):
        zoo = [mutant.id for mutant in chosen(given.sample, given.seed)]
        tasks = [Task.of(name, first_of, name, given.seed, given.in_files) for name in zoo]
        every = []
        with closing(sweep(tasks, jobs=given.jobs, scheduler=given.scheduler)) as results:
            for number, one in enumerate(results, start=1):
                every.append(one)
                print(f"[{number}/{len(zoo)}] {one.mutant}: {one.shown:.2f} s", file=sys.stderr, flush=True)
    print("\n".join(summary(every)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Examine plain kernels: sound ones, written the way the world writes them, each with the contract it keeps.

    python -m attn_spec.reports.proof.plain.examination --problems 10 --seed 0 --only flash2

They compute with the operations of PyTorch and NumPy, not with the emulation that the bounds were tried on first. So
they round where real kernels do. Exit status 0: no refutation. Exit status 1: a refutation, which means that a bound
or a property is wrong, or that a kernel does not meet its declaration. Each is printed with all that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from attn_spec.contract.presets import describe
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import kernels_of
from attn_spec.kernels.subject import Subject
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Property, load_all
from attn_spec.search.search import PropertyError, search
from attn_spec.search.verdict import Row, Verdict
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

from . import (
    dropout,
    eager,
    flash,
    layers,
    linear,
    merging,
    numpy,
    positions,
    products,
    quantising,
    quantized,
    references,
    scores,
    softmax,
    widths,
)

MODULES = (
    flash,
    softmax,
    references,
    eager,
    numpy,
    merging,
    products,
    quantized,
    quantising,
    scores,
    positions,
    widths,
    dropout,
    linear,
    layers,
)

#: Kernels by name, in the order of their files.
PLAIN: dict[str, Kernel] = {name: one for module in MODULES for name, one in kernels_of(module).items()}


@dataclass(frozen=True, kw_only=True)
class Refuted:
    """A refutation of a plain kernel."""

    row: Row
    contract: str
    #: The shrunk problem, as an expression.
    problem: str
    #: Kernel spec for :func:`attn_spec.kernels.resolve.resolve`.
    spec: str

    def __str__(self) -> str:
        again = f"attn-spec certify {self.spec} --dtype {self.row.dtype} --property {self.row.property}"
        lines = (self.row.property, f"{self.row.kernel}, {self.row.dtype}", self.contract)
        return "\n  ".join(("REFUTED", *lines, self.row.message, self.problem, again))


@dataclass(kw_only=True)
class Examined:
    """Verdicts of properties on one kernel at one dtype."""

    name: str
    dtype: str
    contract: str
    rows: list[Row] = field(default_factory=list)
    refuted: list[Refuted] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def examples(self) -> int:
        """Problems checked, one property at a time."""
        return sum(row.examples for row in self.rows)

    @property
    def verdicts(self) -> Counter[Verdict]:
        """Count the properties that have each verdict."""
        return Counter(row.verdict for row in self.rows)

    @property
    def worst(self) -> Row | None:
        """The row of the largest error / bound among the properties that are theorems."""
        theorems = {property_.id for property_ in load_all().values() if not property_.false_alarm}
        measured = [row for row in self.rows if row.ratio is not None and row.property in theorems]
        return max(measured, key=lambda row: row.ratio or 0.0, default=None)

    def __str__(self) -> str:
        found = ", ".join(f"{n} {verdict}" for verdict in Verdict if (n := self.verdicts[verdict]))
        worst = "" if self.worst is None else f"{self.worst.ratio:6.3f} {self.worst.property}"
        return f"{self.name:22} {self.dtype:8} {self.examples:5} problems {self.seconds:4.0f} s: {found}; {worst}"


def examine(
    name: str, dtype: str, *, problems: int = 10, seed: int = 0, properties: Iterable[Property] | None = None
) -> Examined:
    """Try properties, by default all, on a plain kernel, with ``problems`` problems for each."""
    kernel, start = PLAIN[name], time.monotonic()
    profile = Profile(name="plain", examples=problems, floor=1, seconds=60, shrink_seconds=20, seed=seed)
    subject = Subject(kernel, dtype)
    found = Examined(name=name, dtype=dtype, contract=describe(subject.contract, dtype))
    for property_ in load_all().values() if properties is None else properties:
        try:
            row, case = search(property_, subject, profile, seed)
        except PropertyError as error:  # a fault of the property, which counts as a failure too
            row, case, unknown = error.row, None, True
        else:
            unknown = False
        found.rows.append(row)
        if row.verdict is Verdict.REFUTED or unknown:
            problem = "unknown" if case is None else repr(case.problem)
            spec = f"{kernel.function.__module__}:{name}"
            found.refuted.append(Refuted(row=row, contract=found.contract, problem=problem, spec=spec))
    found.seconds = time.monotonic() - start
    return found


def run(
    names: Sequence[str], *, problems: int = 10, seed: int = 0, jobs: int = 1, scheduler: str | None = None
) -> Generator[Examined, None, None]:
    """Examine kernels, each at all of its dtypes; what is found does not depend on who does it.

    That is ``jobs`` processes, or the workers of a Dask ``scheduler``.
    """
    subjects = [(name, dtype) for name in names for dtype in PLAIN[name].dtypes]
    tasks = [Task.of(f"{name} {dtype}", _examined, name, dtype, problems, seed) for name, dtype in subjects]
    return sweep(tasks, jobs=jobs, scheduler=scheduler)


def _examined(name: str, dtype: str, problems: int, seed: int) -> Examined:
    """Call :func:`examine` by position, as tasks do."""
    return examine(name, dtype, problems=problems, seed=seed)


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run, print a line for each kernel and dtype and every refutation when it is found, and the totals."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.plain.examination", description=__doc__)
    parser.add_argument("--problems", type=int, default=10, help="problems for one property and kernel (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="which problems are drawn (default 0)")
    add_options(parser)
    parser.add_argument(
        "--only", action="append", choices=list(PLAIN), metavar="NAME", help="a kernel; may be repeated"
    )
    chosen = parser.parse_args(arguments)
    total, examined, refuted = Counter[Verdict](), 0, 0
    names = chosen.only or list(PLAIN)
    options = {"problems": chosen.problems, "seed": chosen.seed, "jobs": chosen.jobs, "scheduler": chosen.scheduler}
    with refusals(parser), closing(run(names, **options)) as every:
        for found in every:
            for line in (found, *found.refuted):
                say(str(line))
            sys.stdout.flush()
            total += found.verdicts
            examined, refuted = examined + found.examples, refuted + len(found.refuted)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in total.most_common())
    say(f"{examined} problems on {len(names)} plain kernels: {refuted} refuted; {counts}")
    return int(bool(refuted))


if __name__ == "__main__":
    sys.exit(main())

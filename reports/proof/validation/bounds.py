"""Validate the bounds: search for an answer outside its bound on sound kernels, and print how tight the bounds are.

    python -m attn_spec.reports.proof.validation.bounds --problems 5000
    python -m attn_spec.reports.proof.validation.bounds --pass backward --problems 2000

Every in-tree kernel and every sound emulated kernel, at each of its dtypes, is given generated problems. The target of
the search is error/bound; changes of single elements then climb further from the worst problem.
Exit status 0: no violation, and no suspiciously small maximum; 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, target
from hypothesis.strategies import SearchStrategy

from attn_spec.contract.presets import describe
from attn_spec.emulation.sound import SOUND
from attn_spec.judgement import measure
from attn_spec.judgement.measure import Judgement
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import in_tree, resolve
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import BACKWARD, FORWARD
from attn_spec.search import assertions
from attn_spec.search.drawing import cotangents, strategies
from attn_spec.search.drawing.draws import of_the_seed_alone
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

#: A bound whose largest ratio over a whole battery stays below this is loose by accident.
SMALLEST_MAXIMUM = 0.05
#: Fewer problems than this say nothing about how loose a bound is.
ENOUGH = 100

#: Ratios stored for one problem for the median and the 99th percentile, besides its largest.
KEPT = 400


@dataclass
class Tally:
    """Results of the problems of one subject."""

    problems: int = 0
    entries: int = 0
    violations: list[str] = field(default_factory=list)
    ratios: dict[str, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))
    hardest: tuple[float, Problem | None] = (0.0, None)

    def add(self, problem: Problem, judgement: Judgement) -> None:
        """Count one judged answer."""
        self.problems += 1
        if judgement.ratio > self.hardest[0]:
            self.hardest = (judgement.ratio, problem)
        for measurement in judgement.measurements:
            ratios = measurement.ratios[measurement.measured]
            self.entries += ratios.size
            self.ratios[measurement.name] += [
                ratios[:: ratios.size // KEPT + 1],
                ratios.max(initial=0.0, keepdims=True),
            ]
            if measurement.outside.any():
                self.violations.append(
                    f"{measurement.name}{list(measurement.worst)} ratio {measurement.ratio:.4g} on {problem!r}"
                )

    def pool(self, other: Tally) -> None:
        """Add what other subjects of the same contract gave."""
        self.problems, self.entries = self.problems + other.problems, self.entries + other.entries
        self.violations += other.violations
        self.hardest = max(self.hardest, other.hardest, key=lambda hardest: hardest[0])
        for name, values in other.ratios.items():
            self.ratios[name] += values


@dataclass(frozen=True)
class Pass:
    """The forward or the backward pass: what it measures, on which subjects and problems."""

    quantities: tuple[str, ...]
    concerns: Callable[[Subject], bool]
    problems: Callable[[Subject], SearchStrategy[Problem]]
    judged: Callable[[Subject, Problem], Judgement]


def gradients_judged(subject: Subject, problem: Problem) -> Judgement:
    """Run the backward pass for a drawn cotangent, and one on the LSE where it is honored, and judge the gradients."""
    dO = cotangents.cotangent(subject, problem)
    dL = cotangents.lse_cotangent(problem) if subject.supports("lse_backward") else None
    found = subject.gradients(problem, dO, lse_cotangent=dL)
    return measure.judge_gradients(problem, subject.contract, dO, found, dL)


PASSES = {
    "forward": Pass(
        quantities=FORWARD,
        concerns=lambda subject: "cpu" in subject.kernel.devices,
        problems=strategies.problems,
        judged=lambda subject, problem: assertions.judged(subject, problem, subject(problem)),
    ),
    "backward": Pass(
        quantities=BACKWARD,
        concerns=lambda subject: "cpu" in subject.kernel.devices and subject.supports("backward"),
        problems=assertions.differentiable,
        judged=gradients_judged,
    ),
}


def subjects() -> Iterator[tuple[str, Subject]]:
    """Yield every in-tree and sound emulated kernel, at each of its dtypes, with its name for :func:`kernel_of`."""
    for name in (*in_tree(), *SOUND):
        kernel = kernel_of(name)
        yield from ((name, Subject(kernel, dtype)) for dtype in kernel.dtypes)


def kernel_of(name: str) -> Kernel:
    """Return a sound emulated kernel by its name, or an in-tree one by what ``resolve`` takes."""
    return SOUND[name] if name in SOUND else resolve(name)


@of_the_seed_alone()
def searched(which: str, name: str, dtype: str, problems: int, start: int) -> Tally:
    """Call :func:`search` for a pass and a kernel by their names, which can be sent between processes."""
    return search(PASSES[which], Subject(kernel_of(name), dtype), problems, start)


def search(which: Pass, subject: Subject, problems: int, start: int) -> Tally:
    """Judge generated problems, steered toward a large error/bound, then climb from the hardest."""
    tally = Tally()

    @seed(start)
    @settings(
        max_examples=problems,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.target],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
    @given(which.problems(subject))
    def run(problem: Problem) -> None:
        judgement = which.judged(subject, problem)
        tally.add(problem, judgement)
        target(min(judgement.ratio, 2.0))

    run()
    climb(which, subject, tally, problems // 2, np.random.default_rng(start))
    return tally


def climb(which: Pass, subject: Subject, tally: Tally, steps: int, rng: np.random.Generator) -> None:
    """Change one element of q, k or v at a time, keeping what raises error/bound."""
    best, problem = tally.hardest
    if problem is None or not all(tensor.size for tensor in (problem.q, problem.k, problem.v)):
        return
    for _ in range(steps):
        name = str(rng.choice(["q", "k", "v"]))
        array = getattr(problem, name).copy()
        at = tuple(rng.integers(n) for n in array.shape)
        step = 1 + rng.standard_normal() * 2.0 ** -rng.integers(0, 12)
        array[at] = bits.nearest(array[at] * step if rng.random() < 0.9 else -array[at], problem.dtype_of(name))
        if not np.isfinite(array[at]):
            continue
        candidate = problem.with_inputs(**{name: array})
        judgement = which.judged(subject, candidate)
        tally.add(candidate, judgement)
        if judgement.ratio > best:
            best, problem = judgement.ratio, candidate


def line(which: Pass, ratios: dict[str, list[np.ndarray]], label: str) -> str:
    """Return one row of the table: median, 99th percentile and maximum of error/bound for each quantity."""
    cells = []
    for name in which.quantities:
        values = np.concatenate([*ratios.get(name, []), np.empty(0)])
        if values.size:
            cells.append(f"{np.median(values):7.0e} {np.quantile(values, 0.99):5.0e} {values.max():5.3f}")
        else:
            cells.append(" " * 19)
    return "  ".join([*cells, label])


def main(arguments: list[str] | None = None) -> int:
    """Run the validation and print its table."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.validation.bounds", description=__doc__)
    parser.add_argument("--problems", type=int, default=5000, help="generated problems in all (default 5000)")
    parser.add_argument("--pass", dest="which", choices=PASSES, default="forward")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    add_options(parser)
    chosen = parser.parse_args(arguments)
    which = PASSES[chosen.which]
    every = [
        (n, each)
        for n, each in subjects()
        if which.concerns(each) and chosen.only in f"{each.kernel.name} {each.dtype}"
    ]
    if not every:
        parser.error(f"no subject's name contains {chosen.only!r}; leave --only out to see them all")
    share = -(-chosen.problems // len(every))
    pooled: dict[str, Tally] = defaultdict(Tally)
    interpreted = Tally()
    print("error/bound (median, 99th percentile, maximum) of " + ", ".join(which.quantities))
    tasks = [
        Task.of(f"{each.kernel.name} {each.dtype}", searched, chosen.which, name, each.dtype, share, chosen.seed)
        for name, each in every
    ]
    with refusals(parser), closing(sweep(tasks, jobs=chosen.jobs, scheduler=chosen.scheduler)) as tallies:
        for (_, subject), tally in zip(every, tallies, strict=True):
            print(line(which, tally.ratios, f"{subject.kernel.name} {subject.dtype}"), flush=True)
            for violation in tally.violations[:3]:
                print(f"  VIOLATION {violation}", flush=True)
            if subject.kernel.slowness > 1:
                interpreted.pool(tally)  # an interpreter may compute more exactly than the contract of the device
            else:
                pooled[f"{subject.dtype} {describe(subject.kernel.contract_declared(subject.dtype))}"].pool(tally)
    print("\nby dtype and contract")
    for label in sorted(pooled):
        print(line(which, pooled[label].ratios, label))
    return verdict(which, pooled, interpreted)


def verdict(which: Pass, pooled: dict[str, Tally], interpreted: Tally) -> int:
    """Print the totals; 1 if there is a violation, or a contract whose ratios are all suspiciously small."""
    total = Tally()
    for tally in (*pooled.values(), interpreted):
        total.pool(tally)
    known = {label: tally for label, tally in pooled.items() if tally.problems >= ENOUGH}
    loose = [label for label, tally in known.items() if tally.hardest[0] < SMALLEST_MAXIMUM]
    print(f"\n{total.problems} problems, {total.entries} entries of {', '.join(which.quantities)}: ", end="")
    print(f"{len(total.violations)} violations; suspiciously loose: {', '.join(loose) or 'none'}")
    return int(bool(total.violations or loose))


if __name__ == "__main__":
    sys.exit(main())

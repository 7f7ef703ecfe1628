"""Validate the bounds: search for an answer outside its bound on sound kernels, and print how tight the bounds are.

    python -m attn_spec.reports.validation --problems 5000

Every in-tree kernel and every sound emulated kernel, at each of its dtypes, is given generated problems, with
error/bound as the target of the search, and then the worst of them is climbed further by changing single elements.
Exit status 0: no violation, and no suspiciously small maximum; 1 otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, target

from attn_spec import bits, strategies
from attn_spec.claims import judged
from attn_spec.contract import describe
from attn_spec.measure import Judgement
from attn_spec.problem import Problem
from attn_spec.resolve import in_tree, kernels_of, resolve
from attn_spec.subject import Subject

#: A bound whose largest ratio over a whole battery stays below this is loose by accident.
SMALLEST_MAXIMUM = 0.05

#: Ratios kept of one problem for the median and the 99th percentile, besides its largest.
KEPT = 400


@dataclass
class Tally:
    """What the problems of one subject gave."""

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
        for m in judgement.measurements:
            ratios = m.ratios[m.measured]
            self.entries += ratios.size
            self.ratios[m.name] += [ratios[:: ratios.size // KEPT + 1], ratios.max(initial=0.0, keepdims=True)]
            if m.outside.any():
                self.violations.append(f"{m.name}{list(m.worst)} ratio {m.ratio:.4g} on {problem!r}")


def subjects() -> Iterator[Subject]:
    """Every in-tree and sound emulated kernel that runs on the CPU, at each of its dtypes."""
    emulated = kernels_of(importlib.import_module(f"{__package__}.emulated"))
    for kernel in [*map(resolve, in_tree()), *emulated.values()]:
        if "cpu" in kernel.devices:
            yield from (Subject(kernel, dtype) for dtype in kernel.dtypes)


def search(subject: Subject, problems: int, start: int) -> Tally:
    """Judge generated problems, steered toward a large error/bound, then climb from the hardest."""
    tally = Tally()

    @seed(start)
    @settings(
        max_examples=problems,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategies.problems(subject))
    def run(problem: Problem) -> None:
        judgement = judged(subject, problem, subject(problem))
        tally.add(problem, judgement)
        target(min(judgement.ratio, 2.0))

    run()
    climb(subject, tally, problems // 2, np.random.default_rng(start))
    return tally


def climb(subject: Subject, tally: Tally, steps: int, rng: np.random.Generator) -> None:
    """Change one element of q, k or v at a time, keeping what raises error/bound."""
    best, problem = tally.hardest
    if problem is None:
        return
    for _ in range(steps):
        name = str(rng.choice(["q", "k", "v"]))
        array = getattr(problem, name).copy()
        at = tuple(rng.integers(n) for n in array.shape)
        step = 1 + rng.standard_normal() * 2.0 ** -rng.integers(0, 12)
        array[at] = bits.nearest(array[at] * step if rng.random() < 0.9 else -array[at], problem.dtype)
        if not np.isfinite(array[at]):
            continue
        candidate = problem.replace(**{name: array})
        judgement = judged(subject, candidate, subject(candidate))
        tally.add(candidate, judgement)
        if judgement.ratio > best:
            best, problem = judgement.ratio, candidate


def line(label: str, ratios: dict[str, list[np.ndarray]]) -> str:
    """One row of the table: median, 99th percentile and maximum of error/bound for O and LSE."""
    cells = []
    for name in ("output", "lse"):
        values = np.concatenate(ratios[name]) if ratios.get(name) else np.array([np.nan])
        cells.append(f"{np.median(values):8.1e} {np.quantile(values, 0.99):8.1e} {values.max():6.3f}")
    return f"{label:58s} {cells[0]}   {cells[1]}"


def main(arguments: list[str] | None = None) -> int:
    """Run the validation and print its table."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.validation", description=__doc__)
    parser.add_argument("--problems", type=int, default=5000, help="generated problems in all (default 5000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    chosen = parser.parse_args(arguments)
    every = [s for s in subjects() if chosen.only in f"{s.kernel.name} {s.dtype}"]
    share = -(-chosen.problems // max(len(every), 1))
    pooled: dict[str, dict[str, list[np.ndarray]]] = defaultdict(lambda: defaultdict(list))
    total = Tally()
    print(f"{'error/bound: median, 99th percentile, maximum':58s} {'output':>24s}   {'LSE':>24s}")
    for subject in every:
        tally = search(subject, share, chosen.seed)
        print(line(f"{subject.kernel.name} {subject.dtype}", tally.ratios), flush=True)
        for violation in tally.violations[:3]:
            print(f"  VIOLATION {violation}", flush=True)
        total.problems, total.entries = total.problems + tally.problems, total.entries + tally.entries
        total.violations += tally.violations
        declared = subject.kernel.contract
        contract = declared[subject.dtype] if isinstance(declared, dict) else declared
        for name, values in tally.ratios.items():
            pooled[f"{subject.dtype} {describe(contract)}"][name] += values
    print("\nper dtype and contract")
    for label in sorted(pooled):
        print(line(label, pooled[label]))
    loose = [label for label, r in pooled.items() if max(v.max(initial=0.0) for v in r["output"]) < SMALLEST_MAXIMUM]
    print(f"\n{total.problems} problems, {total.entries} entries, {len(total.violations)} violations", end="")
    print(f"; suspiciously loose: {', '.join(loose) or 'none'}")
    return int(bool(total.violations or loose))


if __name__ == "__main__":
    sys.exit(main())

"""Detection limits: the power of this suite and of the peers' rules against the size of a defect.

    python -m attn_spec.reports.proof.teeth.limits --trials 10

Power is the share of seeds with which a defect is caught before the budget of work is spent. A seed draws nearly the
same problems whatever the size (a search that climbs may part ways), and a larger defect is no harder to see. So the
sizes caught are taken to be those above some threshold. Only the threshold is searched, beginning at that of the seed
before: a curve rests on about three sizes for each seed.
"""

from __future__ import annotations

import argparse
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby, product

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import assert_within_bound
from attn_spec.search.profiles import Profile
from attn_spec.search.property import Property, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

from ..peers.trial import MOST_PROBLEMS, PEERS, try_out
from ..peers.work import Meter
from .defects import DEFECTS

DTYPES = ("float32", "bfloat16", "float16")
#: Multiply-adds of one trial: 128 heads of 64 queries and keys with 64 dimensions each.
WORK = 2**26
TRIALS = 10
#: This suite's families: the bounds on the output alone, those on output and LSE, and the statistics of errors.
OUTPUT, BOTH, STATISTICS = "attn-spec: output", "attn-spec: output and LSE", "attn-spec: statistics"
#: Profile with as many problems as a peer may try, and no time for shrinking them.
_PROFILE = Profile(name="limits", examples=MOST_PROBLEMS, floor=1, seconds=float("inf"), shrink_seconds=0.0, seed=None)

#: Predicate: True if a contestant catches a kernel, given a budget of work and a seed.
Catches = Callable[[Subject, int, int], bool]


class LimitsError(ValueError):
    """A defect or dtype that is not known; the text says which are."""


@dataclass(frozen=True, kw_only=True)
class Power:
    """The number of trials in which a contestant caught a defect of one size."""

    defect: str
    dtype: str
    size: float
    contestant: str
    trials: int
    caught: int
    #: Seeds with which the contestant catches the kernel without any defect: where it does, it sees nothing.
    false_alarms: int = 0


def measure(
    defects: Iterable[str] = tuple(DEFECTS),
    dtypes: Iterable[str] = DTYPES,
    *,
    trials: int = TRIALS,
    work: int = WORK,
    seed: int = 0,
    watch: Callable[[list[Power]], None] = lambda powers: None,
    jobs: int = 1,
    scheduler: str | None = None,
) -> list[Power]:
    """Measure the power of every contestant against every size of each defect at each dtype, contestant by contestant.

    ``watch`` receives the powers of one contestant against one defect at one dtype. Raises :class:`LimitsError`.
    """
    tasks = [
        Task.of(f"{defect} {dtype} {name}", _curve_of, (defect, dtype), name, trials, work, seed)
        for defect, dtype in product(_known(defects, DEFECTS), _known(dtypes, DTYPES))
        for name in contestants(dtype)
    ]
    found: list[Power] = []
    with closing(sweep(tasks, jobs=jobs, scheduler=scheduler)) as curves:
        for powers in curves:
            watch(powers)
            found += powers
    return found


def limit(powers: Iterable[Power]) -> float | None:
    """Return the smallest size that one contestant catches in at least half of the trials; None if there is none.

    There is none either for a contestant that catches the sound kernel as often.
    """
    seen = [power.size for power in powers if 2 * power.caught >= power.trials > 2 * power.false_alarms]
    return min(seen, default=None)


def contestants(dtype: str) -> dict[str, Catches]:
    """Return the judges of kernels of a dtype, by name: this suite's families, then the peers that cover it."""
    ours: dict[str, Catches] = {
        OUTPUT: partial(_refutes, ("accuracy.output_is_within_its_bound",)),
        BOTH: partial(_refutes, (BOTH,)),
        STATISTICS: partial(_refutes, tuple(name for name in load_all() if name.startswith("statistics."))),
    }
    return ours | {name: partial(_rejects, name) for name, peer in PEERS.items() if dtype in peer.dtypes}


def curve(defect: str, dtype: str, name: str, *, trials: int, work: int, seed: int) -> list[Power]:
    """Measure the power of one contestant against all sizes of one defect at one dtype."""
    sizes = DEFECTS[defect].sizes
    first: list[int] = []
    false_alarms = 0
    for trial in range(seed, seed + trials):
        caught = partial(_caught, contestants(dtype)[name], (defect, dtype), work, trial)
        guess = first[-1] if first else len(sizes) // 2
        first.append(threshold(cache(lambda n, at=caught: at(sizes[n])), len(sizes), guess))
        false_alarms += first[-1] == 0 and caught(0.0)
    shared = {"defect": defect, "dtype": dtype, "contestant": name, "trials": trials, "false_alarms": false_alarms}
    return [Power(size=size, caught=sum(at <= n for at in first), **shared) for n, size in enumerate(sizes)]


def _caught(catches: Catches, shown: tuple[str, str], work: int, seed: int, size: float) -> bool:
    defect, dtype = shown
    return catches(Subject(DEFECTS[defect].kernel(size, dtype), dtype), work, seed)


def threshold(caught: Callable[[int], bool], count: int, guess: int) -> int:
    """Return the first of ``count`` sizes that is caught, or ``count``; strides from the guess double."""
    low, high, stride = -1, count, 1  # not caught at low, caught at high
    at = min(guess, count - 1)
    while low < at < high:
        if caught(at):
            high, at = at, at - stride
        else:
            low, at = at, at + stride
        if low >= 0 and high < count:
            break
        stride *= 2
    return low + 1 + bisect_left(range(low + 1, high), x=True, key=caught)


def _curve_of(shown: tuple[str, str], name: str, trials: int, work: int, seed: int) -> list[Power]:
    """Call :func:`curve` by position, as tasks do."""
    return curve(*shown, name, trials=trials, work=work, seed=seed)


def _refutes(properties: Sequence[str], subject: Subject, work: int, seed: int) -> bool:
    """Return whether one of some properties refutes or suspects a kernel; they share the budget."""
    return any(_search(_property(name), subject, work // len(properties), seed) for name in properties)


def _search(property_: Property, subject: Subject, work: int, seed: int) -> bool:
    metered = replace(subject, kernel=Meter(work).on(subject.kernel))
    return search(property_, metered, _PROFILE, seed)[0].verdict in (Verdict.REFUTED, Verdict.SUSPECT)


def _property(name: str) -> Property:
    known = load_all()
    return known[name] if name in known else replace(known["accuracy.output_is_within_its_bound"], check=_accurate)


def _accurate(subject: Subject, problem: Problem) -> None:
    """Assert both properties of the accuracy family, on one call."""
    assert_within_bound(subject, problem, subject(problem))


def _rejects(name: str, subject: Subject, work: int, seed: int) -> bool:
    return try_out(PEERS[name], subject, work=work, seed=seed).rejected


def _known(chosen: Iterable[str], known: Iterable[str]) -> list[str]:
    chosen, known = list(chosen), list(known)
    if unknown := [name for name in chosen if name not in known]:
        raise LimitsError(f"unknown {', '.join(unknown)}; known are {', '.join(known)}")
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the power of each contestant where it rises and its limit."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.teeth.limits", description=__doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"seeds (default {TRIALS})")
    parser.add_argument("--work", type=int, default=WORK, help="multiply-adds of one trial (default 2**26)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    add_options(parser)
    parser.add_argument("--defect", choices=DEFECTS, action="append", help="may be repeated (default: every defect)")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="may be repeated (default: every dtype)")
    chosen = parser.parse_args(arguments)
    with refusals(parser):
        measure(
            chosen.defect or tuple(DEFECTS),
            chosen.dtype or DTYPES,
            trials=chosen.trials,
            work=chosen.work,
            seed=chosen.seed,
            watch=lambda powers: print(line(powers), flush=True),
            jobs=chosen.jobs,
            scheduler=chosen.scheduler,
        )
    return 0


def line(powers: Sequence[Power]) -> str:
    """Return one curve as text: its limit, and the sizes at which the power changes."""
    first, found = powers[0], limit(powers)
    steps = [next(group) for _, group in groupby(powers, key=lambda power: power.caught)]
    rises = ", ".join(f"{power.caught}/{power.trials} from {power.size:.3g}" for power in steps if power.caught)
    reached = "none" if found is None else f"{found:.3g}"
    alarms = f"; {first.false_alarms} without a defect" if first.false_alarms else ""
    return f"{first.defect:16} {first.dtype:9} {first.contestant:26} limit {reached:9} {rises}{alarms}"


if __name__ == "__main__":
    sys.exit(main())

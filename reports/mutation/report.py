"""Mutate truth, bounds, judgement and claims, and count how many of the mutants the tests kill.

    python -m attn_spec.reports.mutation.report --mutants 100 --seed 0 --jobs 2

The mutants are those of ``sample``. Each is made in memory, in a process of its own, that runs the tests of
these modules until the first one fails. Exit status 0: at least nine of ten are killed, and each survivor
has its reason in ``survivors``; 1: not. It runs in a checkout, where the tests are.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import io
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import attn_spec

from .sample import MODULES, Mutant, path_of, places, sampled
from .survivors import REASONS

#: The tests of these files, those first that are fast and kill most.
TESTS = (
    *("error/recorded_bounds", "error/domain", "judgement/measure", "error/sound_arithmetic", "problem/masks"),
    *("attention/definition", "judgement/oracle", "attention/gradients", "error/contract", "reports/teeth/left_out"),
    *("error/readings", "evidence/certificate", "search/assertions", "kernels/subject", "error/error_statistics"),
    *("attention/gradient_agreement", "attention/gradient_laws", "attention/enclosure"),
    *(
        "attention/gradient_enclosure",
        "judgement/gross_errors",
        "search/textbook",
        "error/score_bounds",
        "error/bounds",
        "attention/scores",
        "error/operand_bounds",
    ),
    "reports/witnesses/witnesses",
)

#: The least share that is to be killed.
LEAST = 0.9
#: Seconds of computing one mutant may take; the tests take less than half of it.
LIMIT = 600


class MutationError(RuntimeError):
    """Nothing can be said of the mutants: there are no tests here, or they fail without a mutation."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant | None
    #: The test that failed, "timeout", or None: it survived.
    killed_by: str | None
    seconds: float

    def __str__(self) -> str:
        what = "SURVIVED" if self.killed_by is None else f"killed by {self.killed_by}"
        return f"{self.seconds:4.0f} s  {self.mutant.module if self.mutant else 'nothing mutated'}: {what}"


def run(sample: Sequence[Mutant | None], jobs: int, tests: Sequence[str] = TESTS) -> Iterator[Outcome]:
    """Try mutants, each in a process of its own; None is the code as it is. Raises :class:`MutationError`."""
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        found = pool.imap(partial(_try, tests=_files(tests)), sample, chunksize=1)
        for mutant, (killed_by, seconds) in zip(sample, found, strict=True):
            yield Outcome(mutant, killed_by, seconds)


def _try(mutant: Mutant | None, tests: Sequence[str]) -> tuple[str | None, float]:
    """Run the tests on a mutant until one fails: what killed it, and the seconds. For a process of its own."""
    start, first = time.monotonic(), _First()
    for name in [name for name in sys.modules if name.split(".")[0] in {"attn_spec", "tests"}]:
        del sys.modules[name]
    if mutant is not None:
        sys.meta_path.insert(0, _Mutated(mutant))
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)  # the timer of real time belongs to the limits of calls under test
    # Rewriting assertions, pytest would be asked for the module first.
    options = "-x -q --assert=plain -p no:cacheprovider -p no:xdist --hypothesis-seed=0"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            status = pytest.main([*options.split(), *tests], plugins=[first])
    except _LateError:
        return "timeout", time.monotonic() - start
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return (first.failed or f"pytest, exit status {int(status)}") if status else None, time.monotonic() - start


class _LateError(BaseException):
    """The tests have taken too long; no handler of exceptions in the code under test may catch it."""


def _late(*_: Any) -> None:
    raise _LateError


class _First:
    """A plugin of pytest that remembers the first test that failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Mutated(importlib.machinery.SourceFileLoader):
    """Finds one module, ahead of every other finder, and loads it from other source than its file."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(f"attn_spec.{mutant.module}", str(path_of(mutant.module)))
        self.source = mutant.source

    def find_spec(self, name: str, *_: Any) -> Any:
        """As finders are asked."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - as loaders are asked
        """The mutated source."""
        return self.source

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - as loaders are asked
        """The mutated code, whatever is cached."""
        return compile(self.source, self.path, "exec")


def _files(tests: Sequence[str]) -> list[str]:
    """The files of tests. Raises :class:`MutationError`."""
    folder = Path(attn_spec.__path__[0]).parent / "tests"
    files = [folder.joinpath(name).with_name(f"test_{Path(name).name}.py") for name in tests]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise MutationError(
            f"no test file {', '.join(missing)}: run this in a checkout of attn-spec, installed editable"
        )
    return [str(file) for file in files]


def _reason(mutant: Mutant) -> str | None:
    """Why no test can kill a mutant."""
    return REASONS.get((mutant.module, mutant.change))


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Sample mutants, try them, print each when it is done, and the score with the survivors at last."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.mutation.report", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100, help="how many are sampled (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which are (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    parser.add_argument(
        "--module", action="append", choices=MODULES, metavar="NAME", help="mutate this module alone; may be repeated"
    )
    chosen = parser.parse_args(arguments)
    every = places(chosen.module or MODULES)
    if chosen.mutants < 1:
        parser.error(f"--mutants must be 1 or more, not {chosen.mutants}")
    sample = list(sampled(every, chosen.mutants, chosen.seed))
    say(f"{len(sample)} mutants of {len(every)} places, drawn with seed {chosen.seed}")
    outcomes = run([None, *sample], chosen.jobs)
    whole = next(outcomes)
    if whole.killed_by is not None:
        raise MutationError(f"the tests fail without a mutation: {whole.killed_by}; mend that first")
    survivors = []
    for outcome in outcomes:
        say(str(outcome))
        if outcome.mutant is not None and outcome.killed_by is None:
            survivors.append(outcome.mutant)
            reason = _reason(outcome.mutant) or "no reason is known"
            say(f"{outcome.mutant.operator}: {reason}\n{outcome.mutant.change}")
        sys.stdout.flush()
    unexplained = [mutant for mutant in survivors if _reason(mutant) is None]
    killed = len(sample) - len(survivors)
    say(f"\n{killed} of {len(sample)} mutants killed ({killed / len(sample):.0%}); {len(unexplained)} without a reason")
    return int(killed < LEAST * len(sample) or bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())

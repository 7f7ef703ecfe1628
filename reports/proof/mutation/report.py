"""Mutate truth, bounds, judgement and verdicts, and count how many of the mutants the tests kill.

    python -m attn_spec.reports.proof.mutation.report --mutants 100 --seed 0 --jobs 2

The mutants are those of ``sample``. Each is made in memory, in a process of its own, that runs the tests of
these modules until the first one fails. Exit status 0: at least nine of ten are killed, and each survivor
has its reason in ``survivors``; 1: not. It runs in a checkout, where the tests are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import Task

from .sample import MODULES, Mutant, places, sampled
from .survivors import REASONS
from .trial import LIMIT, MutationError, tried

#: The tests of these files, those first that are fast and kill most.
TESTS = (
    *("bounds/recorded_bounds", "bounds/domain", "judgement/measure", "bounds/sound_arithmetic", "problem/masks"),
    *(
        "attention/definition",
        "judgement/oracle",
        "attention/gradients",
        "contract/contract",
        "reports/proof/teeth/left_out",
    ),
    *("contract/readings", "evidence/certificate", "search/assertions", "kernels/subject", "kernels/defects"),
    *("chance/error_statistics", "judgement/long/gradient_blocks"),
    *("attention/gradient_agreement", "attention/gradient_laws", "attention/enclosure"),
    *(
        "attention/gradient_enclosure",
        "judgement/gross_errors",
        "search/textbook",
        "bounds/score_bounds",
        "bounds/bounds",
        "bounds/weighted_means",
        "bounds/weight_gradients",
        "attention/scores",
        "bounds/operand_bounds",
        "bounds/gradient_domain",
        "bounds/pair_bounds",
        "attention/layers",
        "bounds/replay",
        "bounds/replay_sharpness",
        "bounds/block_scales",
        "bounds/output_scale",
        "bounds/scaled_probabilities",
        "bounds/descales",
        "attention/sinks",
        "contract/quantisers",
        "implementations/quantised",
        "reports/errors/quantisation",
    ),
    "reports/proof/witnesses/witnesses",
)

#: The least share that is to be killed.
LEAST = 0.9


@dataclass(frozen=True)
class Outcome:
    """Outcome of the tests on one mutant."""

    mutant: Mutant | None
    #: The test that failed, "timeout", or None: it survived.
    killed_by: str | None
    seconds: float

    def __str__(self) -> str:
        what = "SURVIVED" if self.killed_by is None else f"killed by {self.killed_by}"
        return f"{self.seconds:4.0f} s  {self.mutant.module if self.mutant else 'nothing mutated'}: {what}"


def run(
    sample: Sequence[Mutant | None],
    jobs: int = 1,
    scheduler: str | None = None,
    *,
    tests: Sequence[str] = TESTS,
    limit: int = LIMIT,
) -> Generator[Outcome, None, None]:
    """Try mutants, each in a process of its own, for ``limit`` seconds at most; None is the code as it is.

    At most ``jobs`` run at once, or as many as a Dask ``scheduler`` has workers. Raises :class:`MutationError`.
    """
    tasks = [
        Task.of(f"mutant {place} of {mutant.module if mutant else 'nothing'}", tried, mutant, tests, limit)
        for place, mutant in enumerate(sample)
    ]
    with closing(sweep(tasks, jobs=jobs, scheduler=scheduler)) as found:
        for mutant, (killed_by, seconds) in zip(sample, found, strict=True):
            yield Outcome(mutant, killed_by, seconds)


def _reason(mutant: Mutant) -> str | None:
    """Return the reason why no test can kill a mutant."""
    return REASONS.get((mutant.module, mutant.change))


def _survivors(outcomes: Generator[Outcome, None, None], say: Callable[[str], None]) -> Iterator[Mutant]:
    """Say what becomes of each mutant. Raises :class:`MutationError` where the code as it is, the first, fails."""
    whole = next(outcomes)
    if whole.killed_by is not None:
        raise MutationError(f"the tests fail without a mutation: {whole.killed_by}; mend that first")
    for outcome in outcomes:
        say(str(outcome))
        if outcome.mutant is not None and outcome.killed_by is None:
            reason = _reason(outcome.mutant) or "no reason is known"
            say(f"{outcome.mutant.operator}: {reason}\n{outcome.mutant.change}")
            yield outcome.mutant
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Sample mutants, try them, print each when it is done, and the score with the survivors at last."""
    parser = argparse.ArgumentParser(prog="python -m attn_spec.reports.proof.mutation.report", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100, help="how many are sampled (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="which are (default 0)")
    add_options(parser, jobs=os.cpu_count() or 1)
    parser.add_argument(
        "--module", action="append", choices=MODULES, metavar="NAME", help="mutate this module alone; may be repeated"
    )
    chosen = parser.parse_args(arguments)
    every = places(chosen.module or MODULES)
    if chosen.mutants < 1:
        parser.error(f"--mutants must be 1 or more, not {chosen.mutants}")
    sample = list(sampled(every, chosen.mutants, chosen.seed))
    say(f"{len(sample)} mutants of {len(every)} places, drawn with seed {chosen.seed}")
    with refusals(parser), closing(run([None, *sample], chosen.jobs, chosen.scheduler)) as outcomes:
        survivors = list(_survivors(outcomes, say))
    unexplained = [mutant for mutant in survivors if _reason(mutant) is None]
    killed = len(sample) - len(survivors)
    say(f"\n{killed} of {len(sample)} mutants killed ({killed / len(sample):.0%}); {len(unexplained)} without a reason")
    return int(killed < LEAST * len(sample) or bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())

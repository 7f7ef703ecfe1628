"""Run stored cases again, each in a process that may die of it.

``python -m attn_spec.replay CASE.json SECONDS ISOLATE KERNEL PAGE`` runs one case here, each call limited, and says
``fixed``, ``still fails``, ``cannot run``, ``still suspect`` or ``not seen this time`` by its exit code, 0 to 4. The
last is said of kernels that draw another mask in each call: what chance showed once it need not show again. KERNEL is
empty for the case's own; PAGE is where to show the problem if it still fails, or empty.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_spec import atomic
from attn_spec.isolation import foreign
from attn_spec.isolation.confinement import hide_memory
from attn_spec.isolation.foreign import isolate_word
from attn_spec.search import cases
from attn_spec.search.cases import Case, CaseError

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.property import Property

#: What a replay finds, by exit code.
OUTCOMES = ("fixed", "still fails", "cannot run", "still suspect", "not seen this time")
#: Seconds after which a replay that does not end is ended.
LIMIT = 600.0


@dataclass(frozen=True)
class Replay:
    """The outcome of a replayed case."""

    #: Index into OUTCOMES, which is the exit code.
    code: int
    message: str
    #: Whether its problem was shown on a page.
    shown: bool = False

    def __str__(self) -> str:
        return OUTCOMES[self.code] + (f": {self.message}" if self.message else "")


def replay(
    path: Path,
    kernel: str | None = None,
    call_limit: float = 60.0,
    isolate: bool | None = None,
    page: Path | None = None,
) -> Replay:
    """Run the case of a file in a process of its own, with its own kernel or with another.

    ``isolate`` gives the kernel one more, None if it is none of attn-spec's. ``page`` is where to show the problem,
    as HTML, if it is still refuted.
    """
    hide_memory()  # what the process says comes through a pipe of this one
    command = [sys.executable, "-P", "-m", "attn_spec.replay", str(path), str(call_limit), isolate_word(isolate)]
    command += [kernel or "", "" if page is None else str(page)]
    begun = time.time_ns()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return Replay(1, f"no answer within {LIMIT:g} s")
    if done.returncode in range(len(OUTCOMES)) and done.stdout.startswith(_MARK):
        shown = page is not None and page.is_file() and page.stat().st_mtime_ns >= begun
        return Replay(done.returncode, done.stdout.removeprefix(_MARK).strip(), shown)
    if "Timeout (" in done.stderr:
        return Replay(1, "the kernel hung")
    return Replay(1, f"the kernel ended the process (exit code {done.returncode})")


_MARK = "attn-spec replay: "


def run(case: Case, call_limit: float, isolate: str = "never", kernel: str = "", page: str = "") -> Replay:
    """Check the case's claim on its problem, here."""
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.search.preflight import preflight
    from attn_spec.search.property import load_all

    claim = load_all().get(case.claim)
    if claim is None:
        return Replay(2, f"there is no property {case.claim!r} any more; see `attn-spec properties`")
    try:
        found = foreign.found(kernel or case.kernel, isolate, **({} if kernel else case.declared))
        (subject,) = preflight(found, (case.problem.dtype,), case.device, call_limit).subjects
    except KernelError as error:
        return Replay(2, str(error))
    needed = {*claim.needs, *case.problem.options()}
    if missing := sorted(option for option in needed if not subject.supports(option)):
        return Replay(2, f"{found.name} does not declare {', '.join(missing)}, which the case needs")
    if reason := claim.not_applicable(subject):
        return Replay(2, f"the claim does not apply to {found.name}: {reason}")
    return _check(claim, subject, case.problem, page)


def _check(claim: Property, subject: Subject, problem: Problem, page: str) -> Replay:
    """Check the claim on the problem."""
    from hypothesis.errors import UnsatisfiedAssumption

    from attn_spec.search.property import Suspicion

    try:
        claim.check(subject, problem)
    except Suspicion as error:
        return Replay(3, str(error))
    except AssertionError as error:
        if page:
            _show(claim, subject, problem, error, Path(page))
        return Replay(1, str(error))
    except UnsatisfiedAssumption:
        return Replay(2, f"the claim says nothing about {subject.kernel.name} and the problem of this case")
    if _draws_again(claim, subject):
        return Replay(4, "each call draws another mask, so that a wrong kernel may pass; replay it again or certify")
    return Replay(0, "")


def _show(claim: Property, subject: Subject, problem: Problem, error: AssertionError, page: Path) -> None:
    """Write the page of a refuted problem."""
    from attn_spec.evidence import failure, picture

    case = cases.case_of(claim, subject, problem, error)
    block = failure.block(case, claim, subject, None)
    title = f"{subject.kernel.name}: {claim.id}"
    atomic.write(page, picture.page(title, block, problem, getattr(error, "measurement", None)))


def _draws_again(claim: Property, subject: Subject) -> bool:
    """Whether the claim is about calls without a seed, each of which draws a mask of its own."""
    from attn_spec.kernels.dropping import needs_seed

    return "dropout_by_chance" in claim.needs and "dropout_seed" not in claim.needs and not needs_seed(subject.kernel)


def main(arguments: list[str]) -> int:
    """Run one case and return its exit code."""
    try:
        path, call_limit, *others = arguments
        done = run(cases.load(Path(path)), float(call_limit), *others)
    except CaseError as error:
        done = Replay(2, str(error))
    print(_MARK + done.message)  # noqa: T201 -- read by the parent process
    return done.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

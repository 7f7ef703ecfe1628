"""Replay of stored cases, in a process that the kernel may crash.

``python -m attn_spec.sessions.replay SECONDS ISOLATE KERNEL PAGE CASE.json ..`` runs cases in this process, each call
limited. For each case it prints a line of JSON: 0 ``fixed``, 1 ``still fails``, 2 ``cannot run``, 3 ``still suspect``,
4 ``not seen this time``. The last is for kernels that draw another mask in each call, where a failure by chance need
not occur again.

An empty KERNEL means the case's own. PAGE is the path of a page on the problem if it still fails, or empty.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_spec import atomic, faults
from attn_spec.isolation import foreign
from attn_spec.isolation.choices import isolate_word
from attn_spec.isolation.confinement import hide_memory
from attn_spec.search import cases
from attn_spec.search.cases import Case, CaseError

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.property import Property

#: Outcomes of a replay, by number.
OUTCOMES = ("fixed", "still fails", "cannot run", "still suspect", "not seen this time")
#: Seconds after which a replay that does not end is ended.
LIMIT = 600.0


@dataclass(frozen=True)
class Replay:
    """The outcome of a replayed case."""

    #: Index into OUTCOMES.
    code: int
    message: str
    #: True if the page shows the problem.
    shown: bool = False

    def __str__(self) -> str:
        return OUTCOMES[self.code] + (f": {self.message}" if self.message else "")


def replays(
    paths: Sequence[Path],
    kernel: str | None = None,
    call_limit: float = 60.0,
    isolate: bool | None = None,
    page: Path | None = None,
) -> Iterator[tuple[Path, Replay]]:
    """Run the cases of files, in a process of their own, with their own kernels or with another.

    If a process ends before its cases do, another process runs the remaining ones. ``isolate`` gives each kernel one
    more process; None does so for kernels outside attn-spec. ``page`` is the path of an HTML page on the problem of a
    case that is still refuted.
    """
    hide_memory()  # the process reports through a pipe of this one
    command = [
        sys.executable,
        "-P",
        "-m",
        "attn_spec.sessions.replay",
        str(call_limit),
        isolate_word(isolate),
        kernel or "",
    ]
    command += ["" if page is None else str(page)]
    left = list(paths)
    while left:
        with _Running([*command, *map(str, left)]) as running:
            while left:
                found = running.next()
                yield left.pop(0), found
                if running.has_ended:
                    break


class _Running(contextlib.AbstractContextManager["_Running"]):
    """A process that runs cases one after the other."""

    def __init__(self, command: list[str]) -> None:
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- closed with the process
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True)  # noqa: S603
        self.has_ended = False

    def next(self) -> Replay:
        """Return the outcome of the next case, or how the process ended instead."""
        late = threading.Timer(LIMIT, self.process.kill)
        late.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if line.startswith(_MARK):
                    return Replay(**json.loads(line.removeprefix(_MARK)))
        finally:
            was_late = not late.is_alive()
            late.cancel()
        self.has_ended = True
        return Replay(1, f"no answer within {LIMIT:g} s" if was_late else self._last_words())

    def _last_words(self) -> str:
        code = self.process.wait()
        self.errors.seek(0)
        hung = "Timeout (" in self.errors.read()
        return "the kernel hung" if hung else f"the kernel ended the process (exit code {code})"

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


_MARK = "attn-spec replay: "


def run(case: Case, call_limit: float, isolate: str = "never", kernel: str = "", page: str = "") -> Replay:
    """Check the case's property on its problem, in this process."""
    from attn_spec.kernels.kernel import KernelError
    from attn_spec.search.preflight import preflight
    from attn_spec.search.property import load_all

    if not (kernel or case.kernel):
        return Replay(2, "an assertion stored this case, and knows no kernel; name one by --kernel")
    property_ = load_all().get(case.property_id)
    if property_ is None:
        return Replay(2, f"property {case.property_id!r} no longer exists; see `attn-spec properties`")
    try:
        found = foreign.found(kernel or case.kernel, isolate, **({} if kernel else case.declared))
        (subject,) = preflight(found, (case.problem.dtype,), case.device, call_limit).subjects
    except KernelError as error:
        return Replay(2, str(error))
    needed = {*property_.needs, *case.problem.options()}
    if missing := sorted(option for option in needed if not subject.supports(option)):
        return Replay(2, f"{found.name} does not declare {', '.join(missing)}, which the case needs")
    if reason := property_.reason_not_to_apply(subject):
        return Replay(2, f"the property does not apply to {found.name}: {reason}")
    return _check(property_, subject, case.problem, page)


def _check(property_: Property, subject: Subject, problem: Problem, page: str) -> Replay:
    """Check the property on the problem, and write the page if it fails."""
    from hypothesis.errors import UnsatisfiedAssumption

    from attn_spec.kernels.limits import NotTaken
    from attn_spec.search.property import NotExamined, Suspicion

    try:
        property_.check(subject, problem)
    except Suspicion as error:
        return Replay(3, str(error))
    except AssertionError as error:
        missing: list[str] = []
        if page:
            with faults.told(f"page {page}", missing):
                _show(property_, subject, problem, error, Path(page))
        return Replay(1, "\n".join([str(error), *missing]), shown=bool(page) and not missing)
    except (UnsatisfiedAssumption, NotTaken, NotExamined) as error:
        why = f": {error}" if str(error) else ""
        return Replay(2, f"the property says nothing about {subject.kernel.name} and the problem of this case{why}")
    if _draws_again(property_, subject):
        return Replay(4, "each call draws another mask, so that a wrong kernel may pass; replay it again or certify")
    return Replay(0, "")


def _show(property_: Property, subject: Subject, problem: Problem, error: AssertionError, page: Path) -> None:
    """Write the page of a refuted problem."""
    from attn_spec.evidence import failure, picture

    case = cases.case_of(property_, subject, problem, error)
    block = failure.block(case, property_, subject, None)
    title = f"{subject.kernel.name}: {property_.id}"
    atomic.write(page, picture.page(title, block, problem, getattr(error, "measurement", None)))


def _draws_again(property_: Property, subject: Subject) -> bool:
    """Return whether the property concerns calls without a seed, each of which draws a mask of its own."""
    from attn_spec.kernels.dropping import needs_seed

    return (
        "dropout_by_chance" in property_.needs
        and "dropout_seed" not in property_.needs
        and not needs_seed(subject.kernel)
    )


def main(arguments: list[str]) -> None:
    """Run cases, and print a line for each to the parent process."""
    call_limit, isolate, kernel, page, *paths = arguments
    for path in paths:
        try:
            done = run(cases.load(Path(path)), float(call_limit), isolate, kernel, page)
        except CaseError as error:
            done = Replay(2, str(error))
        print(_MARK + json.dumps(asdict(done)), flush=True)  # noqa: T201 -- read by the parent process


if __name__ == "__main__":
    main(sys.argv[1:])

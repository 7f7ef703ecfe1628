"""Certification of one kernel: properties run in a child process, whose death is survived and becomes a verdict.

The child is pytest with a configuration of its own. Neither the user's settings nor a kernel that crashes, hangs or
exits can do harm here. It reports line by line, and the case it had in flight when it died names the culprit.
The environment holds its request, and a pipe its report: other processes see its command line, and may write files.
This process, which draws nothing and calls no kernel, imports no more than it shows: cases only when a child dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from attn_spec import atomic, faults
from attn_spec.evidence.certificate import Certificate, build
from attn_spec.isolation.confinement import hide_memory
from attn_spec.kernels.time_limit import COMPILING, crowding, ended_after
from attn_spec.search.profiles import PROFILES
from attn_spec.search.verdict import NOT_RUN, Row, Verdict, against
from attn_spec.sessions.progress import FIRST_REFUTATION, INTERRUPTION, Event, Progress, Request
from attn_spec.workers import threads
from attn_spec.workers.sweep import sweep
from attn_spec.workers.task import Task

#: Largest number of deaths of the child; after these the remaining properties are not exercised.
DEATHS = 3
#: Seconds between two readings of the report.
POLL = 0.1
#: Default number of shares of the work with a cluster.
SHARES = 8
#: Seconds without a report, beyond the limit of a call, after which the child is ended; more on a crowded machine.
PATIENCE = 600.0

#: Options that keep pytest from reading or writing anything in the user's folder.
ALONE = ("--import-mode=importlib", "--assert=plain", "--noconftest", "-p", "no:cacheprovider", "-q")
#: Options that load the plugin and select the package of the properties.
SUITE = ("-p", "attn_spec.pytest_plugin", "--pyargs", "attn_spec.properties")


class CannotRunError(Exception):
    """The kernel could not be examined at all; the text says why and what to do next."""


def examine(
    request: Request, watch: Callable[[Progress], None] = lambda progress: None
) -> tuple[Certificate, Progress]:
    """Examine a kernel and return its certificate; ``watch`` is called as the work goes on.

    Ctrl-C ends the examination with the verdicts reached by then. Raises :class:`CannotRunError`, and
    :class:`attn_spec.workers.task.WorkersError` with a scheduler.
    """
    progress, output = Progress(), ""
    if request.seed is None and PROFILES[request.profile].seed is None:
        request = replace(request, seed=secrets.randbits(32))  # one seed for all shares
    try:
        if request.scheduler is None:
            output = _examine_shares(request, range(request.workers), progress, watch)
        else:
            output = _examine_on_cluster(request, progress, watch)
    except KeyboardInterrupt:
        if not progress.keys:
            raise
        progress.stopped = INTERRUPTION
    if progress.trouble:
        raise CannotRunError(progress.trouble)
    if progress.kernel is None or not progress.keys:
        raise CannotRunError(f"no property was examined. The last lines that pytest printed are:\n{output}")
    is_left = len(progress.rows) < len(progress.keys) or len(progress.shares) < request.workers
    if _is_enough(request, progress) and is_left:
        progress.stopped = progress.stopped or FIRST_REFUTATION
    _add_what_was_not_run(progress)
    rows = [progress.rows[key] for key in progress.keys]
    kernel = {**progress.kernel, "subject": {**progress.kernel["subject"], **progress.account}}
    powers = [] if progress.is_refuted else progress.powers
    return build(kernel, rows, powers, complete=not progress.stopped), progress


def _is_enough(request: Request, progress: Progress) -> bool:
    """Return whether the examination ends here, because the request stops at the first refutation."""
    return request.fail_fast and progress.is_refuted


def _add_what_was_not_run(progress: Progress) -> None:
    """Add a verdict "not exercised", with the reason, for each property that has none."""
    for share, keys in progress.shares.items():
        died = f"{NOT_RUN}since the process had died too often"
        why = "ended without a verdict" if share in progress.ended else died
        why = f"{NOT_RUN}{progress.stopped}" if progress.stopped else why
        for property_id, kernel, dtype in set(keys) - set(progress.rows):
            verdict = Verdict.NOT_EXERCISED
            progress.add(Row(property=property_id, kernel=kernel, dtype=dtype, verdict=verdict, message=why))


def _examine_shares(
    request: Request, shares: Iterable[int], progress: Progress, watch: Callable[[Progress], None]
) -> str:
    """Examine shares side by side, and return the last lines that the first process printed.

    Raises :class:`CannotRunError`.
    """
    hide_memory()  # the reports come through pipes of this process
    with tempfile.TemporaryDirectory(prefix="attn-spec-") as folder, contextlib.ExitStack() as closing:
        children = [_Child(request, Path(folder), share) for share in shares]
        going = [closing.enter_context(contextlib.closing(child.run(progress))) for child in children]
        while going and not progress.trouble and not _is_enough(request, progress):
            going = [one for one in going if next(one, False)]
            watch(progress)
            time.sleep(POLL)
        return children[0].output()


def _examine_on_cluster(request: Request, progress: Progress, watch: Callable[[Progress], None]) -> str:
    """Let the workers of a cluster examine the shares; a share whose worker is lost is examined anew."""
    from attn_spec.search import cases

    tasks = [
        Task.of(
            f"share {share} of {request.workers} of {request.kernel}", examine_share, request, share, str(Path.cwd())
        )
        for share in range(request.workers)
    ]
    output = ""
    with contextlib.closing(sweep(tasks, scheduler=request.scheduler)) as every:
        for found in every:
            _check_alike(progress.kernel, found.progress.kernel)
            progress.take(found.progress)
            for name, text in found.cases.items():
                atomic.write(cases.HOME / "cases" / name, text)
            watch(progress)
            output = output or found.output
            if progress.trouble or _is_enough(request, progress):
                break
    return output


@dataclass(frozen=True)
class Examined:
    """Result of a share, to be sent to another machine."""

    progress: Progress
    output: str
    #: Stored cases, and their scripts, by file name.
    cases: dict[str, str]


def examine_share(request: Request, share: int, folder: str) -> Examined:
    """Examine a share, in ``folder`` if this machine has that folder. Raises :class:`CannotRunError`."""
    from attn_spec.search.cases import HOME

    progress = Progress()
    with contextlib.chdir(folder if Path(folder).is_dir() else "."):
        output = _examine_shares(request, [share], progress, lambda _: None)
        known = [row.case for row in progress.rows.values() if row.case]
        files = [path for case in known for path in sorted((HOME / "cases").glob(f"{case}.*"))]
        return Examined(progress, output, {path.name: path.read_text(encoding="utf-8") for path in files})


def _check_alike(one: Event | None, other: Event | None) -> None:
    """Raise :class:`CannotRunError` unless both reports are of one kernel in one environment."""
    if one is None or other is None:
        return
    apart = [
        f"{kind}.{name}: {one[kind].get(name)} and {other[kind].get(name)}"
        for kind in ("subject", "environment", "suite", "configuration", "declarations")
        for name in sorted({*one[kind], *other[kind]})
        if one[kind].get(name) != other[kind].get(name)
    ]
    if apart:
        raise CannotRunError(f"the workers are not alike, but a certificate describes one machine: {'; '.join(apart)}")


class _Child:
    """The pytest process that examines a share, and its successors if it dies."""

    def __init__(self, request: Request, home: Path, share: int) -> None:
        self.request, self.share = request, share
        folder = home / str(share)
        folder.mkdir()
        self.done, self.log = folder / "done.jsonl", folder / "output.txt"
        self.folder = folder
        #: Descriptor that the report is read from, and the start of a line that is not complete yet.
        self.report, self.begun = -1, b""
        #: Seconds without a report after which the child is ended on a machine that it has for itself.
        self.silence = PATIENCE + COMPILING * request.call_limit
        #: Seconds without a report after which the process was ended; 0 if it was not.
        self.stalled = 0.0
        #: True if this process, or the one before it, has begun the first look.
        self.looked = False

    def start(self) -> None:
        """Start pytest for all properties without a verdict."""
        self.begun = b""
        self.report, writing = os.pipe()
        os.set_blocking(self.report, False)
        config = self.folder / "pytest.ini"
        config.write_text("[pytest]\n", encoding="utf-8")
        command = [sys.executable, "-P", "-m", "pytest", "-c", str(config), "--rootdir", str(self.folder)]
        command += [*ALONE, *SUITE]
        asked = [f"--attn-report=/dev/fd/{writing}", f"--attn-continue={self.done}", *self.request.arguments()]
        asked += [f"--attn-share={self.share}/{self.request.workers}", *["--attn-no-first-look"] * self.looked]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": shlex.join(asked)}
        environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.folder / "hypothesis")
        environment |= threads.share(self.request.workers)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(  # noqa: S603 -- the command is this interpreter's pytest
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, pass_fds=[writing]
            )
        os.close(writing)

    def run(self, progress: Progress) -> Generator[bool, None, None]:
        """Run pytest, again after a death, and yield True at every reading. Raises :class:`CannotRunError`."""
        for _ in range(DEATHS):
            had_looked = self.looked
            self.start()
            yield from self._looks(progress)
            if self.share in progress.ended or progress.trouble:
                return
            if self.share in progress.shares or had_looked or not self.looked:
                self.blame(progress)

    def _looks(self, progress: Progress) -> Iterator[bool]:
        """Pass the reports of the process on to ``progress``, until the process ends."""
        last, crowded = time.monotonic(), 1.0
        try:
            while True:
                alive = self.process.poll() is None
                for event in self._news():
                    self._note(event)
                    last, crowded = time.monotonic(), 1.0
                    self.looked = self.looked or event["kind"] == "look"
                    progress.hear(event, self.share)
                    if _is_enough(self.request, progress):
                        yield True  # later events are not read
                if not alive:
                    return
                crowded = max(crowded, crowding())
                if time.monotonic() - last > self.silence * crowded:
                    self.stalled = time.monotonic() - last
                    self.process.kill()
                yield True
        except BaseException:  # nobody reads any more: the case in flight did nothing
            self.process.kill()
            from attn_spec.search.cases import InFlight

            InFlight(process=self.process.pid).release()
            raise
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.report)

    def blame(self, progress: Progress) -> None:
        """Record the child's death as a verdict on the property it was checking, with the case in flight.

        The verdict is "not exercised" if the child made no progress, or if memory ran out. Raises
        :class:`CannotRunError` if the child died before the first property.
        """
        from attn_spec.search.cases import InFlight, save

        reason = self._cause()
        case = InFlight(process=self.process.pid).take(reason)
        if self.share not in progress.begun:
            if self.share not in progress.shares:
                raise CannotRunError(f"{reason} before the first property was examined.\n{self.output()}")
            return
        property_id, kernel, dtype = progress.begun[self.share]
        starved = case is not None and case.is_large and self.process.returncode == -signal.SIGKILL
        reason += ", as systems do when memory runs out: ask for fewer heads" if starved else ""
        verdict = Verdict.REFUTED if case and not self.stalled and not starved else Verdict.NOT_EXERCISED
        row = Row(property=property_id, kernel=kernel, dtype=dtype, verdict=verdict, message=reason)
        missing: list[str] = []
        if case:
            with faults.told("case", missing):
                save(case)
                row = replace(row, case=case.id)
        row = against(row, progress.known_defects)
        block = f"{row.verdict.upper()}  {reason}\n  property  {property_id}\n  kernel    {kernel}, {dtype}"
        if case:
            block += f"\n  problem   {case.problem!r}"
            block += f"\n  replay    attn-spec replay {case.id}" if row.case else "".join(f"\n{x}" for x in missing)
        event = {"kind": "row", "row": row.to_json(), "block": block}
        progress.hear(event, self.share)
        self._note(event)

    def output(self, lines: int = 12) -> str:
        """Return the last lines that the child printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _news(self) -> Iterator[Event]:
        with contextlib.suppress(BlockingIOError):
            while came := os.read(self.report, 2**20):
                *lines, self.begun = (self.begun + came).split(b"\n")
                yield from map(json.loads, lines)

    def _note(self, event: Event) -> None:
        """Write a verdict down for a successor of this process, which examines properties without a verdict."""
        if event["kind"] == "row":
            with self.done.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")

    def _cause(self) -> str:
        """Return a sentence on how the child died."""
        if self.stalled:
            return f"the examination made no progress for {self.stalled:.0f} s and was stopped"
        code = self.process.returncode
        if seconds := ended_after(self.log.read_text(errors="replace")):
            return f"the kernel hung: a call did not return within {seconds:g} s, nor to the interpreter"
        with contextlib.suppress(ValueError):
            return f"the kernel crashed the process ({signal.Signals(-code).name})"
        return f"the kernel ended the process (exit code {code})"

"""One pytest session: the kernels it examines, the verdicts it reaches, and the report it writes as it goes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_spec import faults
from attn_spec.search.profiles import PROFILES
from attn_spec.search.verdict import Row, Verdict, against, denominator
from attn_spec.sessions.crashes import Crashes
from attn_spec.sessions.selection import Key

if TYPE_CHECKING:
    import pytest

    from attn_spec.judgement.planted_errors import Power
    from attn_spec.kernels.defects import Defect
    from attn_spec.kernels.kernel import Kernel
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.shape_spec import AskedShape
    from attn_spec.search.preflight import Preflight
    from attn_spec.search.profiles import Profile
    from attn_spec.search.property import Property
    from attn_spec.search.stored_cases import StoredCases

#: Keys in ``report.user_properties``: of a row, of the block of a suspect, and of error / bound of a test's answer.
ROW, BLOCK, NEAR = "attn_spec_row", "attn_spec_block", "attn_spec_error_over_bound"

#: Number of cases that are shrunk as far as the profile allows; a screen shows as many.
SHRUNK = 5
#: Seconds between two messages on the progress of a search.
TICK = 0.25
#: Line on a refutation that the kernel's own table expects, if that table does not count.
OWN_TABLE = "  known     the kernel's own table of known defects expects this: it counts with --known-defects own"


class Session:
    """The state of the plugin in one session. ``option`` reads the options named --attn-..."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.profile = PROFILES[self.option("profile")]
        self.seed = self._seed()
        #: Known defects of any kernel, from the file that the option names.
        self.known_defects: tuple[Defect, ...] = ()
        self.preflights: list[Preflight] | None = None
        #: Kernels left out because they do not run here, with the reason.
        self.left_out: dict[str, str] = {}
        self.collected: list[Key] = []
        self.rows: list[Row] = []
        #: Number of cases found in this process.
        self.cases = 0
        self.crashes = Crashes()
        #: Failure blocks of the suspects.
        self.suspects: list[str] = []
        #: Error / bound and test name of each answer that a user's test asserted.
        self.answers: list[tuple[float, str]] = []
        #: Reason why no verdict counts, if a file of a kernel changed during the session.
        self.changed = ""
        #: Power of the verdicts, and reasons why it could not be measured.
        self.powers: list[Power] = []
        self.without_power: list[str] = []
        #: Copy of stderr before pytest captures it, for the stack of a kernel that hangs.
        self.stderr = os.dup(2)

    def option(self, name: str) -> Any:
        """Return the value of an option."""
        return self.config.getoption(f"attn_{name}")

    @functools.cached_property
    def stored(self) -> StoredCases:
        """Cases that earlier runs in this folder stored."""
        from attn_spec.search.stored_cases import StoredCases

        return StoredCases()

    @property
    def subjects(self) -> list[Subject]:
        """Every kernel at every dtype."""
        return [subject for checked in self.preflights or [] for subject in checked.subjects]

    def find_kernels(self) -> None:
        """Find the kernels and call each once, unless done before. Raises :class:`KernelError`."""
        if self.preflights is None:
            from attn_spec.kernels.resolve import in_tree

            named = self.option("kernel")
            found = [self._preflight(spec, named=bool(named)) for spec in named or in_tree()]
            self.preflights = [self._at_shapes(checked) for checked in found if checked is not None]
            self._read_known_defects()

    def verdict(self, property_: Property, subject: Subject) -> tuple[Row, str]:
        """Return the verdict on a property, and the failure block if it is refuted or suspect.

        The case and its script are stored. A kernel that crashed at several properties in a row is not asked.
        """
        row, block = self.crashes.row(property_.id, subject.kernel.name, subject.dtype), ""
        if row is None:
            row, block = self._verdict(property_, subject)
            self.crashes.note(row)
        return row, block

    def _verdict(self, property_: Property, subject: Subject) -> tuple[Row, str]:
        """Return the verdict on a property that is examined, and the failure block."""
        from attn_spec.evidence import failure, script
        from attn_spec.search import cases
        from attn_spec.search.missing_limits import needed
        from attn_spec.search.search import search

        key = (property_.id, subject.kernel.name, subject.dtype)
        of_kernel = self.known_defects_of(subject.kernel)
        known = [one for one in of_kernel if one.is_of(subject.kernel.name, subject.dtype, property_.id)]

        def found(message: str) -> None:
            if not any(not defect.needs for defect in known):
                self.tell("found", key=key, message=message)

        self.tell("start", key=key)
        stored = path = written = None
        missing: list[str] = []
        with faults.told("stored cases", missing):
            stored = self.stored.refuting(property_, subject)
        row, case = stored or search(property_, subject, self._effort(), self.seed, self._ticker(), found=found)
        if case is not None and any(one.needs for one in known):
            with faults.told("options that a refutation needs", missing):
                row = dataclasses.replace(row, needed=needed(property_, subject, case.problem))
        row = against(row, known)
        if case is None:
            return row, ""
        self.cases += 1
        with faults.told("case", missing):
            path = cases.save(case)
        if path is not None:
            with faults.told("script", missing):
                written = script.write(case, property_, subject, path.with_suffix(".py"))
        block = f"{row.verdict.upper()}  {property_.statement}\n  {row.message}"
        with faults.told("the rest", missing):
            block = failure.block(case, property_, subject, written, row.verdict, is_stored=path is not None)
        block = "\n".join([block, *missing])
        if row.verdict is Verdict.REFUTED and against(row, subject.kernel.known_defects) is not row:
            block += f"\n{OWN_TABLE}"
        return (row if path else dataclasses.replace(row, case="")), block

    def check_shapes(self) -> None:
        """Raise :class:`attn_spec.problem.shape_spec.ShapeError` for a shape that does not fit in memory."""
        if shapes := self.option("shape"):
            from attn_spec.search.drawing.asked_shapes import check_memory

            check_memory(shapes)

    def _at_shapes(self, checked: Preflight) -> Preflight:
        """Return the preflight with the shapes that the user asked for added to its subjects."""
        shapes = tuple(dict.fromkeys((*self.option("shape"), *self._shapes_of_workloads(checked))))
        subjects = tuple(dataclasses.replace(subject, shapes=shapes) for subject in checked.subjects)
        return dataclasses.replace(checked, subjects=subjects)

    def _shapes_of_workloads(self, checked: Preflight) -> tuple[AskedShape, ...]:
        """Return the shapes of the file of workloads, for a kernel that is a document. Raises :class:`KernelError`."""
        if self.option("workload") is None:
            return ()
        from attn_spec.kernels.flashinfer_trace.workloads import shapes_of
        from attn_spec.kernels.kernel import KernelError
        from attn_spec.problem.shape_spec import ShapeError
        from attn_spec.search.drawing.asked_shapes import check_memory

        kernel = checked.subjects[0].kernel
        try:
            found = shapes_of(Path(self.option("workload")), self.option("definition") or kernel.spec)
            check_memory(found)
        except ShapeError as error:
            raise KernelError(f"{self.option('workload')}: {error}") from None
        return found

    def known_defects_of(self, kernel: Kernel) -> tuple[Defect, ...]:
        """Return the known defects of the file, and the kernel's own if they count: no kernel may excuse itself."""
        from attn_spec.kernels.defects import OWN

        counts = not kernel.isolated or self.option("known_defects") == OWN
        return *(kernel.known_defects if counts else ()), *self.known_defects

    def _effort(self) -> Profile:
        """Return the profile, with fewer problems under --attn-brief, and less shrinking after ``SHRUNK`` cases.

        Shrinking takes most of a run, and a reader has enough small cases by then.
        """
        profile = self.profile
        if self.option("brief"):
            profile = dataclasses.replace(profile, examples=profile.floor)
        if self.cases < SHRUNK:
            return profile
        return dataclasses.replace(profile, shrink_seconds=profile.shrink_seconds / 50)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect rows, in the process that has the terminal."""
        found: dict[str, Any] = dict(report.user_properties) if report.when == "call" else {}
        if ROW in found:
            self.rows.append(Row.from_json(found[ROW]))
            self.suspects += [found[BLOCK]] if BLOCK in found else []
            self.tell("row", row=found[ROW], block=report.longreprtext if report.failed else found.get(BLOCK, ""))
        if report.when == "call":
            ratios = [x for name, x in report.user_properties if name == NEAR and isinstance(x, float)]
            self.answers += [(ratio, report.nodeid) for ratio in ratios]

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Report an error that ends pytest itself. No kernel causes it, since calls of kernels are guarded."""
        self.tell("fault", message=faults.text(excinfo.value))

    def header(self) -> list[str]:
        """Return lines on kernels, device, dtypes, profile and seed."""
        kernels = {subject.kernel.name: subject.kernel for subject in self.subjects}
        named = ", ".join(f"{name} ({kernel.digest[:8]})" for name, kernel in kernels.items())
        dtypes = ", ".join(dict.fromkeys(subject.dtype for subject in self.subjects))
        search = f"profile {self.profile.name}, seed {self.seed}"
        return [f"attn-spec: {named}", f"attn-spec: {self.option('device')}, {dtypes}, {search}"]

    def summary(self) -> list[str]:
        """Return the lines of the final summary: of properties, of answers, and of changed files."""
        near = max(self.answers, default=(0.0, ""))
        answers = f"{len(self.answers)} answers judged, up to {near[0]:.2g} of the error allowed: {near[1]}"
        changed = [f"no verdict counts: {self.changed}"] if self.changed else []
        return (self._of_properties() if self.rows else []) + ([answers] if self.answers else []) + changed

    def _of_properties(self) -> list[str]:
        """Return lines on suspects, which fail no test, on partial examinations, counts and kernels left out."""
        left_out = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        search = f"profile {self.profile.name}, seed {self.seed}"
        looked_at = [f"{row.kernel} {row.dtype} {words}" for row in self.rows for words in row.looked_at]
        blocks, power = (f"{block}\n" for block in self.suspects), self._power()
        return [*blocks, *looked_at, search, denominator(self.rows), *power, *left_out]

    def _power(self) -> list[str]:
        """Return a line on the errors that would have been refuted; none if power was not measured."""
        if not self.powers:
            return self.without_power
        from attn_spec.judgement.planted_errors import line

        return [line(self.powers), *self.without_power]

    def describe(self) -> None:
        """Report for each kernel all that a certificate says beside the verdicts."""
        if self.option("report") is None:
            return
        from attn_spec.evidence import provenance

        device = self.option("device")
        for checked in self.preflights or []:
            self.tell(
                "kernel",
                subject=provenance.subject(checked.subjects[0].kernel),
                environment=provenance.environment(device),
                suite=provenance.suite(),
                configuration=provenance.configuration(checked, device, self.profile, self.seed)
                | {"only": self.option("property"), "memory": self.option("memory")}
                | {"shapes": [str(shape) for shape in checked.subjects[0].shapes]},
                known_defects=[dataclasses.asdict(one) for one in self.known_defects_of(checked.subjects[0].kernel)],
                declarations=provenance.declarations(checked),
                catalogue=provenance.catalogue(),
            )

    def weigh(self) -> None:
        """Plant errors in the subjects of this share, and report the errors that would have been refuted.

        Errors are planted only if kernels were named, since the power of many kernels together says nothing of one.
        Nothing is planted beside a refutation.
        """
        if not self.rows or not self.option("kernel") or any(row.verdict == "refuted" for row in self.rows):
            return
        from attn_spec.search.planting import powers

        chosen, (number, count) = self.option("property"), self.option("share")
        for subject in self.subjects[number::count]:
            with faults.told(f"power of {subject.dtype}", self.without_power):
                found = powers(
                    subject, self.seed, lambda property_id: not chosen or any(part in property_id for part in chosen)
                )
                for one in found:
                    self.powers.append(one)
                    self.tell("power", power=one.to_json())

    def give_account(self) -> None:
        """Report what calls have shown of each kernel. Raises :class:`KernelError` if one of its files changed."""
        from attn_spec.isolation.foreign import account

        for checked in self.preflights or []:
            self.tell("account", account=account(checked.subjects[0].kernel))

    def changed_files(self) -> bool:
        """Report the account again at the end; report and return whether a file of a kernel changed."""
        if not self.preflights:
            return False
        from attn_spec.kernels.kernel import KernelError

        try:
            self.give_account()
        except KernelError as error:
            self.changed = str(error)
            self.tell("refusal", message=self.changed)
        return bool(self.changed)

    def tell(self, kind: str, **content: Any) -> None:
        """Append one line to the report, unless this process is a worker of pytest-xdist."""
        path = self.option("report")
        if path and not hasattr(self.config, "workerinput"):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, **content}) + "\n")

    def _seed(self) -> int:
        """Return the seed of this run: the given one, the controller's, the profile's, or a new one."""
        inherited = getattr(self.config, "workerinput", {}).get("attn_seed")
        choices = (self.option("seed"), inherited, self.profile.seed)
        return next((seed for seed in choices if seed is not None), secrets.randbits(32))

    def _read_known_defects(self) -> None:
        """Read the known defects of the file, and check that all name properties. Raises :class:`KernelError`."""
        from attn_spec.kernels.defects import OWN, DefectError, read
        from attn_spec.kernels.kernel import KernelError
        from attn_spec.search.property import load_all

        try:
            path = self.option("known_defects")
            self.known_defects = read(path) if path and path != OWN else ()
        except DefectError as error:
            raise KernelError(str(error)) from error
        self._check_named(path)
        own = [defect for subject in self.subjects for defect in subject.kernel.known_defects]
        named = {defect.property for defect in (*own, *self.known_defects) if defect.property is not None}
        if unknown := sorted(named - set(load_all())) if named else []:
            raise KernelError(f"known defects name no property {', '.join(unknown)}; `attn-spec properties` lists them")

    def _check_named(self, path: Path | None) -> None:
        """Raise :class:`KernelError` if the file misspells an examined kernel; the file may name other kernels too."""
        from attn_spec.kernels.kernel import KernelError
        from attn_spec.nearest_names import suggestion

        named = {str(defect.kernel) for defect in self.known_defects if defect.kernel is not None}
        examined = {subject.kernel.name for subject in self.subjects} | set(self.left_out)
        for name in sorted(named - examined) if not named & examined else ():
            if meant := suggestion(name, examined):
                raise KernelError(f"{path} is about {name}, which is not examined{meant}")

    def _preflight(self, spec: str, *, named: bool) -> Preflight | None:
        """Return a kernel's preflight; None for a kernel that was not named and does not run here."""
        from attn_spec.first_look.first_look import explain_failure, first_look
        from attn_spec.isolation.foreign import found
        from attn_spec.kernels.kernel import KernelError
        from attn_spec.kernels.resolve import OF_COMMANDS, declarations
        from attn_spec.kernels.time_limit import last_resort
        from attn_spec.problem.dtypes import in_one_spelling
        from attn_spec.search.preflight import PlainCallError, preflight

        declared = declarations(**{name: self.option(name) for name in OF_COMMANDS})
        try:
            kernel = found(spec, self.option("isolate"), self.option("memory"), **declared)
            asked = map(in_one_spelling, self.option("dtype"))
            dtypes = [dtype for dtype in asked if named or dtype in kernel.dtypes]
            if self.option("dtype") and not dtypes:
                self.left_out[kernel.name] = f"takes {', '.join(kernel.dtypes)} only"
                return None
            guard = functools.partial(last_resort, stderr=self.stderr)
            checked = preflight(kernel, dtypes, self.option("device"), self.option("call_limit"), guard)
        except KernelError as error:
            if named and isinstance(error, PlainCallError):
                explain_failure(error.subjects, error.failures)
            if named:
                raise
            self.left_out[spec] = str(error).splitlines()[0]
            return None
        if named and not self.option("no_first_look") and not hasattr(self.config, "workerinput"):
            self.tell("look")
            first_look(checked.subjects)
        return checked

    def _ticker(self) -> Callable[[int], None]:
        """Return a function that reports the number of problems tried, at most every TICK seconds."""
        last = time.monotonic()

        def tick(examples: int) -> None:
            nonlocal last
            if time.monotonic() - last > TICK:
                last = time.monotonic()
                self.tell("tick", examples=examples)

        return tick

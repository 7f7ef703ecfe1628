"""Stored cases: problems that refuted a property in an earlier run are tried first, so that a lasting defect shows at
once.

Only cases of the same kernel under the same declarations are tried, since the kernel may no longer take other problems.
A property about chance is left out: its probabilities hold for newly drawn problems. Shapes that a user asks for are
left out too, since each run examines the shapes that it is given.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hypothesis.errors import UnsatisfiedAssumption

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import HOME, Case, CaseError, InFlight, case_of, declaration_of, is_of_large, load
from attn_spec.search.property import NotExamined, Property
from attn_spec.search.verdict import Row, Verdict

#: Largest number of cases that are tried for one property, the newest first.
MOST = 3


@dataclass(frozen=True)
class StoredCases:
    """Cases in a folder, as they were when a kernel's cases were first read."""

    home: Path = HOME
    #: Cases by the name of the kernel, the newest first.
    read: dict[str, list[Case]] = field(default_factory=dict)

    def refuting(self, property_: Property, subject: Subject) -> tuple[Row, Case] | None:
        """Return the verdict and the case if one of the stored problems still refutes the property; else None."""
        if property_.recipes is not None or property_.false_alarm or not property_.applies_to(subject):
            return None
        tried = [case for case in self._cases_of(_spec_of(subject)) if _is_of(case, property_, subject)][:MOST]
        return next((found for case in tried if (found := _again(case, property_, subject)) is not None), None)

    def _cases_of(self, kernel: str) -> list[Case]:
        """Return every readable case of a kernel; files of other kernels, which may be large, are not parsed."""
        if kernel not in self.read:
            paths = list((self.home / "cases").glob("*.json"))
            texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in paths}
            named = [path for path, text in texts.items() if json.dumps(kernel) in text and not is_of_large(text)]
            newest = sorted(named, key=lambda path: path.stat().st_mtime, reverse=True)
            self.read[kernel] = list(_readable(newest))
        return self.read[kernel]


def _readable(paths: list[Path]) -> Iterator[Case]:
    for path in paths:
        with contextlib.suppress(CaseError):  # `attn-spec replay` reports the error
            yield load(path)


def _spec_of(subject: Subject) -> str:
    """Return the name of a kernel as cases store it."""
    return subject.kernel.spec or subject.kernel.name


def _is_of(case: Case, property_: Property, subject: Subject) -> bool:
    """Return whether a case is of this property, kernel, dtype and device, and was found under these declarations."""
    named = (case.property_id, case.kernel, case.problem.dtype, case.device)
    wanted = (property_.id, _spec_of(subject), subject.dtype, subject.device)
    return named == wanted and case.declaration == declaration_of(subject)


def _again(case: Case, property_: Property, subject: Subject) -> tuple[Row, Case] | None:
    """Return the verdict on a property from one stored problem; None if the problem does not refute it."""
    in_flight = InFlight()
    in_flight.hold(case_of(property_, subject, case.problem))
    try:
        property_.check(subject, case.problem)
    except (UnsatisfiedAssumption, NotTaken, NotExamined):
        return None
    except AssertionError as error:
        found = case_of(property_, subject, case.problem, error)
        if found.message == case.message:  # the stored hints also took account of the first problem of that search
            found = replace(found, hints=case.hints)
        refuted, kernel = Verdict.REFUTED, subject.kernel.name
        row = Row(property=property_.id, kernel=kernel, dtype=subject.dtype, verdict=refuted, examples=1)
        return found.decides(row, refuted), found
    except Exception:  # it says nothing about the kernel; the search reports it if it meets it too
        return None
    finally:
        in_flight.release()
    return None

"""Problems that refuted a claim in an earlier run are tried first: what is not mended yet is told at once.

Only those of the same kernel under the same declarations are: any other may be a problem that the kernel does not take
any more. A claim about chance is left out: its probabilities are those of problems drawn anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hypothesis.errors import UnsatisfiedAssumption

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import HOME, Case, CaseError, InFlight, declaration_of, load
from attn_spec.search.property import Property
from attn_spec.search.search import case_of
from attn_spec.search.verdict import Row, Verdict

#: Cases of one claim that are tried, the newest first.
MOST = 3


@dataclass(frozen=True)
class StoredCases:
    """The cases in a folder, as they were when first asked for."""

    home: Path = HOME

    def refuting(self, claim: Property, subject: Subject) -> tuple[Row, Case] | None:
        """The verdict and the case where one of the stored problems still refutes the claim; None where none does."""
        if claim.false_alarm or not all(subject.supports(option) for option in claim.needs):
            return None
        if claim.not_applicable(subject):
            return None
        tried = [case for case in self._cases if _is_of(case, claim, subject)][:MOST]
        return next((found for case in tried if (found := _again(case, claim, subject)) is not None), None)

    @cached_property
    def _cases(self) -> list[Case]:
        """Every case that can be read, the newest first."""
        paths = (self.home / "cases").glob("*.json")
        return list(self._read(sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)))

    @staticmethod
    def _read(paths: list[Path]) -> Iterator[Case]:
        for path in paths:
            with contextlib.suppress(CaseError):  # `attn-spec replay` says what is wrong with it
                yield load(path)


def _is_of(case: Case, claim: Property, subject: Subject) -> bool:
    """Whether a case is of this claim, kernel, dtype and device, and was found under the same declarations."""
    named = (case.claim, case.kernel, case.problem.dtype, case.device)
    wanted = (claim.id, subject.kernel.spec or subject.kernel.name, subject.dtype, subject.device)
    return named == wanted and case.declaration == declaration_of(subject)


def _again(case: Case, claim: Property, subject: Subject) -> tuple[Row, Case] | None:
    """The verdict on a claim from one stored problem; None if that does not refute it."""
    in_flight = InFlight()
    in_flight.hold(case_of(claim, subject, case.problem))
    try:
        claim.check(subject, case.problem)
    except (UnsatisfiedAssumption, NotTaken):
        return None
    except AssertionError as error:
        found = case_of(claim, subject, case.problem, error)
        message = found.message.splitlines()[0]
        row = Row(
            property=claim.id,
            kernel=subject.kernel.name,
            dtype=subject.dtype,
            verdict=Verdict.REFUTED,
            examples=1,
            case=found.id,
            message=message,
        )
        return row, found
    except Exception:  # which says nothing of the kernel; the search, which may meet it too, reports it
        return None
    finally:
        in_flight.release()
    return None

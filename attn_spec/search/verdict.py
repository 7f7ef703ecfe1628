"""Verdicts: one frozen row for each property x kernel x dtype, and counts of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

from attn_spec.kernels.defects import Defect


class Verdict(StrEnum):
    """A verdict on one property, best first; rows are merged to the worst."""

    #: The kernel lacks an option that the property needs, or the property does not apply to its contract.
    NOT_DECLARED = "not declared"
    #: Every problem of a large enough search satisfied the property.
    HELD = "held"
    #: Too few problems were tried for the verdict "held".
    NOT_EXERCISED = "not exercised"
    #: A problem contradicts the property, as a table of known defects says.
    KNOWN = "known defect"
    #: A statistical test failed, which happens for a sound kernel with a small, stated probability.
    SUSPECT = "suspect"
    #: A table of known defects says that the property is refuted, and no problem contradicts it.
    MENDED = "mended"
    #: A problem contradicts the property.
    REFUTED = "refuted"


_BEST_FIRST = list(Verdict)
#: Prefix of the message of a property that was not run.
NOT_RUN = "not run, "
#: Share of measured elements below which a row is reported as little measured.
LITTLE = 0.9
#: Fields of a row that are sequences of texts.
_WORDS = ("readings", "looked_at", "lacks", "hints", "needed")


@dataclass(frozen=True, kw_only=True)
class Row:
    """Verdict on one property for one kernel at one dtype, and its evidence."""

    #: Id of the property, e.g. ``accuracy.output_is_within_bound``.
    property: str
    #: Name of the kernel, as :attr:`attn_spec.kernels.kernel.Kernel.name`.
    kernel: str
    dtype: str
    verdict: Verdict
    #: Number of problems on which the property was checked.
    examples: int = 0
    #: Number of problems that were drawn but unusable, which ``examples`` leaves out.
    discarded: int = 0
    #: Share of the answers' elements that the contract covers; None if the property judges no element.
    measured: float | None = None
    #: Largest error / bound; None if the property measures none.
    ratio: float | None = None
    #: Largest quantisation error |o^ - o| / |o| of the problems; None if the property measures none.
    quantisation: float | None = None
    #: Readings of the contract, in words, that explained the answers, if the contract leaves a choice.
    readings: tuple[str, ...] = ()
    #: Texts that say which part of an answer was judged, for answers that were judged in part.
    looked_at: tuple[str, ...] = ()
    #: Options and abilities that the property needs and that the kernel, or its framework, lacks.
    lacks: tuple[str, ...] = ()
    #: Id of the stored case that refutes the property, or makes the kernel suspect.
    case: str | None = None
    #: Reason why the verdict is not "held"; empty if it is.
    message: str = ""
    #: Hints that each alone would explain the answer to the stored case.
    hints: tuple[str, ...] = ()
    #: Options without any one of which the property holds for the problem of the stored case; empty if nobody asked.
    needed: tuple[str, ...] = ()
    #: Largest terms of the allowed error at the worst element of the stored case, with their shares.
    bound_terms: tuple[tuple[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, of plain types that pytest-xdist can send."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(values[name]) for name in _WORDS}
        terms = [list(term) for term in self.bound_terms]
        return values | {"verdict": str(self.verdict), "bound_terms": terms} | lists

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the row of a document that :meth:`to_json` wrote.

        Raises TypeError or ValueError for another document.
        """
        words = {name: tuple(document.get(name, ())) for name in _WORDS}
        terms = tuple((name, share) for name, share in document.get("bound_terms", ()))
        return cls(**{**document, "verdict": Verdict(document["verdict"]), "bound_terms": terms, **words})


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of a whole from the verdicts of its parts; "not exercised" for no parts."""
    return max(verdicts, key=_BEST_FIRST.index, default=Verdict.NOT_EXERCISED)


def measured(rows: Iterable[Row]) -> str:
    """Return a text with the share of elements that were measured; an empty text if no row has a share."""
    shares = [row.measured for row in rows if row.measured is not None and row.verdict is not Verdict.NOT_DECLARED]
    if not shares:
        return ""
    few = sum(share < LITTLE for share in shares)
    below = f"; below {LITTLE:.0%} in {plural(few, 'verdict')}" if few else ""
    return f"{100 * sum(shares) / len(shares):.3g} % of the elements were measured{below}"


def count(rows: Iterable[Row]) -> dict[Verdict, int]:
    """Return the number of rows with each verdict; every verdict is listed."""
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in reversed(_BEST_FIRST)}


def denominator(rows: Iterable[Row]) -> str:
    """Return a summary of what was asked and found, e.g. ``30 properties x 3 subjects: 88 held, 2 not declared, ...``.

    The summary ends with the share of elements that were measured.
    """
    rows = list(rows)
    properties = len({row.property for row in rows})
    subjects = len({(row.kernel, row.dtype) for row in rows})
    counted = count(rows)
    order = (Verdict.HELD, Verdict.REFUTED, Verdict.SUSPECT, Verdict.NOT_DECLARED, Verdict.NOT_EXERCISED)
    order += tuple(verdict for verdict in (Verdict.KNOWN, Verdict.MENDED) if counted[verdict])
    found = ", ".join(f"{counted[verdict]} {verdict}" for verdict in order)
    asked = f"{plural(properties, 'property')} x {plural(subjects, 'subject')} = {plural(len(rows), 'verdict')}"
    return "; ".join(filter(None, (f"{asked}: {found}", measured(rows))))


def exit_code(rows: Iterable[Row]) -> int:
    """Return the exit code of some rows.

    - 0: certified, with or without suspects and known defects.
    - 1: a property is refuted.
    - 3: a property was not exercised, or none held, or a known defect was not found.
    """
    counted = count(rows)
    if counted[Verdict.REFUTED]:
        return 1
    return 3 if counted[Verdict.NOT_EXERCISED] or counted[Verdict.MENDED] or not counted[Verdict.HELD] else 0


def against(row: Row, known: Iterable[Defect]) -> Row:
    """Return the row in the light of known defects: a refutation that an entry covers becomes "known defect".

    An entry with ``needs`` covers a refutation that needs all of these options. A held property with an entry of its
    own becomes "mended", which reports the entry. It does not if the entry is rare, or has ``needs``, since it may be
    about other problems than those seen.
    """
    expected = [defect for defect in known if defect.is_of(row.kernel, row.dtype, row.property)]
    covering = [defect for defect in expected if set(defect.needs) <= set(row.needed)]
    if covering and row.verdict in (Verdict.REFUTED, Verdict.SUSPECT):
        return replace(row, verdict=Verdict.KNOWN, message=f"{'; '.join(map(str, covering))}. {row.message}")
    if row.verdict is Verdict.HELD and (own := [defect for defect in expected if not (defect.needs or defect.rare)]):
        told = "; ".join(map(str, own))
        why = f"no longer seen in {row.examples} problems; if it is mended, remove it from the table: {told}"
        return replace(row, verdict=Verdict.MENDED, message=why)
    return row


def plural(number: int, noun: str) -> str:
    """Return a number and its noun, e.g. "1 verdict", "3 properties"."""
    several = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else several}"

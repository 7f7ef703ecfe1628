"""A verdict: one frozen row for each property x kernel x dtype, and how rows are counted."""

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
    #: A statistical test failed, which a sound kernel does with a small, stated probability.
    SUSPECT = "suspect"
    #: A table of known defects says that a problem contradicts the property, and none did.
    MENDED = "mended"
    #: A problem contradicts the property.
    REFUTED = "refuted"


_BEST_FIRST = list(Verdict)
#: Below this share of elements that were measured a row says so.
LITTLE = 0.9
#: Fields of a row that are sequences of words.
_WORDS = ("readings", "looked_at", "lacks", "hints")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The verdict on one property for one kernel at one dtype, and what it rests on."""

    #: Property id, e.g. ``accuracy.output_is_within_bound``.
    property: str
    #: Kernel name, as :attr:`attn_spec.kernels.kernel.Kernel.name`.
    kernel: str
    dtype: str
    verdict: Verdict
    #: Problems the property was checked on.
    examples: int = 0
    #: Problems drawn but unusable, so not counted in ``examples``.
    discarded: int = 0
    #: The share of the elements of their answers that the contract says something of; None if the property judges none.
    measured: float | None = None
    #: Largest error / bound seen; None when the property measures none.
    ratio: float | None = None
    #: Which readings of the contract explained the answers, in words, where it leaves a choice.
    readings: tuple[str, ...] = ()
    #: Of problems whose answers were looked at in part, each with how much of it, in words.
    looked_at: tuple[str, ...] = ()
    #: Options and abilities that the property needs and the kernel, or its framework, does not have.
    lacks: tuple[str, ...] = ()
    #: Id of the stored case that refutes the property, or makes the kernel suspect.
    case: str | None = None
    #: Why the verdict is not "held"; empty when it is.
    message: str = ""
    #: What would explain the answer to the stored case, each alone.
    hints: tuple[str, ...] = ()
    #: The terms that weigh most in what is allowed to the worst element of the stored case, and their shares of it.
    bound_terms: tuple[tuple[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, of plain types that pytest-xdist can carry."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(values[name]) for name in _WORDS}
        terms = [list(term) for term in self.bound_terms]
        return values | {"verdict": str(self.verdict), "bound_terms": terms} | lists

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Inverse of :meth:`to_json`; ``TypeError`` or ``ValueError`` for a document it did not write."""
        words = {name: tuple(document.get(name, ())) for name in _WORDS}
        terms = tuple((name, share) for name, share in document.get("bound_terms", ()))
        return cls(**{**document, "verdict": Verdict(document["verdict"]), "bound_terms": terms, **words})


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict of a whole from the verdicts of its parts; of no parts, "not exercised"."""
    return max(verdicts, key=_BEST_FIRST.index, default=Verdict.NOT_EXERCISED)


def measured(rows: Iterable[Row]) -> str:
    """How much of all answers was measured, in words, of rows that tell; empty where none does."""
    shares = [row.measured for row in rows if row.measured is not None and row.verdict is not Verdict.NOT_DECLARED]
    if not shares:
        return ""
    few = sum(share < LITTLE for share in shares)
    below = f"; below {LITTLE:.0%} in {plural(few, 'verdict')}" if few else ""
    return f"{100 * sum(shares) / len(shares):.3g} % of the elements were measured{below}"


def count(rows: Iterable[Row]) -> dict[Verdict, int]:
    """Count the rows that bear each verdict; every verdict is listed."""
    verdicts = [row.verdict for row in rows]
    return {verdict: verdicts.count(verdict) for verdict in reversed(_BEST_FIRST)}


def denominator(rows: Iterable[Row]) -> str:
    """Sum up what was asked and what was found, e.g. ``30 properties x 3 subjects: 88 held, 2 not declared, ...``.

    With the share of the elements that the verdicts rest on.
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
    """0 certified, suspects and known defects or not; 1 when a property is refuted.

    3 when one was not exercised, or none held, or a known defect was not found.
    """
    counted = count(rows)
    if counted[Verdict.REFUTED]:
        return 1
    return 3 if counted[Verdict.NOT_EXERCISED] or counted[Verdict.MENDED] or not counted[Verdict.HELD] else 0


def against(row: Row, known: Iterable[Defect]) -> Row:
    """The verdict in the light of known defects: one that is found fails nothing, one that is not is told."""
    expected = [defect for defect in known if defect.is_of(row.kernel, row.dtype, row.property)]
    if not expected:
        return row
    reasons = "; ".join(map(str, expected))
    if row.verdict in (Verdict.REFUTED, Verdict.SUSPECT):
        return replace(row, verdict=Verdict.KNOWN, message=f"{reasons}. {row.message}")
    if row.verdict is Verdict.HELD:
        why = f"no longer seen in {row.examples} problems, take it out of the table if it is mended: {reasons}"
        return replace(row, verdict=Verdict.MENDED, message=why)
    return row


def plural(number: int, noun: str) -> str:
    """A number and its noun, e.g. "1 verdict", "3 properties"."""
    several = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{number} {noun if number == 1 else several}"

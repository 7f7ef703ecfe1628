"""Which hints a refutation keeps, and what many of one kernel have in common: the hint that explains most of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from attn_spec.judgement.other_problems import names_a_contract
from attn_spec.search.verdict import Row, Verdict, plural


@dataclass(frozen=True)
class Cause:
    """A hint, and the refutations that it explains."""

    #: Empty: none explains them.
    hint: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        """How many they are, what explains them, and the first of them."""
        others = len(self.rows) - 1
        first = f"{self.rows[0].property}, {self.rows[0].dtype}"
        what = f": {self.hint}" if self.hint else " without a hint"
        return f"{plural(len(self.rows), 'refutation')}{what}; {first}" + (f" and {others} more" if others else "")


def causes(rows: Iterable[Row]) -> list[Cause]:
    """The refutations among rows, each under one hint, of which as few as can be found are needed.

    Those of the forward pass come first under each hint: wrong gradients follow from a wrong output, not the reverse.
    What no hint explains comes last.
    """
    refuted = sorted((row for row in rows if row.verdict is Verdict.REFUTED), key=_is_of_gradients)
    left, found = [row for row in refuted if row.hints], []
    while left:
        ((hint, _),) = Counter(hint for row in left for hint in row.hints).most_common(1)
        found.append(Cause(hint, tuple(row for row in left if hint in row.hints)))
        left = [row for row in left if hint not in row.hints]
    others = tuple(row for row in refuted if not row.hints)
    return [*found, *([Cause("", others)] if others else [])]


def hints_of(error: Exception | None, first: Exception | None = None) -> tuple[str, ...]:
    """What explains the answer that ``error`` is about; where several things do, those that explain the ``first`` too.

    The smallest problem hardly tells explanations apart. A contract is named only where it explains the first as well:
    that may be too large for other problems to be tried, but not for other contracts.
    """
    found = getattr(error, "hints", ())
    measured = getattr(first, "measurement", None) is not None
    if not (len(found) > 1 or (measured and any(map(names_a_contract, found)))):
        return found
    both = tuple(hint for hint in found if hint in getattr(first, "hints", ()))
    return both or tuple(hint for hint in found if not (measured and names_a_contract(hint)))


def _is_of_gradients(row: Row) -> bool:
    return row.property.startswith("gradient")

"""Causes of refutations: the hints that a refutation keeps, and the hint that explains most refutations of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from attn_spec.search.verdict import Row, Verdict, plural


@dataclass(frozen=True)
class Cause:
    """A hint, and the refutations that it explains."""

    #: Hint that explains the refutations; empty if they have none.
    hint: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        """Return the number of refutations, the hint, and the first refutation."""
        others = len(self.rows) - 1
        first = f"{self.rows[0].property}, {self.rows[0].dtype}"
        what = f": {self.hint}" if self.hint else " without a hint"
        return f"{plural(len(self.rows), 'refutation')}{what}; {first}" + (f" and {others} more" if others else "")


def causes(rows: Iterable[Row]) -> list[Cause]:
    """Return the refutations among rows, grouped by hints, with as few hints as a greedy choice finds.

    Under each hint, refutations of the forward pass come first: wrong gradients follow from a wrong output, not the
    reverse. Refutations without a hint come last.
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
    """Return the hints of ``error``; of several hints, those that ``first``, the error of the first problem, has too.

    The smallest problem hardly separates explanations. A contract or a convention is named only if it also explains the
    first answer. The first problem may be too large to try other problems, but not to try other contracts.
    """
    from attn_spec.judgement.other_problems import may_fit_by_chance, plain, plainest  # which imports bounds

    found = getattr(error, "hints", ())
    measured = getattr(first, "measurement", None) is not None
    if not (len(found) > 1 or (measured and any(map(may_fit_by_chance, found)))):
        return tuple(found)
    told = {plain(hint): hint for hint in getattr(first, "hints", ())}  # of zeros, the larger problem tells more
    both = tuple(told[plain(hint)] for hint in found if plain(hint) in told)
    return plainest(both or (hint for hint in found if not (measured and may_fit_by_chance(hint))))


def _is_of_gradients(row: Row) -> bool:
    return row.property.startswith("gradient")

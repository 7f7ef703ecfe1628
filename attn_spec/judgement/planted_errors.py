"""Planted errors that would have been refuted, and those that would not: what ``power`` finds, as documents hold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Unseen:
    """A planted error that no problem of a place refutes."""

    #: Words for the error.
    words: str
    #: Largest error / bound that the planted error reached.
    ratio: float
    #: Contract field that hides the error most: a tighter value of it raises error / bound. Empty if no field does.
    hidden_by: str
    #: Largest error / bound under the contract with the tighter value of that field.
    sharper: float

    def __str__(self) -> str:
        by = f", hidden by {self.hidden_by}" if self.hidden_by else ""
        return f"{self.words} ({self.ratio:.2g} of the error allowed{by})"


@dataclass(frozen=True, kw_only=True)
class Power:
    """Errors planted in one place, and the errors among them that would not have been refuted."""

    #: Dtype of the problems.
    dtype: str
    #: Place of the problems: "small problems" or a shape.
    where: str
    planted: tuple[str, ...]
    unseen: tuple[Unseen, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the power that :meth:`to_json` wrote."""
        unseen = tuple(Unseen(**one) for one in document["unseen"])
        return cls(**{**document, "planted": tuple(document["planted"]), "unseen": unseen})

    @property
    def seen(self) -> int:
        """Number of planted errors that would have been refuted."""
        return len(self.planted) - len(self.unseen)

    def __str__(self) -> str:
        not_seen = f"; not seen: {'; '.join(map(str, self.unseen))}" if self.unseen else ""
        return f"{self.seen} of {len(self.planted)} planted errors{not_seen}"


def line(found: Iterable[Power]) -> str:
    """Return one line about all places, with the first error that was not seen."""
    found = list(found)
    planted, unseen = sum(len(one.planted) for one in found), [(one, each) for one in found for each in one.unseen]
    words = f"power: {planted - len(unseen)} of {planted} planted errors would be refuted"
    if not unseen:
        return words
    (place, first), more = unseen[0], len(unseen) - 1
    return f"{words}; not seen: {first}, {place.dtype}, {place.where}{f', and {more} more' if more else ''}"

"""Outcomes of the examinations, as data that a later page is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .environments import ReleasedError

#: Version of the document; a reader refuses any other.
SCHEMA = 1
COULD_NOT_RUN = "could not run"


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """A property that a problem contradicts, at one dtype."""

    property_id: str
    dtype: str
    #: First line of the message.
    message: str
    hints: tuple[str, ...] = ()
    #: Reason of the finding that covers it; empty if nobody has judged it.
    judged: str = ""

    @property
    def place(self) -> str:
        """Property and dtype."""
        return f"{self.property_id}, {self.dtype}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict on one implementation."""

    #: Name of the implementation's row.
    implementation: str
    #: Result of the certificate, or COULD_NOT_RUN with the reason.
    result: str
    reason: str = ""
    #: Version of the implementation's distribution, and of the others that its process had imported.
    version: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    #: Summary of the contract by dtype.
    contracts: Mapping[str, str] = field(default_factory=dict)
    #: Number of pairs of property and dtype with each verdict.
    counts: Mapping[str, int] = field(default_factory=dict)
    #: Planted errors that would be refuted, and all that were planted.
    power: tuple[int, int] = (0, 0)
    #: Largest error / bound, of properties that are not refuted; None if none measures an error.
    ratio: float | None = None
    refutations: tuple[Refutation, ...] = ()
    #: Seconds of processor time.
    seconds: float = 0.0

    @property
    def open(self) -> tuple[Refutation, ...]:
        """Refutations that nobody has judged."""
        return tuple(one for one in self.refutations if not one.judged)


def to_json(outcomes: Iterable[Outcome], about: Mapping[str, Any]) -> str:
    """Return the document of some outcomes; ``about`` is the date, the machine and the effort."""
    return json.dumps({"schema": SCHEMA, **about, "outcomes": [asdict(one) for one in outcomes]}, indent=1) + "\n"


def from_json(text: str) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """Return the outcomes of a document by implementation, and what else it states. Raises :class:`ReleasedError`."""
    try:
        found = json.loads(text)
        if found.pop("schema") != SCHEMA:
            raise ReleasedError(f"the document is not of version {SCHEMA}; make it again with `make released`")
        outcomes = [_outcome(one) for one in found.pop("outcomes")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleasedError(f"the document is none that `make released` writes: {error}") from error
    return {one.implementation: one for one in outcomes}, found


def _outcome(fields: dict[str, Any]) -> Outcome:
    refutations = tuple(Refutation(**{**one, "hints": tuple(one["hints"])}) for one in fields["refutations"])
    return Outcome(**{**fields, "refutations": refutations, "power": tuple(fields["power"])})


def changes(before: Mapping[str, Outcome], after: Iterable[Outcome]) -> list[str]:
    """Return a line for each implementation whose version, result or refutations differ from an earlier document's."""
    found = []
    for one in after:
        old = before.get(one.implementation)
        if old is None:
            found.append(f"{one.implementation}: new, {one.result}")
            continue
        told = [f"{old.result} before, {one.result} now"] if old.result != one.result else []
        was, now = ({each.place for each in outcome.refutations} for outcome in (old, one))
        told += [f"{place} is refuted" for place in sorted(now - was)]
        told += [f"{place} is not refuted any more" for place in sorted(was - now)]
        versions = f"{old.version} to {one.version}" if old.version != one.version else one.version
        if told or old.version != one.version:
            found.append(f"{one.implementation} ({versions}): {'; '.join(told) or 'the same verdicts'}")
    return found

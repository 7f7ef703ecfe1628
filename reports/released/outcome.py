"""Outcomes of the examinations, as data that a later page is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from attn_spec.search.verdict import plural
from attn_spec.watching.tally import Tally

from .environments import ReleasedError

#: Version of the document; a reader refuses any other.
SCHEMA = 1
COULD_NOT_RUN = "could not run"
MENDED = "mended since"


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
class Stale:
    """A finding that the examination does not confirm as it is written."""

    #: Reason of the finding.
    reason: str
    #: Continuation of a sentence about the finding: what the examination met instead.
    why: str


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """Runs of the script of a defect, in a fresh environment."""

    #: File of the script.
    script: str
    #: Requirements that were installed there, with their versions.
    requirements: tuple[str, ...]
    #: Text that each run printed.
    printed: tuple[str, ...] = ()
    #: Continuation of a sentence about the finding: what happened instead; empty if each run shows the defect.
    failure: str = ""
    #: Day of the runs, as ISO 8601 writes it.
    date: str = ""

    @property
    def sentence(self) -> str:
        """Sentence that says what the runs showed."""
        if self.failure:
            return f"This finding {self.failure}."
        packages = " and ".join(self.requirements)
        runs = plural(len(self.printed), "run")
        return f"{runs} in a fresh environment of {packages} showed the defect, with the same text, on {self.date}."


@dataclass(frozen=True, kw_only=True)
class AtShape:
    """The verdict on one implementation at a shape of a production size."""

    shape: str
    #: Result of the certificate, "known defect" if it judged nothing else, or COULD_NOT_RUN.
    result: str
    #: Reason why nothing, or not all, was judged or timed; empty if all was.
    reason: str = ""
    #: Largest error / bound, of properties that are not refuted; None if none measures an error.
    ratio: float | None = None
    #: Problems, each with the share of its answer that was judged.
    looked_at: tuple[str, ...] = ()
    #: Seconds of processor time of the examination.
    seconds: float = 0.0
    #: Seconds of processor time of one call of the implementation, by pass.
    call_seconds: Mapping[str, float] = field(default_factory=dict)


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
    #: Refutations, with those at the shape of a production size.
    refutations: tuple[Refutation, ...] = ()
    #: Reason why a pair of property and dtype was not exercised, by the pair as :attr:`Refutation.place` spells it.
    unexercised: Mapping[str, str] = field(default_factory=dict)
    #: Verdict at that shape; None if the implementation was not examined there.
    at_shape: AtShape | None = None
    stale: tuple[Stale, ...] = ()
    #: Runs of the scripts of defects.
    reproductions: tuple[Reproduction, ...] = ()
    #: Seconds of processor time.
    seconds: float = 0.0

    @property
    def open(self) -> tuple[Refutation, ...]:
        """Refutations that nobody has judged."""
        return tuple(one for one in self.refutations if not one.judged)


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The verdict on the calls that models of one project made under a watch."""

    #: Name of the watch run's row.
    name: str
    #: Result, in the words of a certificate, or COULD_NOT_RUN with the reason.
    result: str
    reason: str = ""
    #: Version of the project's distribution.
    version: str = ""
    #: Tallies of the watched functions.
    functions: tuple[Tally, ...] = ()
    #: Seconds of processor time.
    seconds: float = 0.0

    @property
    def refuted(self) -> int:
        """Number of refuted calls and backward passes."""
        return sum(len(one.refuted) for one in self.functions)


@dataclass(frozen=True, kw_only=True)
class Document:
    """All outcomes of a page by name, and what else its JSON states."""

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    watched: Mapping[str, Watched] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


def to_json(outcomes: Iterable[Outcome], watched: Iterable[Watched], about: Mapping[str, Any]) -> str:
    """Return the document of some outcomes; ``about`` is the date, the machine and the effort."""
    parts = {"outcomes": [asdict(one) for one in outcomes], "watched": [_fields(one) for one in watched]}
    return json.dumps({"schema": SCHEMA, **about, **parts}, indent=1) + "\n"


def _fields(one: Watched) -> dict[str, Any]:
    return {**asdict(replace(one, functions=())), "functions": [tally.to_json() for tally in one.functions]}


def from_json(text: str) -> Document:
    """Return the outcomes of a document; an older one may lack parts. Raises :class:`ReleasedError`."""
    try:
        found = json.loads(text)
        if found.pop("schema") != SCHEMA:
            raise ReleasedError(f"the document is not of version {SCHEMA}; make it again with `make released`")
        outcomes = [_outcome(one) for one in found.pop("outcomes")]
        watched = [_watched(one) for one in found.pop("watched", [])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReleasedError(f"the document is none that `make released` writes: {error}") from error
    return Document(
        outcomes={one.implementation: one for one in outcomes}, watched={one.name: one for one in watched}, about=found
    )


def _outcome(fields: dict[str, Any]) -> Outcome:
    refutations = tuple(Refutation(**{**one, "hints": tuple(one["hints"])}) for one in fields["refutations"])
    stale = tuple(Stale(**one) for one in fields.get("stale", ()))
    reproductions = tuple(_reproduction(one) for one in fields.get("reproductions", ()))
    shape = fields.get("at_shape")
    at_shape = None if shape is None else AtShape(**{**shape, "looked_at": tuple(shape["looked_at"])})
    parts = {"refutations": refutations, "power": tuple(fields["power"]), "stale": stale, "at_shape": at_shape}
    return Outcome(**{**fields, **parts, "reproductions": reproductions})


def _reproduction(fields: dict[str, Any]) -> Reproduction:
    lists = {name: tuple(fields[name]) for name in ("requirements", "printed")}
    return Reproduction(**{**fields, **lists})


def _watched(fields: dict[str, Any]) -> Watched:
    return Watched(**{**fields, "functions": tuple(Tally.from_json(one) for one in fields["functions"])})

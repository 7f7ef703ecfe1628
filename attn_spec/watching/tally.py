"""Tallies of watched functions: calls, those that were judged, the worst error, and why others were not judged."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Version of the JSON document of a watch.
SCHEMA = 1


class TallyError(Exception):
    """A file holds no tallies of a watch; the message says what to do next."""


@dataclass(frozen=True)
class Refuted:
    """A call that is no attention."""

    #: Failure message of the assertion.
    text: str
    #: "forward" or "backward".
    way: str
    #: Id of the stored case; empty if none could be stored.
    case: str = ""
    #: Reason for which no case was stored.
    missing: str = ""
    #: Path of a script of the call; empty if there is none.
    script: str = ""

    def __str__(self) -> str:
        """Return the message, and how to run the call again."""
        again = f"  replay    attn-spec replay {self.case}" if self.case else f"  no case   {self.missing}"
        return "\n".join([self.text, again, *([f"  script    python {self.script}"] if self.script else [])])


@dataclass
class Tally:
    """Counts of one watched function."""

    #: Name of the function.
    function: str
    #: Name of the signature by which its calls are read; empty for its own parameters.
    signature: str = ""
    calls: int = 0
    #: Number of calls that differ in shapes, dtypes, strides or options.
    kinds: int = 0
    #: Numbers of judged calls and of judged backward passes.
    judged: int = 0
    judged_backward: int = 0
    #: Numbers of judged rows of all heads.
    rows: int = 0
    #: Largest error / bound of an output or gradient.
    ratio: float = 0.0
    #: Number of calls that were not judged, by reason; and of backward passes.
    left: Counter[str] = field(default_factory=Counter)
    left_backward: Counter[str] = field(default_factory=Counter)
    refuted: list[Refuted] = field(default_factory=list)
    #: Seconds of the judge, and of the whole watch.
    seconds: float = 0.0
    elapsed: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        whole = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        counts = {name: dict(whole[name]) for name in ("left", "left_backward")}
        return {**whole, **counts, "refuted": [dataclasses.asdict(one) for one in self.refuted]}

    @property
    def unjudged(self) -> list[str]:
        """Numbers of calls, and of backward passes, that were not judged, each with its reason."""
        backward = [(f"backward: {reason}", count) for reason, count in self.left_backward.most_common()]
        return [f"{count} x {reason}" for reason, count in [*self.left.most_common(), *backward]]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Tally:
        """Return the tally of a document that :meth:`to_json` wrote."""
        found = cls(**{**document, "refuted": [Refuted(**one) for one in document["refuted"]]})
        found.left, found.left_backward = Counter(found.left), Counter(found.left_backward)
        return found

    def add(self, other: Tally) -> None:
        """Add the counts of the same function in another process."""
        for name in ("calls", "kinds", "judged", "judged_backward", "rows", "seconds", "elapsed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.ratio = max(self.ratio, other.ratio)
        self.left += other.left
        self.left_backward += other.left_backward
        self.refuted += other.refuted


def document(tallies: Iterable[Tally]) -> str:
    """Return the JSON document of a watch."""
    return json.dumps({"schema": SCHEMA, "functions": [one.to_json() for one in tallies]}, indent=1) + "\n"


def load(path: Path) -> list[Tally]:
    """Return the tallies of a file that :func:`document` was written to. Raises :class:`TallyError`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] == SCHEMA:
            return [Tally.from_json(one) for one in found["functions"]]
    except OSError as error:
        raise TallyError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise TallyError(
            f"{path} is no report of a watch; pytest --attn-watch FUNCTION --attn-watch-report FILE.json writes one"
        ) from error
    raise TallyError(f"{path} has the schema {found['schema']!r}, and this version of attn-spec reads {SCHEMA}")


def summed(tallies: Iterable[Tally]) -> list[Tally]:
    """Return one tally for each function, the sum over processes."""
    found: dict[str, Tally] = {}
    for one in tallies:
        if one.function in found:
            found[one.function].add(one)
        else:
            found[one.function] = Tally.from_json(one.to_json())
    return list(found.values())


def table(tallies: Iterable[Tally]) -> list[str]:
    """Return the lines that tell what was seen of each function."""
    lines = []
    for one in tallies:
        by = f" by the signature {one.signature}" if one.signature else ""
        lines.append(f"{one.function}{by}: {_count(one.calls, 'call')} of {_count(one.kinds, 'kind')}")
        backward = _count(one.judged_backward, "backward pass")
        lines.append(f"  judged      {_count(one.judged, 'call')} and {backward}; {one.rows:,} rows")
        lines.append(f"  worst       error/bound {one.ratio:.3g}")
        for what, reasons in (("not judged", one.left), ("  backward", one.left_backward)):
            lines += [f"  {what}  {count} x {reason}" for reason, count in reasons.most_common()]
        share = one.seconds / one.elapsed if one.elapsed else 0.0
        lines.append(f"  time        {one.seconds:.1f} s of {one.elapsed:.1f} s, {100 * share:.0f} %")
        lines.append(f"  refuted     {_count(len(one.refuted), 'call')}")
        for case, found in {each.case: each for each in one.refuted}.items():
            lines.append(
                f"              {found.way}: attn-spec replay {case}" if case else f"              {found.missing}"
            )
    return lines


def _count(count: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count:,} {word if count == 1 else plural}"

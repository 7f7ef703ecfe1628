"""The page of released implementations: as one HTML file, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jinja2

from .. import errors
from ..errors import svg, tables
from .findings import SCRIPTS, WORDS, Finding
from .implementations import Implementation
from .outcome import COULD_NOT_RUN, Outcome, Refutation

OVERVIEW = ("implementation", "version", "called by", "contract", "held", "refuted", "planted errors seen", "seconds")
OPEN = "not judged yet"
#: Refutations without a finding that a page lists in full for each implementation.
LISTED = 20


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One implementation with its outcome and its findings."""

    row: Implementation
    outcome: Outcome
    findings: tuple[Finding, ...]

    @property
    def title(self) -> str:
        """Project and function."""
        return f"{self.row.project}: {self.row.function}"

    @property
    def called_by(self) -> str:
        """Signature by which it is called, or the lines of its adapter."""
        return f"signature {self.row.signature}" if self.row.signature else f"adapter of {self.row.lines} lines"

    @property
    def words(self) -> dict[str, int]:
        """Number of refutations that are judged by each word, and of those that nobody has judged."""
        counted = dict.fromkeys(WORDS, 0)
        for finding in self.findings:
            counted[finding.word] += len(self.of(finding))
        return {word: number for word, number in {**counted, OPEN: len(self.outcome.open)}.items() if number}

    def of(self, finding: Finding) -> list[Refutation]:
        """Return the refutations that a finding covers."""
        return [one for one in self.outcome.refutations if one.judged == finding.reason]

    @property
    def cells(self) -> list[str]:
        """Line of the overview, under ``OVERVIEW``."""
        one = self.outcome
        first = [self.title, one.version, self.called_by]
        if one.result == COULD_NOT_RUN:
            return [*first, "", f"{one.result}: {one.reason}", "", "", f"{one.seconds:.0f}"]
        judged = ", ".join(f"{number} {word}" for word, number in self.words.items()) or "0"
        power = f"{one.power[0]} of {one.power[1]}" if one.power[1] else ""
        contracts = "; ".join(dict.fromkeys(one.contracts.values()))
        held = str(one.counts.get("held", 0))
        if few := one.counts.get("not exercised", 0):
            held += f", {few} not exercised"
        return [*first, contracts, held, judged, power, f"{one.seconds:.0f}"]


def headline(shown: Sequence[Shown]) -> str:
    """Return the finding in one sentence."""
    projects = len({one.row.project for one in shown})
    clean = sum(not one.outcome.refutations and one.outcome.result != COULD_NOT_RUN for one in shown)
    return f"{clean} of {len(shown)} released implementations of {projects} projects have no refutation"


def opening(shown: Sequence[Shown]) -> list[tuple[str, str]]:
    """Return the numbers that the page begins with, each with its meaning."""
    defects = sum(finding.word == "defect" and bool(one.of(finding)) for one in shown for finding in one.findings)
    adapted = [one.row.lines for one in shown if one.row.is_adapted]
    found = [
        (str(defects), "defects, each with a script that needs the released package alone"),
        (str(sum(len(one.outcome.open) for one in shown)), "refuted verdicts that nobody has judged yet"),
    ]
    return [*found, (tables.number(median(adapted)), "lines of an adapter, median")] if adapted else found


def script_of(finding: Finding) -> str:
    """Return the text of the script that shows a defect; empty for another finding."""
    return (SCRIPTS / finding.script).read_text(encoding="utf-8") if finding.script else ""


def html(shown: Sequence[Shown], about: Mapping[str, Any], changes: Sequence[str] = ()) -> str:
    """Return the page. Equal arguments give equal bytes."""
    packages = (str(__package__), errors.__name__)  # the errors package holds the style of all pages
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(package, ".") for package in packages])
    jinja = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return jinja.get_template("released.html.jinja").render(
        headline=headline(shown),
        opening=opening(shown),
        words=WORDS,
        header=OVERVIEW,
        shown=shown,
        script_of=script_of,
        listed=LISTED,
        changes=changes,
        about=about,
        palette=list(enumerate(svg.PALETTE)),
    )


def markdown(shown: Sequence[Shown], about: Mapping[str, Any], changes: Sequence[str] = ()) -> str:
    """Return the page for a pull request or a job summary."""
    parts = [
        f"# {headline(shown)}",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(shown)),
        f"## Overview\n\n{tables.table(OVERVIEW, [one.cells for one in shown])}",
        "## How a refutation was judged\n\n" + "\n".join(f"- **{word}**: {what}" for word, what in WORDS.items()),
    ]
    if changes:
        parts.append("## Changes\n\n" + "\n".join(f"- {change}" for change in changes))
    parts += ["\n\n".join(_section(one)) for one in shown]
    parts.append(f"## Measured\n\n{tables.table(['', ''], [[name, str(value)] for name, value in about.items()])}")
    return "\n\n".join(parts) + "\n"


def _section(one: Shown) -> Iterable[str]:
    yield f"## {one.title}"
    yield "\n".join(f"- {fact.says} ({fact.source})" for fact in one.row.known) or "Nothing is declared."
    for finding in one.findings:
        places = [f"  - `{covered.place}`: {covered.message}" for covered in one.of(finding)]
        yield "\n".join((f"- **{finding.word}**: {finding.reason} ({finding.source})", *places))
        if finding.script:
            yield f"```python\n{script_of(finding)}```"
    if one.outcome.open:
        lines = [f"- `{left.place}`: {left.message}" for left in one.outcome.open[:LISTED]]
        yield f"{len(one.outcome.open)} {OPEN}:\n\n" + "\n".join(lines)

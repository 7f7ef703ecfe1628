"""The page of released implementations: as one HTML file, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jinja2

from attn_spec.watching.tally import Tally

from .. import errors
from ..errors import svg, tables
from .conclusion import conclusions
from .findings import SCRIPTS, WORDS, Finding
from .implementation import Implementation
from .outcome import COULD_NOT_RUN, AtShape, Outcome, Refutation, Reproduction, Watched
from .watch_runs import WatchRun

OVERVIEW = (
    *("implementation", "version", "called by", "contract", "held", "refuted", "planted errors seen", "seconds"),
    "error / bound at a production size, seconds, those of a call",
)
WATCHED = (
    *("project", "version", "function", "calls", "judged", "backward passes judged", "error / bound", "refuted"),
    "not judged",
)
OPEN = "not judged yet"
NOT_RUN = "This script was not run in a fresh environment."
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

    def stale(self, finding: Finding) -> list[str]:
        """Return what the examination met in place of what a finding says; empty for a finding that it confirms."""
        return [one.why for one in self.outcome.stale if one.reason == finding.reason]

    def reproduction(self, finding: Finding) -> Reproduction | None:
        """Return the runs of the script of a finding; None without any."""
        return next((one for one in self.outcome.reproductions if one.script == finding.script), None)

    @property
    def cells(self) -> list[str]:
        """Line of the overview, under ``OVERVIEW``."""
        one = self.outcome
        first = [self.title, one.version, self.called_by]
        last = [f"{one.seconds:.0f}", at_shape(one.at_shape)]
        if one.result == COULD_NOT_RUN:
            return [*first, "", f"{one.result}: {one.reason}", "", "", *last]
        judged = ", ".join(f"{number} {word}" for word, number in self.words.items()) or "0"
        power = f"{one.power[0]} of {one.power[1]}" if one.power[1] else ""
        contracts = "; ".join(dict.fromkeys(one.contracts.values()))
        held = str(one.counts.get("held", 0))
        if few := one.counts.get("not exercised", 0):
            held += f", {few} not exercised"
        return [*first, contracts, held, judged, power, *last]

    @property
    def shape(self) -> str:
        """Sentence about the examination at a production size; empty if there was none."""
        one = self.outcome.at_shape
        if one is None:
            return ""
        result = f"{one.result}: {one.reason}" if one.reason else one.result
        calls = "".join(f"; {seconds:.2g} s of a {way} pass" for way, seconds in one.call_seconds.items())
        ratio = "" if one.ratio is None else f"; largest error / bound {tables.number(one.ratio)}"
        return f"At {one.shape}: {result}{ratio}; {one.seconds:.0f} s{calls}."


@dataclass(frozen=True, kw_only=True)
class ShownRun:
    """One watch run with its outcome."""

    row: WatchRun
    outcome: Watched

    @property
    def cells(self) -> list[list[str]]:
        """Lines under ``WATCHED``, one for each function, or one that says why there is none."""
        one = self.outcome
        first = [self.row.project, one.version]
        if not one.functions:
            return [[*first, "", "", "", "", "", "", f"{one.result}: {one.reason}"]]
        return [[*first, *_seen(each)] for each in one.functions]


def _seen(one: Tally) -> list[str]:
    counts = [f"{count:,}" for count in (one.calls, one.judged, one.judged_backward)]
    ratio = tables.number(one.ratio) if one.judged else ""
    return [one.function, *counts, ratio, str(len(one.refuted)), "; ".join(one.unjudged)]


def at_shape(one: AtShape | None) -> str:
    """Return the largest error / bound at a production size, the seconds, and those of a call by pass."""
    if one is None:
        return ""
    ratio = tables.number(one.ratio) if one.result == "passed" and one.ratio is not None else one.result
    calls = " + ".join(f"{seconds:.2g}" for seconds in one.call_seconds.values())
    return ", ".join(filter(None, (ratio, f"{one.seconds:.0f} s", calls and f"{calls} s")))


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


def to_look_at(shown: Sequence[Shown], runs: Sequence[ShownRun]) -> list[str]:
    """Return the sentences with which the command ends."""
    return [sentence for _, sentence in conclusions((one.outcome for one in shown), (run.outcome for run in runs))]


def html(
    shown: Sequence[Shown], runs: Sequence[ShownRun], about: Mapping[str, Any], changes: Sequence[str] = ()
) -> str:
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
        to_look_at=to_look_at(shown, runs),
        watched=WATCHED,
        runs=[cells for run in runs for cells in run.cells],
        script_of=script_of,
        not_run=NOT_RUN,
        listed=LISTED,
        changes=changes,
        about=about,
        palette=list(enumerate(svg.PALETTE)),
    )


def markdown(
    shown: Sequence[Shown], runs: Sequence[ShownRun], about: Mapping[str, Any], changes: Sequence[str] = ()
) -> str:
    """Return the page for a pull request or a job summary."""
    parts = [
        f"# {headline(shown)}",
        "\n".join(f"- **{value}** {meaning}" for value, meaning in opening(shown)),
        f"## Overview\n\n{tables.table(OVERVIEW, [one.cells for one in shown])}",
        "## How a refutation was judged\n\n" + "\n".join(f"- **{word}**: {what}" for word, what in WORDS.items()),
    ]
    if sentences := to_look_at(shown, runs):
        parts.append("## To look at\n\n" + "\n".join(f"- {sentence}" for sentence in sentences))
    if runs:
        lines = [cells for run in runs for cells in run.cells]
        parts.append(f"## Watched models\n\n{tables.table(WATCHED, lines)}")
    if changes:
        parts.append("## Changes\n\n" + "\n".join(f"- {change}" for change in changes))
    parts += ["\n\n".join(_section(one)) for one in shown]
    parts.append(f"## Measured\n\n{tables.table(['', ''], [[name, str(value)] for name, value in about.items()])}")
    return "\n\n".join(parts) + "\n"


def _section(one: Shown) -> Iterable[str]:
    yield f"## {one.title}"
    yield "\n".join(f"- {fact.says} ({fact.source})" for fact in one.row.known) or "Nothing is declared."
    if one.outcome.at_shape is not None:
        yield "\n".join((one.shape, "", *(f"- {text}" for text in one.outcome.at_shape.looked_at))).rstrip()
    for finding in one.findings:
        places = [f"  - `{covered.place}`: {covered.message}" for covered in one.of(finding)]
        stale = [f"  - This finding {why}." for why in one.stale(finding)]
        yield "\n".join((f"- **{finding.word}**: {finding.reason} ({finding.source})", *stale, *places))
        if finding.script:
            yield f"```python\n{script_of(finding)}```"
            yield from _reproduced(one.reproduction(finding))
    if one.outcome.open:
        lines = [f"- `{left.place}`: {left.message}" for left in one.outcome.open[:LISTED]]
        yield f"{len(one.outcome.open)} {OPEN}:\n\n" + "\n".join(lines)


def _reproduced(found: Reproduction | None) -> Iterable[str]:
    """Yield what the runs of a script showed, and the text of the last one."""
    if found is None:
        yield NOT_RUN
    elif not found.failure:  # a failure is shown with the finding
        yield found.sentence
        yield f"```text\n{found.printed[-1]}```"

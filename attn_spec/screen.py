"""Show a kernel under examination, and its verdicts, on the terminal."""

from __future__ import annotations

import sys
from collections import Counter

import click

from attn_spec.evidence.certificate import Certificate, PropertyResult
from attn_spec.progress import Progress
from attn_spec.search.verdict import Verdict, denominator, plural

#: Failure blocks shown; every case can be replayed.
BLOCKS = 5
COLOURS = {"certified": "green", "passed": "green", "refuted": "red"}


class Live:
    """One line on a terminal that says how far the work has come; nothing where there is no terminal."""

    def __init__(self) -> None:
        self.shown = ""

    def show(self, progress: Progress) -> None:
        """Rewrite the line."""
        if not sys.stderr.isatty():
            return
        line = "finding the kernel"
        if progress.keys:
            line = f"[{len(progress.rows)}/{len(progress.keys)}]"
        if progress.current:
            property_id, _, dtype = progress.current
            line += f" {property_id} {dtype}, {progress.examples} examples"
        if line != self.shown:
            self.shown = line
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)

    def clear(self) -> None:
        """Remove the line."""
        if self.shown:
            click.echo("\r\x1b[K", nl=False, err=True)


def verdicts(document: Certificate, progress: Progress) -> list[str]:
    """A line for each property that is claimed, one for all others, the failure blocks, and the denominator."""
    chosen = document.configuration
    subject = f"{document.subject.name} (source {document.subject.source_sha256[:8]})"
    declined = [f"not claimed: {name} ({reason})" for name, reason in document.claims.declined.items()]
    return [
        f"{subject} on {chosen.device}, profile {chosen.profile}, seed {chosen.seed}",
        *(_line(result) for result in document.properties if result.verdict is not Verdict.NOT_CLAIMED),
        *_not_claimed(document, progress),
        *_blocks(progress),
        "",
        *declined,
        denominator(progress.rows.values()),
    ]


def conclusion(document: Certificate) -> str:
    """The last line: the result, what it rests on where that is less than a certificate, and what else to know."""
    chosen = document.configuration
    searched = f"{chosen.profile}: {chosen.examples} problems a property"
    if chosen.only:
        searched += f", {plural(len(document.properties), 'property')} alone"
    passed = f" ({searched})" if document.result == "passed" else ""
    noted = [f", {number} {word}" for word in ("suspect", "known defect") if (number := document.summary[word])]
    colour = "yellow" if noted and document.result != "refuted" else COLOURS.get(document.result)
    return click.style(f"{document.result.upper()}{passed}{''.join(noted)}", bold=True, fg=colour)


def _line(result: PropertyResult) -> str:
    """The verdict on one property."""
    return _coloured(result.verdict, f"  {result.verdict:<13}  {result.id}{_remark(result)}")


def _not_claimed(document: Certificate, progress: Progress) -> list[str]:
    """One line on all properties that are not claimed: what most of them need, what most of the others, and so on."""
    ids = [result.id for result in document.properties if result.verdict is Verdict.NOT_CLAIMED]
    rows = {row.property: row for row in progress.rows.values() if row.property in ids}
    left = {name: rows[name].lacks for name in ids if rows[name].lacks}
    reasons = []
    while left:
        ((word, number),) = Counter(word for lacks in left.values() for word in lacks).most_common(1)
        left = {name: lacks for name, lacks in left.items() if word not in lacks}
        reasons.append(f"{number} need{'s' * (number == 1)} {word}")
    others = Counter(rows[name].message for name in ids if not rows[name].lacks)
    reasons += [f"{number} since {message}" for message, number in others.most_common()]
    return [f"  {Verdict.NOT_CLAIMED:<13}  {plural(len(ids), 'property')}: {', '.join(reasons)}"] if ids else []


def _coloured(verdict: Verdict, line: str) -> str:
    """The line, yellow for a suspect; on no terminal click removes the colour."""
    return click.style(line, fg="yellow") if verdict is Verdict.SUSPECT else line


def _remark(result: PropertyResult) -> str:
    """The worst ratio; why, where there is no verdict."""
    ratios = [float(found.ratio.value) for found in result.dtypes.values() if found.ratio is not None]
    if result.verdict in {Verdict.NOT_EXERCISED, Verdict.KNOWN, Verdict.MENDED}:
        return f"  ({_message(result)})"
    what = "statistic/threshold" if result.false_alarm else "error/bound"
    return f"  worst {what} {max(ratios):.3g}" if ratios else ""


def _message(result: PropertyResult) -> str:
    """The reason for the verdict, at the first dtype that has it."""
    return next(found.message for found in result.dtypes.values() if found.verdict is result.verdict)


def _blocks(progress: Progress) -> list[str]:
    """One failure block for each refuted or suspect property, up to a limit, refuted ones first."""
    first: dict[str, str] = {}
    for key in sorted(progress.blocks, key=lambda key: progress.rows[key].verdict is Verdict.SUSPECT):
        first.setdefault(key[0], _coloured(progress.rows[key].verdict, progress.blocks[key]))
    lines = [f"\n{block}" for block in list(first.values())[:BLOCKS]]
    more = len(first) - BLOCKS
    return lines + (
        [f"\n{more} more refuted or suspect; `attn-spec replay` runs every stored case"] if more > 0 else []
    )

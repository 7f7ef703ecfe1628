"""Show a kernel under examination, and its verdicts, on the terminal."""

from __future__ import annotations

import sys

import click

from attn_spec.evidence.certificate import Certificate, PropertyResult
from attn_spec.progress import Progress
from attn_spec.search.verdict import LEFT_OUT, Verdict, denominator

#: Failure blocks shown; every case can be replayed.
BLOCKS = 5


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
    """A line for each property, the failure blocks, what is not claimed, and the denominator."""
    chosen = document.configuration
    subject = f"{document.subject.name} (source {document.subject.source_sha256[:8]})"
    declined = [f"not claimed: {name} ({reason})" for name, reason in document.claims.declined.items()]
    return [
        f"{subject} on {chosen.device}, profile {chosen.profile}, seed {chosen.seed}",
        *_properties(document),
        *_blocks(progress),
        "",
        *declined,
        denominator(progress.rows.values()),
    ]


def _properties(document: Certificate) -> list[str]:
    """A line for each property; one for all those that were left out."""
    exercised = [result for result in document.properties if _message(result) != LEFT_OUT]
    left_out = len(document.properties) - len(exercised)
    lines = []
    for result in exercised:
        lines.append(_coloured(result.verdict, f"  {result.verdict:<13}  {result.id}{_remark(result)}"))
        lines += [f"{'':17}{dtype} {words}" for dtype, found in result.dtypes.items() for words in found.looked_at]
    return lines + ([f"  {Verdict.NOT_EXERCISED:<13}  {left_out} others, {LEFT_OUT}"] if left_out else [])


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

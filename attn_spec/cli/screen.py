"""Display of a kernel under examination, and of its verdicts as they are reached, on a terminal or in a log."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections import Counter

import click

from attn_spec.evidence import WIDTH
from attn_spec.evidence.certificate import Certificate, PropertyResult, result_of
from attn_spec.judgement import planted_errors
from attn_spec.search.causes import causes
from attn_spec.search.verdict import LITTLE, NOT_RUN, Verdict, count, denominator, plural
from attn_spec.sessions.progress import Event, Progress

#: Largest number of failure blocks shown; every case can be replayed.
BLOCKS = 5
#: Number of verdicts from which on the remaining time is estimated.
ENOUGH = 10
#: Name by which certificates call the contract of a callable that declares nothing.
UNDECLARED = "undeclared"
COLOURS = {"certified": "green", "passed": "green", "refuted": "red"}


class Live:
    """The display during the work: each property once it is done, and the first failure blocks as they come.

    On a terminal the last line shows the progress. ``shares`` is the number of processes that examine; ``silent``
    leaves stdout to a document.
    """

    def __init__(self, shares: int = 1, *, silent: bool = False) -> None:
        self.shares, self.silent = shares, silent
        self.begun = time.monotonic()
        self.line = ""
        self.is_named = False
        #: Properties whose line, and whose failure block, was shown.
        self.done: set[str] = set()
        self.failed: set[str] = set()

    def show(self, progress: Progress) -> None:
        """Show new results, and rewrite the line of progress."""
        if progress.keys and not progress.trouble:
            self._say(self._news(progress, whole=len(progress.shares) == self.shares))
        if sys.stderr.isatty():
            self._rewrite(progress)

    def _rewrite(self, progress: Progress) -> None:
        line = f"\r\x1b[K{self._how_far(progress)[: shutil.get_terminal_size().columns - 1]}"
        if line != self.line:
            self.line = line
            click.echo(line, nl=False, err=True)

    def clear(self) -> None:
        """Remove the line of progress."""
        if self.line:
            self.line = ""
            click.echo("\r\x1b[K", nl=False, err=True)

    def end(self, document: Certificate, progress: Progress) -> None:
        """Show the remaining results, the properties that are not declared, and the denominator."""
        self.clear()
        self._say(self._news(progress, whole=True))
        more = len({key[0] for key in progress.blocks}) - len(self.failed)
        replay = [f"\n{more} more refuted or suspect; `attn-spec replay` runs every stored case"] if more else []
        declined = [f"not declared: {name} ({reason})" for name, reason in document.declarations.declined.items()]
        if cost := document.declarations.cost_of_new_shapes:
            declined.append(f"new shapes: {cost}")
        if any(row["summary"] == UNDECLARED for row in document.declarations.contracts.values()):
            declined.append("no contract is declared, so answers are judged by the loosest; --contract declares one")
        weak = [str(row["weakness"]) for row in document.declarations.contracts.values() if row.get("weakness")]
        declined += [f"weak contract: {why}" for why in dict.fromkeys(weak)]
        declined += [f"changed by calls: {change}" for change in document.subject.changes]
        folded = [*_not_run(progress), *_not_declared(progress)]
        rests_on = [denominator(progress.rows.values()), *_power(progress)]
        self._say([*folded, *replay, *_causes(progress), "", *declined, *rests_on])

    def _say(self, lines: list[str]) -> None:
        if lines and not self.silent:
            self.clear()
            click.echo("\n".join(lines))

    def _news(self, progress: Progress, *, whole: bool) -> list[str]:
        """Return lines on new results; a property is done once all its dtypes in all shares (``whole``) are."""
        lines = [] if self.is_named or progress.kernel is None else [_headline(progress.kernel)]
        self.is_named = self.is_named or bool(lines)
        if progress.found and not self.failed:
            (property_id, _, dtype), message = next(iter(progress.found.items()))
            lines.append(f"\nrefuted by {property_id}, {dtype}: {message}\nsearching for a smaller problem")
        progress.found.clear()
        for key, block in progress.blocks.items():
            if key[0] not in self.failed and len(self.failed) < BLOCKS:
                self.failed.add(key[0])
                lines.append(f"\n{_coloured(progress.rows[key].verdict, block)}\n")
        if whole:
            waiting = {key[0] for key in progress.keys if key not in progress.rows}
            for property_id in dict.fromkeys(key[0] for key in progress.keys):
                if property_id not in waiting | self.done:
                    self.done.add(property_id)
                    lines += _line(_result(progress, property_id))
        return lines

    def _how_far(self, progress: Progress) -> str:
        """Return the line of progress: done, refuted, elapsed and total time, current property."""
        if not progress.keys:
            return "finding the kernel"
        seconds, done, total = time.monotonic() - self.begun, len(progress.rows), len(progress.keys)
        parts = [f"[{done}/{total}]"]
        if refuted := sum(row.verdict is Verdict.REFUTED for row in progress.rows.values()):
            parts.append(f"{refuted} refuted,")
        parts.append(_clock(seconds) + (f" of about {_clock(seconds * total / done)}" if done >= ENOUGH else ""))
        if progress.current:
            property_id, _, dtype = progress.current
            parts.append(f" {property_id} {dtype}, {progress.examples} examples")
        return " ".join(parts)


def conclusion(document: Certificate, stopped: str = "") -> str:
    """Return the last line: the result, how it was searched if it is less than a certificate, and further counts.

    ``stopped`` is the reason why the examination ended early.
    """
    chosen = document.configuration
    searched = f"{chosen.profile}: {chosen.examples} problems a property"
    if chosen.only:
        searched += f", {plural(len(document.properties), 'property')} alone"
    passed = f" ({searched})" if document.result == "passed" else ""
    noted = [f", {number} {word}" for word in ("suspect", "known defect") if (number := document.summary[word])]
    noted += [f", {stopped}"] if stopped else []
    colour = "yellow" if noted and document.result != "refuted" else COLOURS.get(document.result)
    return click.style(f"{document.result.upper()}{passed}{''.join(noted)}", bold=True, fg=colour)


def _headline(kernel: Event) -> str:
    """Return the line that names the kernel, the device, the dtypes and the effort."""
    subject, chosen = kernel["subject"], kernel["configuration"]
    where = f"on {chosen['device']}, {', '.join(chosen['dtypes'])}"
    search = f"profile {chosen['profile']}: {chosen['examples']} problems a property, seed {chosen['seed']}"
    return f"{subject['name']} (source {subject['source_sha256'][:8]}) {where}, {search}"


def _result(progress: Progress, property_id: str) -> PropertyResult:
    """Return the verdict on one property, as a certificate has it."""
    assert progress.kernel is not None
    (entry,) = (one for one in progress.kernel["catalogue"] if one["id"] == property_id)
    return result_of(entry, [progress.rows[key] for key in progress.keys if key[0] == property_id])


def _line(result: PropertyResult) -> list[str]:
    """Return the lines of the verdict on one property; none if it is not declared, or was not run."""
    of = [dtype for dtype, found in result.dtypes.items() if found.verdict is result.verdict]
    where = f", {', '.join(of)}" if result.verdict is not Verdict.HELD and len(of) < len(result.dtypes) else ""
    line = f"  {result.verdict:<13}  {result.id}{where}{_remark(result)}{_quantisation(result)}{_measured(result)}"
    folded = result.verdict is Verdict.NOT_DECLARED or _message(result).startswith(NOT_RUN)
    looked_at = [f"{'':17}{dtype} {words}" for dtype, found in result.dtypes.items() for words in found.looked_at]
    return [] if folded else [_coloured(result.verdict, line), *looked_at]


def _not_run(progress: Progress) -> list[str]:
    """Return a line for each reason why properties were not run."""
    left = {row.property: row.message for row in progress.rows.values() if row.message.startswith(NOT_RUN)}
    reasons = Counter(left.values()).items()
    return [f"  {Verdict.NOT_EXERCISED:<13}  {plural(number, 'property')} {reason}" for reason, number in reasons]


def _not_declared(progress: Progress) -> list[str]:
    """Return lines on all properties not declared, with the options that they lack, most frequent first."""
    rows = {row.property: row for row in progress.rows.values() if row.verdict is Verdict.NOT_DECLARED}
    for row in progress.rows.values():
        if row.verdict is not Verdict.NOT_DECLARED:  # at another dtype
            rows.pop(row.property, None)
    left = {name: row.lacks for name, row in rows.items() if row.lacks}
    reasons = []
    while left:
        ((word, number),) = Counter(word for lacks in left.values() for word in lacks).most_common(1)
        left = {name: lacks for name, lacks in left.items() if word not in lacks}
        reasons.append(f"{number} need{'s' * (number == 1)} {word}")
    others = Counter(row.message for row in rows.values() if not row.lacks)
    reasons += [f"{number} since {message}" for message, number in others.most_common()]
    line = f"  {Verdict.NOT_DECLARED:<13}  {plural(len(rows), 'property')}: {', '.join(reasons)}"
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * 17, break_on_hyphens=False) if rows else []


def _causes(progress: Progress) -> list[str]:
    """Return lines on what several refutations have in common."""
    rows = [progress.rows[key] for key in progress.keys]
    return ["", *map(str, causes(rows))] if count(rows)[Verdict.REFUTED] > 1 else []


def _power(progress: Progress) -> list[str]:
    """Return a line on the planted errors that would have been refuted; none if a property is refuted."""
    return [planted_errors.line(progress.powers)] if progress.powers and not progress.is_refuted else []


def _coloured(verdict: Verdict, line: str) -> str:
    """Return the line, in yellow for a suspect; click removes the colour if there is no terminal."""
    return click.style(line, fg="yellow") if verdict is Verdict.SUSPECT else line


def _remark(result: PropertyResult) -> str:
    """Return the worst ratio at the dtypes of the verdict, or the reason if the verdict has no ratio.

    No ratio is shown for a refutation that a ratio does not explain.
    """
    found = [one for one in result.dtypes.values() if one.verdict is result.verdict and one.ratio is not None]
    ratios = [float(one.ratio.value) for one in found if one.ratio is not None]
    if result.verdict in {Verdict.NOT_EXERCISED, Verdict.KNOWN, Verdict.MENDED}:
        return f"  ({_message(result)})"
    what = "statistic/threshold" if result.false_alarm else "error/bound"
    otherwise = result.verdict is Verdict.REFUTED and max(ratios, default=0.0) <= 1
    return f"  worst {what} {max(ratios):.3g}" if ratios and not otherwise else ""


def _quantisation(result: PropertyResult) -> str:
    """Return the largest quantisation error at any dtype; empty text if the property measures none."""
    shares = [found.quantisation for found in result.dtypes.values() if found.quantisation is not None]
    return f", quantisation error up to {100 * max(shares):.3g} % of the output" if shares else ""


def _measured(result: PropertyResult) -> str:
    """Return the measured share of the answers, at the dtype with the least, or empty text if that is large."""
    shares = {dtype: found.measured for dtype, found in result.dtypes.items() if found.measured is not None}
    if not shares or result.verdict is Verdict.NOT_DECLARED:
        return ""
    dtype = min(shares, key=lambda name: shares[name])
    few = shares[dtype] < LITTLE
    return f"  only {100 * shares[dtype]:.0f} % of {dtype} measured" if few else ""


def _message(result: PropertyResult) -> str:
    """Return the reason for the verdict, at the first dtype that has it."""
    return next(found.message for found in result.dtypes.values() if found.verdict is result.verdict)


def _clock(seconds: float) -> str:
    """Return minutes and seconds, as 1:05, with hours in front if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"

"""Conclusions of a page: what a person has to look at, and the exit status of the command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attn_spec.cli.exit_codes import CODES, of_all
from attn_spec.search.verdict import plural

from .findings import FINDINGS
from .outcome import COULD_NOT_RUN, Outcome, Watched


def conclusions(outcomes: Iterable[Outcome], watched: Iterable[Watched]) -> list[tuple[int, str]]:
    """Return an exit status, of a refutation or of an inconclusive result, and a sentence that names rows, for each."""
    found = []
    for outcome in outcomes:
        found += _of_implementation(outcome)
    for run in watched:
        if run.refuted:
            found.append((CODES["refuted"], f"{run.name}: {plural(run.refuted, 'refuted call')}"))
        elif run.result != "passed":
            found.append((CODES["inconclusive"], f"{run.name}: {run.result}: {run.reason}"))
    return found


def _of_implementation(one: Outcome) -> Iterator[tuple[int, str]]:
    if one.open:
        told = f"{plural(len(one.open), 'refuted verdict')} without a finding; write one in {FINDINGS.name}"
        yield CODES["refuted"], f"{one.implementation}: {told}"
    if one.result == COULD_NOT_RUN:
        yield CODES["inconclusive"], f"{one.implementation}: {one.result}: {one.reason}"
    for place, reason in one.unexercised.items():
        yield CODES["inconclusive"], f"{one.implementation}: {place} was not exercised: {reason}"
    if not one.unexercised and (few := one.counts.get("not exercised", 0)):  # an older document names none
        yield CODES["inconclusive"], f"{one.implementation}: {plural(few, 'verdict')} not exercised"
    if one.at_shape is not None and one.at_shape.result in (COULD_NOT_RUN, "inconclusive"):
        reason = f"{one.at_shape.result}: {one.at_shape.reason}"
        yield CODES["inconclusive"], f"{one.implementation} at {one.at_shape.shape}: {reason}"
    for stale in one.stale:
        yield CODES["inconclusive"], f"{one.implementation}: the finding {stale.reason!r} {stale.why}"


def status(found: Iterable[tuple[int, str]]) -> int:
    """Return the exit status of some conclusions: the most informative one, and 0 without any."""
    return of_all([0, *(code for code, _ in found)])

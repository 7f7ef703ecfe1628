"""The failure block: what is shown of a refuted or suspect claim, in about twelve lines, and never a tensor."""

from __future__ import annotations

import textwrap
from pathlib import Path

from attn_spec.error.presets import describe
from attn_spec.kernels.subject import Subject
from attn_spec.search.cases import Case
from attn_spec.search.property import Property
from attn_spec.search.verdict import Verdict

#: Longest line shown.
WIDTH = 120


def block(
    case: Case, claim: Property, subject: Subject, script: Path | None, verdict: Verdict = Verdict.REFUTED
) -> str:
    """The claim, the kernel, the problem, the worst element, and how to run it again."""
    problem = repr(case.problem)
    if len(problem) > 4 * WIDTH:
        problem = f"cases.load(cases.find({case.id!r})[0]).problem  # from attn_spec.search import cases"
    return "\n".join(
        [
            f"{verdict.upper()}  {claim.statement}",
            f"  property  {claim.id}",
            f"  kernel    {subject.kernel.name}, {subject.dtype}, {subject.device}",
            f"  contract  {describe(subject.kernel.contract_declared(subject.dtype))}",
            f"  problem   {problem}",
            *(case.worst.lines() if case.worst else _why(case.message)),
            *([f"  hint      {case.hint}"] if case.hint else []),
            *([_chance(claim, verdict)] if claim.false_alarm else []),
            f"  source    {claim.source}",
            f"  replay    attn-spec replay {case.id}",
            *([f"  script    python {script}"] if script else []),
        ]
    )


def _chance(claim: Property, verdict: Verdict) -> str:
    """Say how often a sound kernel would get here."""
    sound = "the kernel rounds as its contract claims" if verdict is Verdict.SUSPECT else "the claim is true"
    return f"  chance    at most {claim.false_alarm:g} for one problem, if {sound}"


def _why(message: str) -> list[str]:
    """The message, on at most four lines."""
    return textwrap.wrap(
        message, WIDTH, initial_indent="  why       ", subsequent_indent=" " * 12, max_lines=4, placeholder=" ..."
    )

"""The failure block: what is shown of a refuted or suspect claim, in about twelve lines, and never a tensor."""

from __future__ import annotations

import textwrap
from pathlib import Path

from attn_spec.error.presets import describe
from attn_spec.kernels.subject import Subject
from attn_spec.problem.quantities import QUANTITIES
from attn_spec.search.cases import Case, WorstElement
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
            *(_worst(case.worst) if case.worst else _why(case.message)),
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


def _worst(worst: WorstElement) -> list[str]:
    """Where, what came, what the truth is, and how far that is beyond what is allowed."""
    index, quantity = ", ".join(map(str, worst.index)), QUANTITIES[worst.quantity]
    rows, bound = f", in {worst.rows} rows" if quantity.has_rows else "", f"{quantity.made_by} bound"
    return [
        f"  element   {worst.quantity}[{index}]; {worst.outside} of {worst.elements} are outside{rows}",
        f"  got       {_both(worst.got)}",
        f"  truth     {_both(worst.truth)} +- {_short(worst.radius)}",
        f"  error     {_short(worst.ulps)} ulp; allowed {_short(worst.allowed)} by the {bound} of the contract",
    ]


def _both(value: str) -> str:
    """Decimal and hexadecimal."""
    return f"{float.fromhex(value):.9g} ({value})"


def _short(value: str) -> str:
    return f"{float.fromhex(value):.3g}"

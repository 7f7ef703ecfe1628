"""The failure block: the report on a refuted or suspect property, about fifteen lines, with small tensors only."""

from __future__ import annotations

import itertools
import textwrap
from pathlib import Path

from attn_spec.contract.presets import describe
from attn_spec.evidence import WIDTH
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.cases import Case
from attn_spec.search.property import Property
from attn_spec.search.verdict import Verdict

#: Largest number of elements of q, k and v that are shown.
FEW = 8


def block(
    case: Case,
    property_: Property,
    subject: Subject,
    script: Path | None,
    verdict: Verdict = Verdict.REFUTED,
    *,
    is_stored: bool = True,
) -> str:
    """Return the failure block: property, hints, kernel, problem, worst element, and commands to run it again.

    A case that ``is_stored`` can be replayed; ``script`` is the path of its script, if there is one.
    """
    problem, framework = repr(case.problem), subject.framework.name
    if len(problem) > 4 * WIDTH:
        problem = f"cases.load(cases.find({case.id!r})[0]).problem  # from attn_spec.search import cases"
    return "\n".join(
        [
            f"{verdict.upper()}  {property_.statement}",
            *([f"  hint      {', or '.join(case.hints)}"] if case.hints else []),
            *case.missing,
            f"  property  {property_.id}",
            f"  kernel    {subject.kernel.name}, {subject.dtype}, {subject.device}",
            f"  contract  {describe(subject.kernel.contract_declared(subject.dtype))}",
            f"  problem   {problem}",
            *_small_tensors(case.problem),
            *_why(case),
            *itertools.chain.from_iterable(_told("also", other) for other in case.others),
            *(case.worst.lines(of_states=case.problem.states) if case.worst else []),
            *([_chance(property_, verdict)] if property_.false_alarm else []),
            f"  source    {property_.source}",
            *([f"  replay    attn-spec replay {case.id}"] if is_stored else []),
            f"  python    attn_spec.run(problem, {_named(case)}), attn_spec.tensors(problem, {framework!r})",
            *([f"  script    python {script}"] if script else []),
            *([_no_script(case)] if case.is_large else []),
        ]
    )


def _named(case: Case) -> str:
    """Return the arguments that name the kernel, and its signature or definition if that declares it."""
    said = {name: case.declared[name] for name in ("signature", "definition") if case.declared.get(name)}
    return ", ".join([repr(case.kernel), *(f"{name}={value!r}" for name, value in said.items())])


def _no_script(case: Case) -> str:
    """Say why there is no script."""
    size = 8 * case.problem.entries / 2**20
    return f"  script    none: it would hold {size:,.0f} MiB of tensors, which replay makes again from the recipe"


def _chance(property_: Property, verdict: Verdict) -> str:
    """Say how often a sound kernel would cause this report."""
    sound = "the kernel rounds as its contract declares" if verdict is Verdict.SUSPECT else "the property is true"
    return f"  chance    at most {property_.false_alarm:g} for one problem, if {sound}"


def _small_tensors(problem: Problem) -> list[str]:
    """Return a line for each of q, k and v if all are small and the problem's repr omits them, else none.

    A merge of attention states has no q and k, but the log-sum-exps of its states as a bias.
    """
    named = {name: getattr(problem, name) for name in (("v", "bias") if problem.states else ("q", "k", "v"))}
    if problem.recipe is None or not all(0 < array.size <= FEW for array in named.values()):
        return []
    lines = [f"  {name:<8}  {' '.join(f'{x:.6g}' for x in array.ravel())}" for name, array in named.items()]
    return [f"{line}, of shape {array.shape}" for line, array in zip(lines, named.values(), strict=True)]


def _why(case: Case) -> list[str]:
    """Return the message on at most four lines, without what the lines on the worst element say."""
    message = case.message
    if case.worst is not None:
        message = f"; {message}".partition(f"; {case.worst.quantity}[")[0].removeprefix("; ")
    return _told("why", message)


def _told(what: str, text: str) -> list[str]:
    """Return a text on at most four lines, the first of which begins with what it is."""
    begin = f"  {what:<8}  "
    return textwrap.wrap(
        text, WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin), max_lines=4, placeholder=" ..."
    )

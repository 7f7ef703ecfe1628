"""The numeric error report: measure kernels, write the page, the Markdown and the rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_spec import __version__
from attn_spec.evidence import report
from attn_spec.evidence.certificate import load
from attn_spec.evidence.provenance import environment
from attn_spec.isolation.foreign import found
from attn_spec.judgement.bound_terms import BoundTerm
from attn_spec.judgement.planted_errors import Power, Unseen
from attn_spec.kernels import kernel as kernels
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.resolve import in_tree, resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search import verdict
from attn_spec.search.preflight import preflight
from attn_spec.watching import tally

from . import page, svg, sweep, tables
from .rows import Row, columns

#: Version of the JSON document.
SCHEMA = 1


def write_report(
    path: Path,
    *,
    kernels: Sequence[str],
    dtypes: Sequence[str] | None,
    device: str,
    profile: str,
    certificate: Path | None = None,
    declared: Mapping[str, Any] | None = None,
    isolate: str = "auto",
    watched: Path | None = None,
) -> list[Path]:
    """Measure ``kernels`` (by default those built in that run here) and write PATH.html, PATH.md and PATH.json.

    A certificate adds its verdicts to the page, and ``watched``, the JSON report of a watch, adds what was seen of each
    function. ``declared`` is the declaration of an undecorated callable. ``isolate`` is a word of
    ``isolation.choices.ISOLATE``: whether kernels have processes of their own. Raises
    :class:`attn_spec.kernels.kernel.KernelError` for a kernel, dtype or device that cannot be used,
    :class:`svg.FigureError` without matplotlib, :class:`attn_spec.evidence.certificate.CertificateError`,
    :class:`attn_spec.watching.tally.TallyError` for a file that is no report of a watch, and
    :class:`sweep.SweepError` for an unknown profile or if no kernel takes a problem of the sweeps. Nothing is written
    unless everything is.
    """
    svg.matplotlib()
    verdicts, powers = ([], []) if certificate is None else (verdicts_of(certificate), powers_of(certificate))
    seen = [] if watched is None else tally.load(watched)
    subjects, left_out = subjects_of(kernels, dtypes or (), device, declared or {}, isolate)
    rows, untaken = rows_of(_tracked(sweep.points(subjects, profile)))
    if not rows:
        raise sweep.SweepError(f"no problem of the report is taken: {'; '.join(untaken.values())}. Give another kernel")
    left_out |= untaken
    where = {"attn-spec": __version__, "profile": profile, **_known(environment(device))}
    where |= {} if certificate is None else shapes_of(certificate)
    where |= {f"left out: {name}": reason for name, reason in left_out.items()}
    texts = {
        ".html": page.html(rows, where, verdicts, powers, seen),
        ".md": tables.markdown(rows, where, verdicts, powers, seen),
        ".json": document(rows, where),
    }
    return report.write(path, texts)


def subjects_of(
    names: Sequence[str], dtypes: Sequence[str], device: str, declared: Mapping[str, Any], isolate: str = "auto"
) -> tuple[list[Subject], dict[str, str]]:
    """Return the subjects to measure, and the built-in kernels that do not run here, with the reason."""
    if names:
        every = [preflight(found(name, isolate, **declared), dtypes, device) for name in names]
        return [subject for examined in every for subject in examined.subjects], {}
    subjects: list[Subject] = []
    left_out: dict[str, str] = {}
    for name in in_tree():
        try:
            kernel = resolve(name)
            wanted = [dtype for dtype in kernel.dtypes if not dtypes or dtype in dtypes]
            subjects += preflight(kernel, wanted, device).subjects if wanted else ()
        except kernels.KernelError as error:
            left_out[name] = str(error).splitlines()[0]
    if not subjects:
        raise kernels.KernelError(f"no kernel built in takes {', '.join(dtypes)} on {device}; choose another dtype")
    return subjects, left_out


def rows_of(points: Iterable[sweep.Point]) -> tuple[list[Row], dict[str, str]]:
    """Return the rows of all points, and the kernels whose limits leave no problem of a point, with a reason."""
    rows: list[Row] = []
    untaken: dict[str, str] = {}
    for point in points:
        try:
            rows += sweep.measured(point)
        except NotTaken as error:
            untaken[f"{point.subject.kernel.name}, {point.subject.dtype}"] = str(error)
    seen = {f"{row.kernel}, {row.dtype}" for row in rows}
    return rows, {name: reason for name, reason in untaken.items() if name not in seen}


def verdicts_of(path: Path) -> list[verdict.Row]:
    """Return a certificate's verdicts. Raises :class:`attn_spec.evidence.certificate.CertificateError`."""
    found = load(path)
    return [
        verdict.Row(
            property=result.id,
            kernel=found.subject.name,
            dtype=dtype,
            verdict=finding.verdict,
            examples=finding.examples,
            discarded=finding.discarded,
            measured=finding.measured,
            ratio=None if finding.ratio is None else float(finding.ratio.value),
            quantisation=finding.quantisation,
            case=finding.case,
            message=finding.message,
            looked_at=finding.looked_at,
            hints=finding.hints,
            bound_terms=tuple(BoundTerm(one.term, one.share) for one in finding.bound_terms),
        )
        for result in found.properties
        for dtype, finding in result.dtypes.items()
    ]


def powers_of(path: Path) -> list[Power]:
    """Return the planted errors that a certificate's verdicts would refute. Raises as :func:`verdicts_of` does."""
    return [
        Power(
            dtype=one.dtype,
            where=one.where,
            planted=one.planted,
            unseen=tuple(
                Unseen(
                    words=each.error,
                    ratio=float(each.ratio.value),
                    hidden_by=each.hidden_by,
                    sharper=float(each.sharper.value),
                )
                for each in one.unseen
            ),
        )
        for one in load(path).power
    ]


def shapes_of(path: Path) -> dict[str, str]:
    """Return the shapes that a certificate was asked for, under the heading of a report; empty if there are none."""
    shapes = load(path).configuration.shapes
    return {"shapes asked for": "; ".join(shapes)} if shapes else {}


def document(rows: Sequence[Row], where: dict[str, str]) -> str:
    """Return the rows as JSON, column names once and a line for each row; non-finite numbers are strings."""
    lines = [columns(row) for row in rows]
    head = {"schema": SCHEMA, "environment": where, "columns": list(lines[0]) if lines else []}
    body = ",\n".join(json.dumps(list(line.values()), allow_nan=False) for line in lines)
    return f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{body}\n]}}\n'


def _tracked(points: Sequence[sweep.Point]) -> Iterator[sweep.Point]:
    """Yield the points, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=len(points))
        for point in points:
            progress.update(task, description=f"{point.subject.kernel.name} {point.subject.dtype}")
            yield point
            progress.advance(task)


def _known(values: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}

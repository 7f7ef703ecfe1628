"""The command ``certify``: examine a kernel, show and write the findings, and return an exit code."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import click

from attn_spec.cli import screen
from attn_spec.cli.exit_codes import CODES, INTERRUPTED, CouldNotRun, check_apart, check_writable, of_all
from attn_spec.evidence import certificate, report
from attn_spec.evidence.certificate import Certificate
from attn_spec.sessions.examination import SHARES, CannotRunError, examine
from attn_spec.sessions.progress import INTERRUPTION, Progress, Request
from attn_spec.workers.task import WorkersError


def show_examination(
    kernel: str, output: Path, page: Path | None, *, as_json: bool, **chosen: Any
) -> tuple[Certificate, Progress]:
    """Examine one kernel, show the findings, and write its certificate to ``output``.

    ``page`` is the path of a report that will be written later; ``chosen`` are the other fields of a :class:`Request`.
    With ``as_json``, stdout is left to the document. Raises :class:`CouldNotRun`.
    """
    request = Request(kernel=kernel, **{**chosen, "workers": _workers(chosen)})
    live = screen.Live(request.workers, silent=as_json)
    try:
        _check_writable(output, page)
        document, progress = examine(request, live.show)
        live.end(document, progress)
        certificate.save(document, output)
    except (CannotRunError, CouldNotRun, WorkersError) as error:
        if as_json:
            click.echo(certificate.text(certificate.Refusal(message=str(error))), nl=False)
        raise CouldNotRun(str(error)) from None
    finally:
        live.clear()
    click.echo(f"certificate: {output}", err=as_json)
    return document, progress


#: Part of the ids of the properties by which the reference of a definition is examined.
OF_REFERENCE = "accuracy."


def examine_reference(definition: str, output: Path, chosen: dict[str, Any]) -> Certificate | None:
    """Examine the reference of a definition, as a kernel of its own dtype, and write its certificate beside ``output``.

    Return None if that could not be done, which is said on stderr. ``chosen`` are the fields of the request for the
    solution.
    """
    own = ("device", "profile", "seed", "call_limit", "isolate", "memory")
    fields = {name: chosen[name] for name in own}
    place = output.with_stem(f"{output.stem}-reference")
    try:
        _check_writable(place, None)
        document, _ = examine(Request(kernel=definition, only=(OF_REFERENCE,), **fields))
        certificate.save(document, place)
    except (CannotRunError, CouldNotRun) as error:
        click.echo(f"the reference of {definition} could not be examined: {error}", err=True)
        return None
    click.echo(f"certificate of the reference: {place}", err=True)
    return document


def conclude(document: Certificate, progress: Progress, *, as_json: bool) -> int:
    """Print the result, as a line or as a document, and return the exit code."""
    click.echo(screen.conclusion(document, progress.stopped), err=as_json)
    codes = [CODES[document.result]]
    if document.reference == "refuted":
        codes.append(CODES[document.reference])
        click.echo("the reference of the definition is refuted: attention is something else", err=as_json)
    if as_json:
        click.echo(certificate.text(document), nl=False)
    if progress.stopped == INTERRUPTION:
        return INTERRUPTED
    return of_all(codes)


def _workers(chosen: dict[str, Any]) -> int:
    """Return the number of processes, unless it is given; each imports the kernel's framework anew."""
    if chosen["workers"] is not None:
        return chosen["workers"]
    several = chosen["device"] == "cpu" and (os.cpu_count() or 1) > 1
    return 1 if chosen["only"] else SHARES if chosen["scheduler"] else 2 if several else 1


def _check_writable(output: Path, page: Path | None) -> None:
    """Check before a search of hours that its results can be written. Raises :class:`CouldNotRun`."""
    for path in filter(None, (output, page)):
        check_writable(path)
    if output.exists() and not certificate.is_one(output):
        raise CouldNotRun(
            f"{output} is not a certificate, and would be overwritten; remove it, or choose another --output"
        )
    if page is not None:
        check_apart(page, output, "--report")
    if page is not None and importlib.util.find_spec("matplotlib") is None:
        raise CouldNotRun(report.NO_MATPLOTLIB)

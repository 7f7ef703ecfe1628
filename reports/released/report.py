"""Certify the released implementations, each in an environment of pinned versions, and write their page.

    python -m attn_spec.reports.released.report --output released.html

    python -m attn_spec.reports.released.report --only torch-sdpa --baseline reports/gallery/released.json

Each implementation is certified at small problems and at one shape of a production size. Models of some projects run
under a watch. Three files are written after each implementation: PATH.html, PATH.md and PATH.json. With ``--baseline``,
the page says what differs from an earlier PATH.json. Outcomes of what is not examined, or not yet, are taken from it.

Exit statuses are those of ``attn-spec``, and the last lines name the implementations that they are about:

- 0: every implementation and every model was examined, each refutation is judged, and each finding is confirmed.
- 1: a refutation is not judged, or a call of a model is refuted.
- 2: the command could not run.
- 3: an implementation or a model could not run, or was not examined enough; or a finding is not confirmed, because the
  project mended it, its script shows no defect, or it names a property that does not exist.
"""

from __future__ import annotations

import argparse
import datetime as dt
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_spec import __version__
from attn_spec.cli.exit_codes import COULD_NOT_RUN
from attn_spec.evidence import report
from attn_spec.nearest_names import suggestion

from . import examination, findings, page, watch_runs
from .changes import changes
from .conclusion import conclusions, status
from .environments import ReleasedError, by_name, made
from .implementation import Implementation
from .implementations import IMPLEMENTATIONS
from .implementations import by_name as implementations_by_name
from .outcome import Document, Outcome, Watched, from_json, to_json

#: Folder of the environments, beside the cases of failed searches.
FOLDER = Path(".attn-spec") / "released"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the module's docstring lists the exit statuses."""
    options = _parsed(arguments)
    try:
        return _report(options)
    except ReleasedError as error:
        sys.stderr.write(f"{error}\n")
        return COULD_NOT_RUN


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Certify released implementations, and write their page.")
    parser.add_argument("--output", type=Path, default=Path("released.html"), help="path of the page")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="examine this implementation or watch run alone"
    )
    parser.add_argument("--baseline", type=Path, help="JSON of an earlier page, with which this one is compared")
    parser.add_argument("--profile", default="ci", choices=("smoke", "ci", "certify"))
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args(arguments)


def _report(options: argparse.Namespace) -> int:
    chosen, known = _chosen(options.only), findings.read()
    before = _before(options.baseline)
    rows, runs = implementations_by_name(), watch_runs.by_name()
    outcomes = {name: before.outcomes[name] for name in rows if name in before.outcomes}
    watched = {name: before.watched[name] for name in runs if name in before.watched}
    for name in chosen:
        sys.stderr.write(f"examining {name}\n")
        installed = made(by_name()[(rows.get(name) or runs[name]).environment], FOLDER.resolve())
        if name in rows:
            effort = {"profile": options.profile, "workers": options.workers}
            outcomes[name] = examination.examine(rows[name], _of(rows[name], known), installed, **effort)
        else:
            watched[name] = watch_runs.watch(runs[name], installed, FOLDER.resolve())
        # An examination of hours may be interrupted.
        _write(options, _ordered(outcomes), [watched[each] for each in runs if each in watched], known, before)
    found = conclusions(_ordered(outcomes), watched.values())
    sys.stderr.write("".join(f"{sentence}\n" for _, sentence in found))
    return status(found)


def _ordered(outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """Return the outcomes in the order of the table."""
    return [outcomes[row.name] for row in IMPLEMENTATIONS if row.name in outcomes]


def _chosen(names: Sequence[str]) -> Sequence[str]:
    """Return the names of implementations and watch runs to examine; all without any. Raises :class:`ReleasedError`."""
    every = [*implementations_by_name(), *watch_runs.by_name()]
    for name in names:
        if name not in every:
            known = f"; known are {', '.join(every)}"
            raise ReleasedError(f"unknown implementation {name!r}{suggestion(name, every, known)}")
    return list(dict.fromkeys(names)) or every


def _before(baseline: Path | None) -> Document:
    if baseline is None:
        return Document()
    try:
        return from_json(baseline.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReleasedError(f"{baseline} cannot be read: {error.strerror}; give the JSON of an earlier page") from error


def _of(row: Implementation, known: Sequence[findings.Finding]) -> tuple[findings.Finding, ...]:
    return tuple(one for one in known if one.implementation == row.name)


def _write(
    options: argparse.Namespace,
    outcomes: Sequence[Outcome],
    watched: Sequence[Watched],
    known: Sequence[findings.Finding],
    before: Document,
) -> None:
    rows, runs = implementations_by_name(), watch_runs.by_name()
    shown = [
        page.Shown(row=rows[one.implementation], outcome=one, findings=_of(rows[one.implementation], known))
        for one in outcomes
    ]
    seen = [page.ShownRun(row=runs[one.name], outcome=one) for one in watched]
    about = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "attn-spec": __version__,
        "profile": options.profile,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    told = changes(before, outcomes, watched) if before.outcomes or before.watched else []
    texts = {
        ".html": page.html(shown, seen, about, told),
        ".md": page.markdown(shown, seen, about, told),
        ".json": to_json(outcomes, watched, about),
    }
    report.write(options.output, texts)


if __name__ == "__main__":
    sys.exit(main())

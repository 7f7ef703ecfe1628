"""Certify the released implementations, each in an environment of pinned versions, and write their page.

    python -m attn_spec.reports.released.report --output released.html

    python -m attn_spec.reports.released.report --only torch-sdpa --baseline reports/gallery/released.json

Three files are written after each implementation: PATH.html, PATH.md and PATH.json. With ``--baseline``, the page says
which verdicts differ from those of an earlier PATH.json. With ``--only``, outcomes of other implementations are taken
from it. Exit status 0: each refutation is judged, and each script shows its defect, twice. Exit status 1: one is not
judged, or a script shows none.
"""

from __future__ import annotations

import argparse
import datetime as dt
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_spec import __version__, atomic
from attn_spec.nearest_names import suggestion

from . import examination, findings, page
from .environments import ReleasedError, by_name, made
from .implementations import IMPLEMENTATIONS, Implementation
from .implementations import by_name as implementations_by_name
from .outcome import Outcome, changes, from_json, to_json

#: Folder of the environments, beside the cases of failed searches.
FOLDER = Path(".attn-spec") / "released"
#: Runs of a script that must show a defect.
RUNS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the module's docstring lists the exit statuses."""
    options = _parsed(arguments)
    try:
        return _report(options)
    except ReleasedError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Certify released implementations, and write their page.")
    parser.add_argument("--output", type=Path, default=Path("released.html"), help="path of the page")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="examine this implementation alone")
    parser.add_argument("--baseline", type=Path, help="JSON of an earlier page, with which this one is compared")
    parser.add_argument("--profile", default="ci", choices=("smoke", "ci", "certify"))
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args(arguments)


def _report(options: argparse.Namespace) -> int:
    chosen, known = _chosen(options.only), findings.read()
    before = _before(options.baseline)
    outcomes = {name: before[name] for name in implementations_by_name() if name in before and name not in chosen}
    silent = False
    for row in chosen.values():
        sys.stderr.write(f"certifying {row.name}\n")
        installed, own = made(by_name()[row.environment], FOLDER.resolve()), _of(row, known)
        outcomes[row.name] = examination.examine(row, own, installed, profile=options.profile, workers=options.workers)
        for script in (one.script for one in own if one.script):
            if not all(examination.shows(script, installed) for _ in range(RUNS)):
                sys.stderr.write(f"{script} shows no defect of {row.name}; mend the script, or remove the finding\n")
                silent = True
        _write(options, _ordered(outcomes), known, before)  # an examination of hours may be interrupted
    left = [one.implementation for one in _ordered(outcomes) if one.open]
    if left:
        sys.stderr.write(f"refutations are not judged: {', '.join(left)}; add them to {findings.FINDINGS.name}\n")
    return 1 if silent or left else 0


def _ordered(outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """Return the outcomes in the order of the table."""
    return [outcomes[row.name] for row in IMPLEMENTATIONS if row.name in outcomes]


def _chosen(names: Sequence[str]) -> dict[str, Implementation]:
    """Return the implementations of these names; all without any. Raises :class:`ReleasedError`."""
    rows = implementations_by_name()
    for name in names:
        if name not in rows:
            known = f"; known are {', '.join(rows)}"
            raise ReleasedError(f"unknown implementation {name!r}{suggestion(name, rows, known)}")
    return {name: rows[name] for name in names or rows}


def _before(baseline: Path | None) -> dict[str, Outcome]:
    if baseline is None:
        return {}
    try:
        return from_json(baseline.read_text(encoding="utf-8"))[0]
    except OSError as error:
        raise ReleasedError(f"{baseline} cannot be read: {error.strerror}; give the JSON of an earlier page") from error


def _of(row: Implementation, known: Sequence[findings.Finding]) -> tuple[findings.Finding, ...]:
    return tuple(one for one in known if one.implementation == row.name)


def _write(
    options: argparse.Namespace,
    outcomes: Sequence[Outcome],
    known: Sequence[findings.Finding],
    before: Mapping[str, Outcome],
) -> None:
    rows = implementations_by_name()
    shown = [
        page.Shown(row=rows[one.implementation], outcome=one, findings=_of(rows[one.implementation], known))
        for one in outcomes
    ]
    about = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "attn-spec": __version__,
        "profile": options.profile,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    told = changes(before, outcomes) if before else []
    stem = options.output.with_suffix("") if options.output.suffix in (".html", ".md", ".json") else options.output
    texts = {
        ".html": page.html(shown, about, told),
        ".md": page.markdown(shown, about, told),
        ".json": to_json(outcomes, about),
    }
    for suffix, text in texts.items():
        atomic.write(stem.with_name(stem.name + suffix), text)


if __name__ == "__main__":
    sys.exit(main())

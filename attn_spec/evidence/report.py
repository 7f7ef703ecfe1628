"""Access to the packages that write reports, which the entry-point group ``attn_spec.reports`` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from attn_spec import atomic

#: Entry-point group of reports: each entry names a function that writes a report and returns its files' paths.
GROUP = "attn_spec.reports"

NO_MATPLOTLIB = "the figures of a report need matplotlib, which is not installed; run: pip install 'attn-spec[report]'"


#: Endings of the files of a report: a page, and its figures as Markdown and as JSON.
ENDINGS = (".html", ".md", ".json")


def files(page: Path) -> dict[str, Path]:
    """Return the files of the report that ``page`` names, by one of them or without an ending; by their endings."""
    stem = page.with_suffix("") if page.suffix in ENDINGS else page
    return {ending: stem.with_name(stem.name + ending) for ending in ENDINGS}


def write(page: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files of the report that ``page`` names, by their endings, and return their paths."""
    places = files(page)
    return [atomic.write(places[ending], text) for ending, text in texts.items()]


class ReportError(RuntimeError):
    """A report that cannot be written: a package is missing, or an argument is not known."""


def writer(name: str) -> Callable[..., list[Path]]:
    """Return the function that writes a report.

    Raises :class:`ReportError` if no report of this name is installed, or if a package that it needs is missing.
    """
    found: dict[str, Any] = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise ReportError(
            f"no report is called {name!r}; installed are: {known}. If attn-spec was updated, install it again: "
            "reports are entry points, which are read at installation"
        )
    try:
        return found[name].load()
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise ReportError(f"{name} needs {package}, which is not installed; pip install {package}") from error

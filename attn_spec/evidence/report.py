"""Reports are written by packages above this one, which the entry-point group ``attn_spec.reports`` names."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

#: Where a report is registered: a name, and a function that writes it and returns the paths of its files.
GROUP = "attn_spec.reports"

NO_MATPLOTLIB = "the figures of a report need matplotlib, which is not installed; run: pip install 'attn-spec[report]'"


class ReportError(RuntimeError):
    """A report cannot be written: what it needs is missing, or it was asked for something it does not know."""


def writer(name: str) -> Callable[..., list[Path]]:
    """The function that writes a report.

    Raises :class:`ReportError` if none of that name is installed, or a package that it is written with is not.
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

"""The command ``attn-spec teeth``: measure the power of the suite and write the page, the Markdown and the rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attn_spec import __version__
from attn_spec.evidence import report
from attn_spec.evidence.provenance import environment

from ...errors import svg
from ..peers.work import BUDGET
from . import document as teeth
from . import page
from .measurement import Watch, measure


def write_teeth(
    path: Path,
    *,
    document: Path | None = None,
    sample: int | None = None,
    workers: int = 2,
    seed: int = 0,
    scheduler: str | None = None,
) -> list[Path]:
    """Measure, or read what a ``document`` holds, and write PATH.html, PATH.md and PATH.json.

    Raises :class:`teeth.TeethError` for a sample or a document that cannot be used, :class:`svg.FigureError`
    without matplotlib and :class:`attn_spec.workers.task.WorkersError`. Nothing is written unless everything is.
    """
    svg.matplotlib()
    made = measured(sample, workers, seed, scheduler) if document is None else read(document)
    texts = {".html": page.html(made), ".md": page.markdown(made), ".json": made.to_json()}
    return report.write(path, texts)


def measured(sample: int | None, workers: int, seed: int, scheduler: str | None = None) -> teeth.Teeth:
    """Run the measurement, with a progress bar on a terminal."""
    with _progress() as watch:
        made = measure(sample=sample, budget=BUDGET, workers=workers, seed=seed, watch=watch, scheduler=scheduler)
    known = {name: value for name, value in environment("cpu").items() if value is not None}
    made.environment = {"attn-spec": __version__, "seed": str(seed), "budget": str(BUDGET), **known}
    return made


def read(document: Path) -> teeth.Teeth:
    """Read the measurement of an earlier run. Raises :class:`teeth.TeethError`."""
    try:
        return teeth.Teeth.from_json(document.read_text(encoding="utf-8"))
    except OSError as error:
        raise teeth.TeethError(
            f"{document} cannot be read: {error.strerror}; give the JSON of an earlier run"
        ) from error


@contextmanager
def _progress() -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring")

        def watch(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)
            if not bar.console.is_terminal:
                print(f"{done} of {total}: {name}", file=sys.stderr, flush=True)

        yield watch

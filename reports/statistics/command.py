"""The command ``attn-spec statistics``: measure, and write the page, the Markdown and the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attn_spec import __version__
from attn_spec.evidence import report
from attn_spec.evidence.provenance import environment
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.preflight import preflight

from ..errors import svg
from . import measurement, memory, page

#: Kernels that are measured by default: one with products as scores, and one with additive scores.
KERNELS = ("numpy_tiled", "torch_scores:additive")


def write_statistics(
    path: Path,
    *,
    kernels: Sequence[str] = (),
    dtype: str | None = None,
    device: str = "cpu",
    draws: int = 4096,
    seed: int = 0,
    with_memory: bool = True,
) -> list[Path]:
    """Measure ``kernels`` and write PATH.html, PATH.md and PATH.json.

    ``dtype`` is "float64" or "float32", by default the first of them that a kernel declares.
    Raises :class:`attn_spec.kernels.kernel.KernelError` for a kernel, dtype or device that cannot be used,
    :class:`measurement.StatisticsError` for one that shows nothing or fails, and :class:`svg.FigureError` without
    matplotlib. Nothing is written unless everything is.
    """
    svg.matplotlib()
    if dtype not in (None, *measurement.DTYPES):
        known = " or ".join(measurement.DTYPES)
        raise measurement.StatisticsError(f"{dtype} is too coarse for statistics; choose {known}")
    subjects = [one for name in kernels or KERNELS for one in _subjects(resolve(name), dtype, device)]
    points = [point for subject in subjects for point in measurement.points(subject, draws, seed)]
    known = {name: value for name, value in environment(device).items() if value is not None}
    where = {"attn-spec": __version__, "seed": str(seed), "draws": str(draws), **known}
    for subject in subjects:
        reasons = measurement.left_out(subject)
        if (slowness := subject.kernel.slowness) != 1.0:
            where[f"draws of {subject.kernel.name}"] = (
                f"{measurement.taken(subject, draws)}, as slow as {slowness:g} calls"
            )
        where |= {f"left out: {name} of {subject.kernel.name}": reason for name, reason in reasons.items()}
    made = page.Measured(environment=where, points=points, peaks=list(memory.peaks()) if with_memory else [])
    texts = {".html": page.html(made), ".md": page.markdown(made), ".json": page.document(made)}
    return report.write(path, texts)


def _subjects(kernel: Kernel, dtype: str | None, device: str) -> list[Subject]:
    """Return the kernel's subjects at ``dtype``, or at the first of its dtypes that is fine enough."""
    fine = next((one for one in measurement.DTYPES if one in kernel.dtypes), measurement.DTYPES[0])
    return list(preflight(kernel, [dtype or fine], device).subjects)

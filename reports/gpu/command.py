"""The command ``attn-spec gpu``: certify the kernels that are made for a GPU, time them, and write the page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from attn_spec.evidence import report
from attn_spec.evidence.report import ReportError
from attn_spec.kernels.resolve import resolve

from ..errors import svg
from . import examination, measurement, page

#: The kernels that are timed; the others of PyTorch are what they are compared with.
TIMED = ("triton_tiled",)


class GpuError(ReportError):
    """There is no GPU, or no earlier run to read; the text says what to do next."""


def write_gpu(
    path: Path, *, document: Path | None = None, device: str = "cuda", profile: str = "ci", timing: bool = True
) -> list[Path]:
    """Certify and measure on ``device``, or read what a ``document`` holds, and write PATH.html, PATH.md and PATH.json.

    Raises :class:`GpuError` without a GPU or for a document that cannot be read, and :class:`svg.FigureError` without
    matplotlib. Nothing is written unless everything is.
    """
    svg.matplotlib()
    made = measured(device, profile, timing=timing) if document is None else read(document)
    texts = {".html": page.html(made), ".md": page.markdown(made), ".json": page.document(made)}
    return report.write(path, texts)


def measured(device: str, profile: str, *, timing: bool) -> page.Measured:
    """Examine and time kernels on a GPU. Raises :class:`GpuError` where there is none."""
    if device.partition(":")[0] != "cuda":
        raise GpuError(f"{device} is no GPU; write cuda or cuda:N")
    if reason := examination.missing(device):
        what = reason.partition(";")[0]
        raise GpuError(f"{what}; run this on a machine with one. Nothing was examined or written")
    environment = {**examination.machine(device), "profile": profile}
    examined = examination.examine(examination.cuda_kernels(), device, profile, _say)
    costs = list(measurement.costs(TIMED, measurement.cases(), device)) if timing else []
    return page.Measured(environment=environment, examined=examined, costs=costs, tiles=tiles(), device=device)


def tiles() -> dict[str, str]:
    """Return the tiles that kernels chose in this process, by the ``chosen`` of the modules of timed kernels."""
    found: dict[str, str] = {}
    for module in dict.fromkeys(resolve(name).module for name in TIMED):
        chosen: Callable[[], dict[str, str]] = getattr(sys.modules[module], "chosen", dict)
        found |= chosen()
    return found


def read(document: Path) -> page.Measured:
    """Read the measurements of an earlier run. Raises :class:`GpuError`."""
    try:
        return page.from_json(document.read_text(encoding="utf-8"))
    except OSError as error:
        raise GpuError(f"{document} cannot be read: {error.strerror}; give the JSON of an earlier run") from error
    except (ValueError, KeyError, TypeError) as error:
        raise GpuError(f"{document} is not what `attn-spec gpu` writes: {error}") from error


def _say(name: str) -> None:
    sys.stderr.write(f"certifying {name}\n")

"""Sources of a solution, written into a folder that goes with its process, and imported from there.

The files are a package of their own, as in FlashInfer-Bench: one imports another by ``from . import name``.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from attn_spec.faults import in_one_line
from attn_spec.kernels.flashinfer_trace.documents import DocumentError

if TYPE_CHECKING:
    from attn_spec.kernels.flashinfer_trace.schema import Solution

#: Folder below which sources are written, which its owner removes. None: a temporary folder, removed with this process.
_below: Path | None = None
#: Temporary folders of this process, by the solution that each one holds.
_temporary: dict[str, tempfile.TemporaryDirectory[str]] = {}


def write_below(folder: Path) -> None:
    """Write sources below ``folder`` from now on; whoever calls this removes the folder."""
    global _below  # noqa: PLW0603 -- one process has one folder
    _below = folder


def function_of(solution: Solution, file: str) -> Callable[..., Any]:
    """Write the sources of a solution, import its entry point, and return the function.

    ``file`` is the document's file, for messages. Raises :class:`DocumentError`.
    """
    text = solution.model_dump_json()
    package = f"solution_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    folder = _folder(package)
    for source in solution.sources:
        path = folder / package / source.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.content, encoding="utf-8")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    module = ".".join((package, *PurePosixPath(solution.spec.file).with_suffix("").parts))
    where = f"{file}: spec.entry_point {solution.spec.entry_point!r}"
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        raise DocumentError(f"{where} does not import: {in_one_line(error)}; mend the sources") from error
    found = getattr(imported, solution.spec.function, None)
    if not callable(found):
        names = [name for name, value in vars(imported).items() if callable(value) and not name.startswith("_")]
        raise DocumentError(f"{where} names no function; the file has {', '.join(names) or 'none'}")
    return found


def _folder(package: str) -> Path:
    """Return a folder for the package of a solution."""
    if _below is not None:
        return _below
    with suppress(KeyError):
        return Path(_temporary[package].name)
    _temporary[package] = tempfile.TemporaryDirectory(prefix="attn-spec-")
    return Path(_temporary[package].name)

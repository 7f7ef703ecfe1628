"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def refusal(path: Path) -> str:
    """Return why nothing can be written to ``path``, as far as a test without writing shows; empty if it can be."""
    if path.is_dir():
        return "it is a folder"
    home = next(parent for parent in path.absolute().parents if parent.exists())
    if not home.is_dir():
        return f"{home} is a file"
    return "" if os.access(home, os.W_OK | os.X_OK) else f"{home} may not be written to"


def write(path: Path, text: str) -> Path:
    """Write ``text`` to ``path`` and return the path; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)  # noqa: PTH101 -- mkstemp makes files that only their owner may read
        os.replace(temporary, path)  # noqa: PTH105
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
    return path

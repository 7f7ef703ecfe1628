"""Digests of a kernel's files, taken before its process starts, so that a certificate names the files that ran.

A module may overwrite its own file once it is loaded. Therefore the kernel's file, and the Python files below its
folder, are read before any process of the kernel starts. A file from elsewhere is read when the process first reports
that it has imported it. Every imported file must be unchanged at each start and at the end.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from attn_spec.isolation.imported import INSTALLED
from attn_spec.kernels.kernel import KernelError

#: Largest number of files read below a kernel's folder, nearest first, and largest number of folders searched.
MOST_FILES, MOST_FOLDERS = 2000, 500


class ChangedError(KernelError):
    """A file that a kernel is made of has changed since the examination began."""


class Sources:
    """The files of one kernel, as they were before its process first started.

    They are its own file, files that the user named ``beside`` it, and the Python files below its folder.
    """

    def __init__(self, file: str | None, *beside: str) -> None:
        self.file = Path(file).resolve() if file else None
        #: Files that the user named beside the kernel's own, such as the definition of a solution.
        self.beside = tuple(path for path in map(Path, beside) if path.is_file())
        self._first: dict[Path, str] = {}
        self._used: set[Path] = set()
        if self.file is not None and self.file.is_file():
            self._first = {path: digest(path) for path in (self.file, *self.beside, *_below(self.file.parent))}
            self._used = {self.file, *self.beside}

    @property
    def digest(self) -> str:
        """SHA-256 of the kernel's own file; empty if there is none."""
        return self._first.get(self.file, "") if self.file else ""

    def imported(self, names: Iterable[str]) -> dict[Path, str]:
        """Return the first digests of these files, which the process has imported. Raises :class:`ChangedError`."""
        paths = [path for path in map(Path, names) if path.is_file()]
        self._used |= set(paths)
        for path in paths:
            self._first.setdefault(path, digest(path))
        self.check()
        return {path: self._first[path] for path in paths}

    def check(self) -> None:
        """Raise :class:`ChangedError` unless each file that the kernel's process has imported has its first digest."""
        for path in sorted(self._used):
            now = digest(path) if path.is_file() else ""
            if now != self._first[path]:
                is_now = f"is now {now[:8]}" if now else "is gone"
                raise ChangedError(
                    f"{path} changed while the kernel was examined: its SHA-256 began with {self._first[path][:8]} and "
                    f"{is_now}, so that a certificate would name a file that did not run. Examine the kernel in a "
                    "folder that nothing writes to, the kernel included"
                )


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _below(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, nearest first, without hidden folders and those of installed packages."""
    level, looked, found = [folder], 0, 0
    while level:
        deeper: list[Path] = []
        for each in level:
            looked += 1
            if looked > MOST_FOLDERS:
                return
            for entry in _entries(each):
                if entry.is_dir(follow_symlinks=False):
                    if not entry.name.startswith(".") and entry.name not in {*INSTALLED, "__pycache__"}:
                        deeper.append(Path(entry.path))
                elif entry.name.endswith(".py") and entry.is_file():
                    found += 1
                    if found > MOST_FILES:
                        return
                    yield Path(entry.path).resolve()
        level = deeper


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, sorted by name; none if this process may not read the folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []

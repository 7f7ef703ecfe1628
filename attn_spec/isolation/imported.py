"""The files that a kernel is made of: those imported that belong to no installed package, nor to Python."""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path


def files() -> list[str]:
    """Paths of the sources of every module here that no package manager installed."""
    installed = [Path(path).resolve() for path in _installed()]
    found = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and (path := Path(name)).is_file():
            found.add(path.resolve())
    own = [path for path in found if not any(path.is_relative_to(folder) for folder in installed)]
    return sorted(map(str, own))


def _installed() -> list[str]:
    """Folders of Python, of installed packages, and of attn-spec."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    return [folder for folder in folders if folder]

"""The files that a kernel is made of: those imported that belong to no installed package, nor to Python."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

#: Folders that package managers install into, wherever they lie.
INSTALLED = {"site-packages", "dist-packages"}


def files() -> list[str]:
    """Paths of every module here that no package manager installed, but for those of attn-spec."""
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    own.append(Path(__file__).resolve().parents[1])
    found = set()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and (path := Path(name)).is_file():
            found.add(path.resolve())
    left = [path for path in found if INSTALLED.isdisjoint(path.parts)]
    return sorted(str(path) for path in left if not any(path.is_relative_to(folder) for folder in own))

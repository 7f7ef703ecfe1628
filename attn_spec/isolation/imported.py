"""What a kernel is made of, as its process has it: files that belong to no installed package, and the packages.

Files are those of imported modules, and libraries that are mapped into the process, however they were loaded.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

#: Folders that package managers install into, wherever they lie.
INSTALLED = {"site-packages", "dist-packages"}
#: Folders of the libraries of the system.
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
#: Where Linux tells what is mapped.
MAPS = Path("/proc/self/maps")


def files() -> list[str]:
    """Paths of every module and library here that no package manager installed, but for those of attn-spec."""
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    own.append(Path(__file__).resolve().parents[1])
    found = _libraries()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and (path := Path(name)).is_file():
            found.add(path.resolve())
    left = [path for path in found if INSTALLED.isdisjoint(path.parts)]
    return sorted(str(path) for path in left if not any(path.is_relative_to(folder) for folder in own))


def packages() -> dict[str, str]:
    """Each installed package but attn-spec of which a module is imported: its version, and a digest of all its files.

    The digest is that of the list of its files, which has a SHA-256 of each.
    """
    by_module = _by_module()
    imported = {name.partition(".")[0] for name in list(sys.modules)}
    names = {name for module in imported for name in by_module.get(module, [])} - {"attn-spec"}
    found = {}
    for name in sorted(names):
        files_of = distribution(name).read_text("RECORD") or ""
        found[name] = f"{distribution(name).version} {hashlib.sha256(files_of.encode()).hexdigest()[:16]}"
    return found


@cache
def _by_module() -> Mapping[str, list[str]]:
    """Names of the distributions that have a module, by its name."""
    return packages_distributions()


def _libraries() -> set[Path]:
    """Shared libraries in memory that are not the system's; none where it does not say."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    named = {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(".so") or ".so." in line}
    system = (*SYSTEM, sys.base_prefix)
    return {path.resolve() for path in named if path.is_file() and not any(map(path.is_relative_to, system))}

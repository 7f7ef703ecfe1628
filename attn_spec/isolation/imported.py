"""Parts that a kernel is made of, found in its process: files outside installed packages, and the packages.

Files are those of imported modules, and of libraries that are mapped into the process, however they were loaded.
"""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from importlib.metadata import Distribution
from pathlib import Path

from .installed import providers

#: Names of folders that package managers install into, wherever these folders are.
INSTALLED = {"site-packages", "dist-packages"}
#: Folders of the system's libraries.
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
#: File in which Linux lists the mapped files.
MAPS = Path("/proc/self/maps")


def files(home: Path) -> list[str]:
    """Return the files of loaded modules and libraries outside packages, standard library and attn-spec.

    Files in ``home``, the folder of the process, are left out: they end with it, and a document holds their text.
    """
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    own += [Path(__file__).resolve().parents[1], home.resolve()]
    found = _libraries()
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if isinstance(name, str) and (path := Path(name)).is_file():
            found.add(path.resolve())
    left = [path for path in found if INSTALLED.isdisjoint(path.parts)]
    return sorted(str(path) for path in left if not any(path.is_relative_to(folder) for folder in own))


def packages() -> dict[str, str]:
    """Return each installed package, except attn-spec, of which a module is imported, with its version and a digest.

    The digest is that of the package's RECORD, which lists a SHA-256 of each file.
    """
    imported = {name.partition(".")[0] for name in list(sys.modules)}
    by_name: dict[str, Distribution] = {}
    for each in (each for module in imported for each in providers(module)):
        by_name.setdefault(each.name, each)  # the first on the path, whose modules are imported
    found = {}
    for name in sorted(by_name.keys() - {"attn-spec"}):
        files_of = by_name[name].read_text("RECORD") or ""
        found[name] = f"{by_name[name].version} {hashlib.sha256(files_of.encode()).hexdigest()[:16]}"
    return found


def _libraries() -> set[Path]:
    """Return the shared libraries mapped into memory that are not the system's; none if /proc is missing."""
    try:
        lines = MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    named = {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(".so") or ".so." in line}
    system = (*SYSTEM, sys.base_prefix)
    return {path.resolve() for path in named if path.is_file() and not any(map(path.is_relative_to, system))}

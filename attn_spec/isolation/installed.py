"""The installed distributions that provide a module.

``importlib.metadata.packages_distributions`` answers the same in ten times the time: it parses all metadata and builds
a path for each file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import Distribution, distributions


def providers(module: str) -> list[Distribution]:
    """Return the distributions that provide a top-level module."""
    return _by_module().get(module, [])


@cache
def _by_module() -> Mapping[str, list[Distribution]]:
    found: dict[str, list[Distribution]] = {}
    for each in distributions():
        for module in _modules(each):
            found.setdefault(module, []).append(each)
    return found


def _modules(each: Distribution) -> Iterable[str]:
    """Return the top-level modules that a distribution declares, or else those among its files."""
    if declared := (each.read_text("top_level.txt") or "").split():
        return dict.fromkeys(declared)
    paths = (line.partition(",")[0].strip('"') for line in (each.read_text("RECORD") or "").splitlines())
    return dict.fromkeys(path.partition("/")[0] if "/" in path else path.partition(".")[0] for path in paths)

"""Draws of Hypothesis that depend only on their seed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

#: Module of Hypothesis that draws constants from the source code of loaded modules, and its names that find, cache and
#: hold the constants. Hypothesis does not promise to keep these names.
_HOME, _NAMES = "hypothesis.internal.conjecture.providers", ("_get_local_constants", "CONSTANTS_CACHE", "Constants")


def _known() -> Any:
    """Return the module of Hypothesis that draws constants by these names, since 6.131.9; None for other versions."""
    try:
        home = importlib.import_module(_HOME)
    except ImportError:
        return None
    return home if all(hasattr(home, name) for name in _NAMES) else None


_PROVIDERS = _known()
#: Cache for Hypothesis's own constants, separate from the cache for constants of modules.
_OWN: Any = _PROVIDERS and type(_PROVIDERS.CONSTANTS_CACHE)(1024)


@contextlib.contextmanager
def of_the_seed_alone() -> Iterator[None]:
    """Draw no constants from the source code of loaded modules, which Hypothesis does in one draw of twenty.

    The loaded modules differ between an isolated kernel and one in this process, and between a checkout and a wheel.
    They also depend on what a process has done before. Hypothesis has no setting for this. Other tests in this process
    keep their constants, and older versions of Hypothesis are left unchanged. Works as a decorator.
    """
    with contextlib.ExitStack() as patches:
        if _PROVIDERS:
            patches.enter_context(patch.object(_PROVIDERS, "_get_local_constants", _PROVIDERS.Constants))
            patches.enter_context(patch.object(_PROVIDERS, "CONSTANTS_CACHE", _OWN))
        yield

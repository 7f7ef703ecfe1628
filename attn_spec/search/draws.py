"""Draws that depend on their seed alone."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

#: Where Hypothesis keeps such numbers, what finds, remembers and holds them. It promises none of these.
_HOME, _NAMES = "hypothesis.internal.conjecture.providers", ("_get_local_constants", "CONSTANTS_CACHE", "Constants")


def _known() -> Any:
    """The module that draws such numbers, if it does so by these names: since 6.131.9; None before."""
    try:
        home = importlib.import_module(_HOME)
    except ImportError:
        return None
    return home if all(hasattr(home, name) for name in _NAMES) else None


_PROVIDERS = _known()
#: What Hypothesis knows of its own numbers, apart from what it knows of those of modules.
_OWN: Any = _PROVIDERS and type(_PROVIDERS.CONSTANTS_CACHE)(1024)


@contextlib.contextmanager
def of_the_seed_alone() -> Iterator[None]:
    """Draw no numbers from the sources of modules that are loaded, as Hypothesis does once in twenty.

    Which modules those are differs between a kernel here and one in a process of its own, between a checkout and a
    wheel, and with what a process has done before. Hypothesis has no setting for this. The tests of others in this
    process keep their numbers, and so does an older Hypothesis. Works as a decorator.
    """
    with contextlib.ExitStack() as patches:
        if _PROVIDERS:
            patches.enter_context(patch.object(_PROVIDERS, "_get_local_constants", _PROVIDERS.Constants))
            patches.enter_context(patch.object(_PROVIDERS, "CONSTANTS_CACHE", _OWN))
        yield

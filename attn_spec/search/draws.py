"""Draws that depend on their seed alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from hypothesis.internal.cache import LRUCache
from hypothesis.internal.conjecture import providers

#: No promise of Hypothesis, whose versions before 6.131 have neither, and no such constants.
_FINDER, _CACHE = "_get_local_constants", "CONSTANTS_CACHE"
_KNOWN = hasattr(providers, _FINDER) and hasattr(providers, _CACHE)

#: What Hypothesis knows of its own constants, apart from what it knows of those of modules.
_OWN: LRUCache[Any, Any] = LRUCache(1024)


@contextlib.contextmanager
def of_the_seed_alone() -> Iterator[None]:
    """Draw no constants from the sources of modules that are loaded, as Hypothesis does for one number in twenty.

    Which modules those are differs between a kernel here and one in a process of its own, between a checkout and a
    wheel, and with what a process has done before. Hypothesis has no setting for this. The tests of others in this
    process keep their constants. Works as a decorator.
    """
    with contextlib.ExitStack() as patches:
        if _KNOWN:
            from hypothesis.internal.constants_ast import Constants

            patches.enter_context(patch.object(providers, _FINDER, Constants))
            patches.enter_context(patch.object(providers, _CACHE, _OWN))
        yield

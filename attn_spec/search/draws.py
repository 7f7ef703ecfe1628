"""Draws that depend on their seed alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hypothesis.internal.conjecture import providers


@contextlib.contextmanager
def of_the_seed_alone() -> Iterator[None]:
    """Draw no constants from the sources of modules that are loaded, as Hypothesis does for one number in twenty.

    Which modules those are differs from one process to the next, and with what it has done before. Hypothesis has no
    setting for this; where it has no such constants, before version 6.131, nothing is done. Works as a decorator.
    """
    name = "_get_local_constants"
    found = getattr(providers, name, None)
    if found is None:
        yield
        return
    from hypothesis.internal.constants_ast import Constants

    none = Constants()
    setattr(providers, name, lambda: none)
    providers.CONSTANTS_CACHE.cache.clear()
    try:
        yield
    finally:
        setattr(providers, name, found)
        providers.CONSTANTS_CACHE.cache.clear()

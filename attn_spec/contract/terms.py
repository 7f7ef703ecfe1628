"""Name the terms of bounds: a witness strikes a name, a failure says how much of its bound each name makes up.

A bound is a sum and a product of roundings, counts of roundings, underflows and guards. Each has a name of its own, as
in ``term("the error of log", ...)``. While nothing is struck, the functions here return their argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import numpy as np

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class _Asked:
    """State of the questions about terms: which are struck, which were met."""

    #: Struck names, and how many of the roundings of each stay.
    struck: Mapping[str, int]
    #: The names of terms that are met, in order; None while nobody asks.
    met: dict[str, None] | None
    #: Key that keeps results of this question apart: names are met again where a result was known.
    key: Hashable


#: None while nothing is asked, so that a name costs next to nothing.
_asked: _Asked | None = None


def term(name: str, value: Value, without: Value | float = 0.0) -> Value:
    """Return a term that is added to a bound, or what stands in its place while its name is struck.

    A number stands for an array of it in the shape of ``value``.
    """
    if _asked is None:
        return value
    if _asked.met is not None and isinstance(without, float | tuple) and not without:
        _asked.met[name] = None
    return value if stands(name) else _instead(value, without)


def times(name: str, value: Value) -> Value:
    """Return a factor of a bound, or 1 while its name is struck."""
    return value if _asked is None or stands(name) else _instead(value, 1.0)


def guard(name: str, condition: Value, without: bool | np.ndarray) -> Value:
    """Return a condition on which a bound or a verdict depends, or ``without`` while its name is struck."""
    return condition if _asked is None or stands(name) else _instead(condition, without)


def count(name: str, roundings: int) -> int:
    """Return a number of roundings, or how many of them stay while the name is struck."""
    if _asked is None:
        return roundings
    if _asked.met is not None:
        _asked.met[name] = None
    return min(roundings, _asked.struck.get(name, roundings))


def stands(name: str) -> bool:
    """Return whether a name is not struck."""
    return _asked is None or _asked.struck.get(name) != 0


def standing(*items: tuple[str, Value]) -> tuple[Value, ...]:
    """Return the items whose names are not struck."""
    return tuple(item for name, item in items if stands(name))


def remembered(most: int) -> Callable[[Callable[Arguments, Value]], Callable[Arguments, Value]]:
    """Return a decorator that keeps the last results of a function, apart by what is struck."""

    def decorated(function: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
        known: Any = functools.lru_cache(maxsize=most)(lambda _, *arguments, **named: function(*arguments, **named))

        @functools.wraps(function)
        def looked_up(*arguments: Arguments.args, **named: Arguments.kwargs) -> Value:
            return known(state(), *arguments, **named)

        return looked_up

    return decorated


def _instead(value: Any, without: Any) -> Any:
    if not isinstance(value, np.ndarray) or not isinstance(without, int | float):
        return without
    is_index = value.dtype.kind == "i" and without in (0, 1)  # which a float can be none of
    return np.full(value.shape, without, dtype=value.dtype if is_index else None)


@contextmanager
def struck(*names: str, left: int = 0) -> Iterator[None]:
    """Evaluate bounds without some terms; ``left`` is how many roundings of each count stay."""
    with _asking(dict.fromkeys(names, left), None if _asked is None else _asked.met):
        yield


@contextmanager
def met() -> Iterator[dict[str, None]]:
    """Collect the names of terms that are added, and of counts, of the bounds that are evaluated meanwhile.

    They come in the order in which they are met first: what a term is made of before the term.
    """
    names: dict[str, None] = {}
    with _asking({}, names):
        yield names


@contextmanager
def _asking(names: Mapping[str, int], collected: dict[str, None] | None) -> Iterator[None]:
    global _asked  # noqa: PLW0603 -- a bound looks it up for each of its terms
    before = _asked
    struck_names = {**({} if before is None else before.struck), **names}
    _asked = _Asked(struck_names, collected, frozenset(struck_names.items()) if collected is None else object())
    try:
        yield
    finally:
        _asked = before


def state() -> Hashable:
    """Return what is asked, as a part of the key of a cache that holds what bounds said."""
    return None if _asked is None else _asked.key

"""Strikes on a bound: of a term by its name, of terms together, or of some of the roundings that a name counts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple

from attn_spec.contract.terms import struck


class Several(NamedTuple):
    """Terms that are struck together, or a count some of whose roundings stay."""

    names: tuple[str, ...]
    left: int = 0

    def __str__(self) -> str:
        """Return the names, and how many roundings stay."""
        return " and ".join(self.names) + (f", but {self.left}" if self.left else "")


#: A term by its name, or more than that.
Strike = str | Several


def both(*names: str) -> Several:
    """Strike terms together, of which each alone is not needed where both are."""
    return Several(names)


def but(left: int, name: str) -> Several:
    """Strike a count of roundings but for ``left`` of them."""
    return Several((name,), left)


def names_of(strike: Strike) -> tuple[str, ...]:
    """Return the names that a strike takes away."""
    return (strike,) if isinstance(strike, str) else strike.names


def without(strike: Strike) -> AbstractContextManager[None]:
    """Evaluate bounds without what is struck."""
    return struck(*names_of(strike), left=0 if isinstance(strike, str) else strike.left)

"""Turns: at which size, and with which option, a search draws problems now.

A search draws one problem in ``SHARE`` at a size, at one size after the other, whatever chance would draw. So the
profile ``ci`` sees each size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from attn_spec.search.sizes import SIZES, Size, is_of

#: One problem in SHARE is drawn at a size.
SHARE = 5
#: One property in RARE has turns of a size that is rare.
RARE = 4
#: The number of sizes that each search has a turn of, if it tries enough problems.
ORDINARY = sum(not size.rare for size in SIZES)


@dataclass(frozen=True)
class Turn:
    """One problem of a search: the size that it is drawn at, and a number, which chooses its option if it has one."""

    size: Size
    number: int


_turn: ContextVar[Turn | None] = ContextVar("_turn", default=None)
#: True once a problem of the turn has failed: then the search looks for smaller problems that fail too.
_smaller: ContextVar[bool] = ContextVar("_smaller", default=False)


def turns(examples: int, property_id: str) -> list[Turn]:
    """The turns of a search of so many problems, one in SHARE; ``property_id`` says which size is the first.

    A search of few problems has no turn of a size that is ``long``; three properties in four have none of one that is
    ``rare``.
    """
    first, count = zlib.crc32(property_id.encode()), examples // SHARE
    known = [size for place, size in enumerate(SIZES) if not size.rare or (first + place) % RARE == 0]
    if count < ORDINARY:
        known = [size for size in known if not size.long]
    return [Turn(known[(first + turn) % len(known)], first // len(known) + turn) for turn in range(count)]


@contextmanager
def drawn_in(turn: Turn | None) -> Iterator[None]:
    """Draw the problems of this turn inside the block; small ones for None."""
    tokens = _turn.set(turn), _smaller.set(False)
    try:
        yield
    finally:
        _turn.reset(tokens[0])
        _smaller.reset(tokens[1])


def size() -> Size | None:
    """The size that problems are drawn at now; None where small problems are drawn."""
    turn = _turn.get()
    return None if turn is None else turn.size


def option(possible: Sequence[str]) -> set[str]:
    """The one of these options that a problem of this turn has to use, as a set; empty where its size has none."""
    turn = _turn.get()
    if turn is None or not turn.size.options or not possible:
        return set()
    return {possible[turn.number % len(possible)]}


def take_smaller() -> None:
    """From now on draw problems smaller than the size of the turn too, to make a failing problem small."""
    _smaller.set(True)


def takes(lengths: Mapping[str, int], slowness: float) -> bool:
    """True unless a problem with these lengths of axes is smaller than this turn wants, for a kernel of a slowness."""
    turn = _turn.get()
    return turn is None or _smaller.get() or is_of(turn.size, lengths, slowness)

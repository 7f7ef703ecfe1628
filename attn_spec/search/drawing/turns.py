"""Turns: the size, and the option, at which a search draws problems now.

A search draws one problem in ``SHARE`` at a size, at each size in turn, independent of chance. The profile ``ci``
therefore covers each size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from attn_spec.search.drawing.sizes import SIZES, Size, is_of

#: One problem in SHARE is drawn at a size.
SHARE = 4
#: One property in RARE has turns of a rare size.
RARE = 4
#: Number of sizes of which each search has a turn, if it tries enough problems.
ORDINARY = sum(not size.rare for size in SIZES)
#: Recipes in a row without the size of a turn, after which the turn ends. Some properties fix a length that the size
#: asks for.
FRUITLESS = 200


class NoProblemOfSizeError(BaseException):
    """Leaves Hypothesis when no drawn problem has the size of the turn; a BaseException, so that it is no failure."""


@dataclass(frozen=True)
class Turn:
    """One problem of a search: the size at which it is drawn, and a number that chooses its option."""

    size: Size
    number: int


@dataclass
class _State:
    """State of the turn in which problems are drawn now."""

    #: True once a problem of the turn has failed: the search then looks for smaller failing problems.
    smaller: bool = False
    #: Number of recipes in a row that did not have the size.
    refused: int = 0


_turn: ContextVar[Turn | None] = ContextVar("_turn", default=None)
_state: ContextVar[_State | None] = ContextVar("_state", default=None)


def turns(examples: int, property_id: str) -> list[Turn]:
    """Return the turns of a search of ``examples`` problems, one in SHARE; the property's id chooses the first size.

    A search of few problems has no turn of a ``long`` size. Three properties in four have no turn of a given ``rare``
    size.
    """
    first, count = zlib.crc32(property_id.encode()), examples // SHARE
    known = [size for place, size in enumerate(SIZES) if not size.rare or (first + place) % RARE == 0]
    if count < ORDINARY:
        known = [size for size in known if not size.long]
    return [Turn(known[(first + turn) % len(known)], first // len(known) + turn) for turn in range(count)]


@contextmanager
def drawn_in(turn: Turn | None) -> Iterator[None]:
    """Draw the problems of this turn inside the block; None means small problems."""
    tokens = _turn.set(turn), _state.set(_State())
    try:
        yield
    finally:
        _turn.reset(tokens[0])
        _state.reset(tokens[1])


def size() -> Size | None:
    """Return the size at which problems are drawn now; None for small problems."""
    turn = _turn.get()
    return None if turn is None else turn.size


def option(possible: Sequence[str]) -> set[str]:
    """Return the set of the one option that a problem of this turn must use; empty if its size needs no option."""
    turn = _turn.get()
    if turn is None or not turn.size.options or not possible:
        return set()
    return {possible[turn.number % len(possible)]}


def take_smaller() -> None:
    """Allow problems smaller than the size of the turn from now on, to make a failing problem small."""
    if state := _state.get():
        state.smaller = True


def takes(lengths: Mapping[str, int], slowness: float) -> bool:
    """Return whether the turn allows a problem with these lengths of axes, for a kernel with this slowness.

    A problem of one key has the size of no turn: its weights are 1, whatever the kernel does with the scores. Raises
    :class:`NoProblemOfSizeError` after ``FRUITLESS`` problems in a row that the turn does not allow.
    """
    turn, state = _turn.get(), _state.get()
    if turn is None or state is None or state.smaller:
        return True
    if lengths["K"] > 1 and is_of(turn.size, lengths, slowness):
        state.refused = 0
        return True
    state.refused += 1
    if state.refused >= FRUITLESS:
        raise NoProblemOfSizeError
    return False

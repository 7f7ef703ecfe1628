"""Sizes at which kernels take other paths: long and thin problems, large groups, many batch entries, wide vectors.

A search draws a share of its problems at each size in turn, whatever chance would draw, so that the profile ``ci`` sees
each of them. Every strategy shrinks to the least number that still fails: keys beyond a path of 4,096 to 4,097.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attn_spec.kernels.subject import Subject

#: One problem in so many is of such a size.
SHARE = 8
#: As ``shapes.BUDGET``, of these problems, at float64 and else. Slow kernels have less of it, as of that. The balls of
#: float64 are dear for each element of an answer, of which long and thin problems have few.
BUDGET, BUDGET_FLOAT64 = 2**22, 2**24
#: As ``shapes.MOST_HEADS``, of these problems.
MOST_HEADS = 128
#: (D, Dv): the least first, which Hypothesis draws first of all; past powers of two by one, those of latent attention.
WIDTHS = ((1, 1), (257, 257), (320, 64), (384, 384), (512, 512), (576, 512))

#: Of their regimes those that show one lost key among many, and a query in the place of another.
REGIMES = ("normal", "normal+v_waves", "large", "integers")
#: What a problem of as many keys as queries must be past, of which a size has no more than the budget allows.
PAST_SQUARE = 128

#: Ingredients of a shape by name, see ``shapes.Ingredients``.
Numbers = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """One way to be large."""

    name: str
    hunts: str
    #: Abilities that it uses of kernels that have them; others get what they can take.
    uses: tuple[str, ...] = ()
    #: Lengths of axes, by letter, that a problem must be past to be of this size, where they need not be equal.
    past: dict[str, int]
    #: From the slowness of a kernel to the ingredients that it names; all others are drawn as for small problems.
    numbers: Callable[[float], SearchStrategy[Numbers]]


def large(most: int, slowness: float = 1.0) -> SearchStrategy[int]:
    """Numbers from 1 that are seldom small: the largest of four, each as likely as any other."""
    return st.tuples(*4 * [st.integers(1, max(int(most / slowness), 1))]).map(max)


def _thin(**numbers: SearchStrategy[Any]) -> SearchStrategy[Numbers]:
    """One batch entry, few heads, narrow vectors and short lengths, but for these numbers."""
    plain = {
        "equal": st.just((1, 1)),
        "grouped": st.just((2, 1)),
        "batch": st.just(1),
        "keys": st.integers(1, 24),
        "others": st.integers(1, 24),
        "head_dim": st.sampled_from((1, 2, 3, 8)),
        "value_dim": st.sampled_from((1, 2, 8)),
    }
    return st.fixed_dictionaries({**plain, **numbers})


def _many(queries: SearchStrategy[int], keys: SearchStrategy[int]) -> SearchStrategy[Numbers]:
    return _thin(others=queries, keys=keys)


def _of_heads(slowness: float) -> SearchStrategy[Numbers]:
    def numbers(found: tuple[int, int]) -> Numbers:
        heads, kv_heads = found
        return {"equal": (heads, heads), "grouped": (max(heads // kv_heads, 2) * kv_heads, kv_heads)}

    pairs = st.tuples(large(64, slowness), st.sampled_from((1, 2, 8) if slowness == 1 else (1,)))
    return st.builds(lambda thin, of_heads: thin | of_heads, _thin(), pairs.map(numbers))


def _of_widths(_: float) -> SearchStrategy[Numbers]:
    widths = large(len(WIDTHS)).map(lambda place: dict(zip(("head_dim", "value_dim"), WIDTHS[place - 1], strict=True)))
    return st.builds(lambda thin, of_widths: thin | of_widths, _thin(), widths)


SIZES = (
    Size(name="keys", uses=("cross",), past={"K": 2**13},
         numbers=lambda slow: _many(st.integers(1, 3), large(2**14, slow)),
         hunts="a split path, a workspace or a tail that only many keys reach"),
    Size(name="heads", uses=("gqa",), past={"H": 16},
         numbers=_of_heads,
         hunts="more query heads to one kv head than a tile of packed queries holds"),
    Size(name="widths", uses=("dv",), past={"D": 256},
         numbers=_of_widths,
         hunts="columns past the widest tile, the value dimension taken for the head dimension"),
    Size(name="queries", uses=("cross",), past={"Q": 2**10},
         numbers=lambda slow: _many(large(2**12, slow), large(4)),
         hunts="a second row of query tiles, a count of tiles rounded down"),
    Size(name="entries", past={"B": 9},
         numbers=lambda slow: _thin(batch=large(64, slow)),
         hunts="batch entries past a launch, an index of entries and heads taken apart wrongly"),
    Size(name="most keys", uses=("cross",), past={"K": 2**14},
         numbers=lambda slow: _many(st.just(1), large(2**16, slow)),
         hunts="an index of 16 bits, sums and counts that are too narrow for 65,536 keys"),
    Size(name="most queries", uses=("cross",), past={"Q": 2**13},
         numbers=lambda slow: _many(large(2**16, slow), large(2)),
         hunts="an index of 16 bits with a sign, a grid of many blocks"),
)  # fmt: skip

_asked: ContextVar[Size | None] = ContextVar("_asked", default=None)


def asked() -> Size | None:
    """The size that problems are drawn at now; None is a small one."""
    return _asked.get()


@contextmanager
def drawn_at(size: Size | None) -> Iterator[None]:
    """Draw problems at this size inside the block."""
    token = _asked.set(size)
    try:
        yield
    finally:
        _asked.reset(token)


def turns(examples: int, claim: str) -> list[Size]:
    """The sizes of one problem in SHARE, in turn, beginning where the name of the claim says.

    A search of few problems leaves the longest out.
    """
    first, count = zlib.crc32(claim.encode()), examples // SHARE
    known = SIZES if count >= len(SIZES) else SIZES[:-2]
    return [known[(first + turn) % len(known)] for turn in range(count)]


def is_of(size: Size, lengths: Mapping[str, int], slowness: float) -> bool:
    """Whether a problem of these lengths is as large as this size is meant to be, for a kernel so slow."""
    is_long = {"Q", "K"} & set(size.past)
    if is_long and lengths["Q"] == lengths["K"]:
        return lengths["K"] > PAST_SQUARE / slowness
    return any(lengths[axis] > most / (slowness if axis in "QKHB" else 1) for axis, most in size.past.items())


def used(size: Size, subject: Subject, excluded: Collection[str]) -> set[str]:
    """The abilities that problems of this size use, of a kernel that has them, for a claim that allows them."""
    return {name for name in size.uses if subject.supports(name) and name not in excluded}


@cache
def numbers(size: Size, slowness: float, *, any_width: bool) -> SearchStrategy[Numbers]:
    """The ingredients that a size names, for a kernel that takes any width, or a few that it declares."""
    found = size.numbers(slowness)
    widths = ("head_dim", "value_dim")
    return found if any_width else found.map(lambda made: {n: x for n, x in made.items() if n not in widths})

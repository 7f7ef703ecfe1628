"""Sizes at which kernels take other paths: long and thin problems, large groups, many batch entries, wide vectors.

A search draws a share of its problems at each size in turn, whatever chance would draw, so that the profile ``ci`` sees
each of them; some sizes use one option in turn too, of those that the kernel has. Every strategy shrinks to the least
number that still fails: keys beyond a path of 4,096 to 4,097.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
SHARE = 5
#: A rare size has its turn for one claim in so many.
RARE = 4
#: As ``shapes.BUDGET``, of these problems, at float64 and else. Slow kernels have less of it, as of that. The balls of
#: float64 are dear for each element of an answer, of which long and thin problems have few.
BUDGET, BUDGET_FLOAT64 = 2**22, 2**24
#: As ``shapes.MOST_HEADS``, of these problems but those of a grid.
MOST_HEADS = 128
#: Keys in a page of a cache.
PAGES = (8, 16, 24, 32, 48, 64, 96, 128, 256)
#: Widths past a tile of 128 columns, by enough that what is lost of many keys shows in one of them; and the least.
WIDE = (1, 160, 192, 256)
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
    #: Lengths of axes, by letter, that a problem must be past to be of this size, where they need not be equal; one of
    #: them, or all. "BH" is the product of batch entries and heads.
    past: dict[str, int]
    all_of_them: bool = False
    #: Whether each turn uses another option of the kernel's.
    options: bool = False
    #: Whether a search of few problems leaves it out; whether that of most claims does, since it takes seconds.
    long: bool = False
    rare: bool = False
    #: Largest B * Hq with B > 1, times the slowness of a kernel.
    most_heads: int = MOST_HEADS
    #: How many times the budget of the other sizes it has.
    times: int = 1
    #: From the slowness of a kernel to the ingredients that it names; all others are drawn as for small problems.
    numbers: Callable[[float], SearchStrategy[Numbers]]


def large(most: int, slowness: float = 1.0, draws: int = 4) -> SearchStrategy[int]:
    """Numbers from 1 that are seldom small: the largest of four, or so, each as likely as any other."""
    return st.tuples(*draws * [st.integers(1, max(int(most / slowness), 1))]).map(max)


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
        group, kv_heads = found
        return {"equal": (group, group), "grouped": (max(group, 2) * kv_heads, kv_heads)}

    pairs = st.tuples(large(64, slowness), st.sampled_from((1, 1, 2) if slowness == 1 else (1,)))
    return st.builds(lambda thin, of_heads: thin | of_heads, _thin(), pairs.map(numbers))


def _of_widths(_: float) -> SearchStrategy[Numbers]:
    widths = large(len(WIDTHS)).map(lambda place: dict(zip(("head_dim", "value_dim"), WIDTHS[place - 1], strict=True)))
    return st.builds(lambda thin, of_widths: thin | of_widths, _thin(), widths)


def _of_pages(slowness: float) -> SearchStrategy[Numbers]:
    """Whole pages of keys, and one key more or less; an end that entries read by their own tables."""
    ends = st.tuples(st.sampled_from(PAGES), st.integers(1, 6), st.sampled_from((1, 0, -1)))
    keys = ends.map(lambda end: max(int(end[0] * end[1] / slowness) + end[2], 1))
    return _thin(batch=st.integers(2, 4), keys=keys, others=st.integers(1, 4))


def _of_drafts(slowness: float) -> SearchStrategy[Numbers]:
    """A few queries for each of many heads."""
    heads = st.tuples(st.sampled_from((1, 1, 2)), large(16, slowness))
    drafts = heads.map(lambda pair: {"equal": (pair[1], pair[1]), "grouped": (pair[0] * max(pair[1], 2), pair[0])})
    return st.builds(lambda thin, of_drafts: thin | of_drafts, _thin(others=st.integers(1, 8)), drafts)


def _of_grids(most: int) -> Callable[[float], SearchStrategy[Numbers]]:
    """Up to so many batch entries, of one or two heads, with next to nothing in each."""

    def numbers(slowness: float) -> SearchStrategy[Numbers]:
        few, dims = st.integers(1, 2), st.just(1)
        batch, equal = large(most, slowness, draws=2), st.sampled_from(((1, 1), (2, 2)))
        return _thin(batch=batch, equal=equal, keys=few, others=few, head_dim=dims, value_dim=dims)

    return numbers


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
         numbers=lambda slow: _many(large(3 * 2**11, slow), large(4)),
         hunts="a second row of query tiles, a count of tiles rounded down"),
    Size(name="entries", past={"B": 9},
         numbers=lambda slow: _thin(batch=large(64, slow)),
         hunts="batch entries past a launch, an index of entries and heads taken apart wrongly"),
    Size(name="split", uses=("cross",), past={"K": 2**10}, options=True,
         numbers=lambda slow: _thin(others=st.integers(1, 3), keys=large(5 * 2**10, slow),
                                    equal=st.sampled_from(((1, 1), (2, 2), (2, 2))), grouped=st.just((4, 2))),
         hunts="an option that a second split of the keys counts, hides or reads from its own beginning"),
    Size(name="pages", uses=("cross",), past={"B": 1}, options=True,
         numbers=_of_pages,
         hunts="a last page of one key, or of all but one, in one batch entry"),
    Size(name="drafts", uses=("cross", "gqa"), past={"H": 3},
         numbers=_of_drafts,
         hunts="queries and heads of a group packed into the rows of one tile, and taken apart wrongly"),
    Size(name="grid", past={"BH": 2**8}, most_heads=2**11,
         numbers=_of_grids(2**9),
         hunts="entries times heads past the end of a grid or an index of 8 bits"),
    Size(name="wide keys", uses=("cross",), past={"K": 2**14, "D": 2**7}, all_of_them=True, times=2, rare=True,
         numbers=lambda slow: st.builds(
             lambda thin, dim: thin | {"head_dim": dim, "value_dim": dim},
             _thin(others=st.just(1), keys=large(3 * 2**13, slow, draws=2), grouped=st.just((1, 1))),
             st.sampled_from(WIDE)),
         hunts="columns past a tile together with keys past a split, which each alone are right"),
    Size(name="most keys", uses=("cross",), past={"K": 2**14}, long=True,
         numbers=lambda slow: _many(st.just(1), large(2**16, slow)),
         hunts="an index of 16 bits, sums and counts that are too narrow for 65,536 keys"),
    Size(name="most queries", uses=("cross",), past={"Q": 2**13}, long=True,
         numbers=lambda slow: _many(large(2**16, slow), large(2)),
         hunts="an index of 16 bits with a sign, a grid of many blocks"),
    Size(name="most entries", past={"BH": 2**16 - 1}, long=True, rare=True, most_heads=2**18,
         numbers=_of_grids(5 * 2**14),
         hunts="entries times heads past the 65,535 blocks that some axes of a grid have"),
)  # fmt: skip

#: Sizes that every search has turns of, if it tries enough problems.
ORDINARY = sum(not size.rare for size in SIZES)

_asked: ContextVar[Size | None] = ContextVar("_asked", default=None)
#: Whether smaller problems are drawn too, as a search does that makes one smaller.
_smaller: ContextVar[bool] = ContextVar("_smaller", default=False)
#: Which turn it is of those of all sizes and claims, to choose an option by.
_turn: ContextVar[int] = ContextVar("_turn", default=0)


def asked() -> Size | None:
    """The size that problems are drawn at now; None is a small one."""
    return _asked.get()


@contextmanager
def drawn_at(size: Size | None, turn: int = 0) -> Iterator[None]:
    """Draw problems at this size inside the block; of a size with options, with the one whose ``turn`` it is."""
    asked, numbered, smaller = _asked.set(size), _turn.set(turn), _smaller.set(False)
    try:
        yield
    finally:
        _asked.reset(asked)
        _turn.reset(numbered)
        _smaller.reset(smaller)


def take_smaller() -> None:
    """Draw problems below the size asked for too, from now on."""
    _smaller.set(True)


def takes(lengths: Mapping[str, int], slowness: float) -> bool:
    """Whether a problem of these lengths is wanted: one of the size asked for, or of any."""
    size = asked()
    return size is None or _smaller.get() or is_of(size, lengths, slowness)


def turns(examples: int, claim: str) -> list[tuple[Size, int]]:
    """The sizes of one problem in SHARE, in turn, beginning where the name of the claim says; each with its number.

    A search of few problems leaves the longest out, and that of most claims the rare ones.
    """
    first, count = zlib.crc32(claim.encode()), examples // SHARE
    known = [size for place, size in enumerate(SIZES) if not size.rare or (first + place) % RARE == 0]
    if count < ORDINARY:
        known = [size for size in known if not size.long]
    return [(known[(first + turn) % len(known)], first // len(known) + turn) for turn in range(count)]


def option_in_turn(possible: Sequence[str]) -> set[str]:
    """The option whose turn it is, of those that a problem of the size asked for may use; none of other sizes."""
    size = asked()
    return {possible[_turn.get() % len(possible)]} if size is not None and size.options and possible else set()


def is_of(size: Size, lengths: Mapping[str, int], slowness: float) -> bool:
    """Whether a problem of these lengths is as large as this size is meant to be, for a kernel so slow."""
    is_long = {"Q", "K"} & set(size.past)
    if is_long and lengths["Q"] == lengths["K"]:
        return lengths["K"] > PAST_SQUARE / slowness
    known = {**lengths, "BH": lengths["B"] * lengths["H"]}
    past = (known[axis] > most / (1 if axis == "D" else slowness) for axis, most in size.past.items())
    return all(past) if size.all_of_them else any(past)


def used(size: Size, subject: Subject, excluded: Collection[str]) -> set[str]:
    """The abilities that problems of this size use, of a kernel that has them, for a claim that allows them."""
    return {name for name in size.uses if subject.supports(name) and name not in excluded}


@cache
def numbers(size: Size, slowness: float, *, any_width: bool) -> SearchStrategy[Numbers]:
    """The ingredients that a size names, for a kernel that takes any width, or a few that it declares."""
    found = size.numbers(slowness)
    widths = ("head_dim", "value_dim")
    return found if any_width else found.map(lambda made: {n: x for n, x in made.items() if n not in widths})

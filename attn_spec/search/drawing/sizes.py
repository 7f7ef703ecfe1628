"""Sizes at which kernels take other paths: long and thin problems, large groups, many batch entries, wide vectors.

Some sizes are combined with one option of the kernel (``turns`` chooses it). Every strategy shrinks to the least number
that still fails: a failure past 4,096 keys shrinks to 4,097 keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attn_spec.kernels.limits import Limits
    from attn_spec.kernels.subject import Subject

#: Work budget of large problems (see ``shapes.BUDGET``), for float64 and for other dtypes, divided by the slowness of a
#: kernel. The balls of float64 are expensive per element of an answer, and long and thin problems have few elements.
BUDGET, BUDGET_FLOAT64 = 2**22, 2**24
#: Largest B * Hq, if B > 1, times the slowness of a kernel, in sizes that name no other limit.
MOST_HEADS = 128
#: Numbers of keys in a page of a cache.
PAGES = (8, 16, 24, 32, 48, 64, 96, 128, 256)
#: Widths past a tile of 128 columns, and the least. They are so wide that a loss of many keys shows in some column.
WIDE = (1, 160, 192, 256)
#: Pairs (D, Dv): the least first, which Hypothesis draws first; past powers of two by one; those of latent attention.
WIDTHS = ((1, 1), (257, 257), (320, 64), (384, 384), (512, 512), (576, 512))

#: Regimes of large problems, which show one lost key among many, and a query in the place of another.
REGIMES = ("normal", "normal+v_waves", "large", "integers")
#: Length past which a problem with as many keys as queries counts as large; much longer ones exceed the budget.
PAST_SQUARE = 128

#: Ingredients of a shape by name, see ``shapes.Ingredients``.
Numbers = dict[str, Any]
_DIMS: tuple[str, ...] = ("head_dim", "value_dim")


@dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """One way in which a problem is large."""

    name: str
    #: Defects that problems of this size bring to light.
    hunts: str
    #: Abilities that problems of this size use if the kernel has them.
    uses: tuple[str, ...] = ()
    #: Lengths of axes, by letter, that a problem of this size exceeds in one axis; "BH" is batch entries times heads.
    #: Square problems have another limit, see :func:`is_of`.
    past: dict[str, int]
    #: True if a problem must exceed all lengths in ``past``.
    all_of_them: bool = False
    #: True if each problem of this size uses an option of the kernel, another one at each turn.
    options: bool = False
    #: True if searches of few problems have no turn of this size, which takes long.
    long: bool = False
    #: True if only one property in ``turns.RARE`` has a turn of this size, since one problem takes seconds.
    rare: bool = False
    #: False if a search that draws layers alone has no turn of this size. Each projection of the keys of one, and its
    #: bound, takes longer than attention.
    of_layers: bool = True
    #: Largest B * Hq of a problem of this size, if B > 1, times the slowness of a kernel.
    most_heads: int = MOST_HEADS
    #: Budget of a problem of this size, as a multiple of BUDGET or BUDGET_FLOAT64.
    times: int = 1
    #: Function from the slowness of a kernel to the ingredients that the size sets; others are drawn as for small
    #: problems.
    numbers: Callable[[float], SearchStrategy[Numbers]]


def large(most: int, slowness: float = 1.0, draws: int = 4) -> SearchStrategy[int]:
    """Draw numbers from 1 to ``most`` / ``slowness`` that are seldom small: the largest of ``draws`` uniform ones."""
    return st.tuples(*draws * [st.integers(1, max(int(most / slowness), 1))]).map(max)


def _thin(**numbers: SearchStrategy[Any]) -> SearchStrategy[Numbers]:
    """Draw one batch entry, few heads, narrow vectors and short lengths, except for these numbers."""
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


def _thin_and(further: SearchStrategy[Numbers], **numbers: SearchStrategy[Any]) -> SearchStrategy[Numbers]:
    """Draw the numbers of :func:`_thin`, and ``further`` numbers that depend on one common draw."""
    return st.builds(lambda thin, drawn: thin | drawn, _thin(**numbers), further)


def _many(queries: SearchStrategy[int], keys: SearchStrategy[int]) -> SearchStrategy[Numbers]:
    return _thin(others=queries, keys=keys)


def _heads(group: int, kv_heads: int) -> Numbers:
    """Return equal heads, and ``kv_heads`` kv heads that each serve a group of query heads."""
    return {"equal": (group, group), "grouped": (max(group, 2) * kv_heads, kv_heads)}


def _of_heads(slowness: float) -> SearchStrategy[Numbers]:
    pairs = st.tuples(large(64, slowness), st.sampled_from((1, 1, 2) if slowness == 1 else (1,)))
    return _thin_and(pairs.map(lambda pair: _heads(*pair)))


def _of_groups(slowness: float) -> SearchStrategy[Numbers]:
    """Draw a few query heads for each of many kv heads: models have 8 kv heads and more."""
    groups, kv_heads = (st.integers(least, max(int(most / slowness), least)) for least, most in ((2, 4), (5, 16)))
    pairs = st.tuples(groups, kv_heads).map(lambda pair: (pair[0] * pair[1], pair[1]))
    return _thin_and(pairs.map(lambda pair: {"equal": (pair[0], pair[0]), "grouped": pair}))


def _of_widths(_: float) -> SearchStrategy[Numbers]:
    return _thin_and(large(len(WIDTHS)).map(lambda place: dict(zip(_DIMS, WIDTHS[place - 1], strict=True))))


def _of_pages(slowness: float) -> SearchStrategy[Numbers]:
    """Draw several batch entries whose keys fill whole pages, or one key more or less."""
    ends = st.tuples(st.sampled_from(PAGES), st.integers(1, 6), st.sampled_from((1, 0, -1)))
    keys = ends.map(lambda end: max(int(end[0] * end[1] / slowness) + end[2], 1))
    return _thin(batch=st.integers(2, 4), keys=keys, others=st.integers(1, 4))


def _of_drafts(slowness: float) -> SearchStrategy[Numbers]:
    """Draw a few queries for each of many heads."""
    pairs = st.tuples(st.sampled_from((1, 1, 2)), large(16, slowness))
    return _thin_and(pairs.map(lambda pair: _heads(pair[1], pair[0])), others=st.integers(1, 8))


def _of_wide_keys(slowness: float) -> SearchStrategy[Numbers]:
    """Draw one query and many keys, with vectors of more columns than a tile has."""
    widths = st.sampled_from(WIDE).map(lambda width: dict.fromkeys(_DIMS, width))
    keys = large(3 * 2**13, slowness, draws=2)
    return _thin_and(widths, others=st.just(1), keys=keys, grouped=st.just((1, 1)))


def _of_grids(most: int) -> Callable[[float], SearchStrategy[Numbers]]:
    """Return a function that draws up to ``most`` batch entries of one or two heads, each with few queries and one
    column.
    """

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
    Size(name="groups", uses=("gqa",), past={"H": 9},
         numbers=_of_groups,
         hunts="a kv head of many, taken for another one where several query heads share it"),
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
    Size(name="tiles", past={"Q": 2**6, "K": 2**6}, all_of_them=True, options=True,
         numbers=lambda slow: _many(large(320, slow), large(320, slow)),
         hunts="an option that says which tiles of keys a tile of queries reads, and leaves one out"),
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
         of_layers=False,
         numbers=_of_wide_keys,
         hunts="columns past a tile together with keys past a split, which each alone are right"),
    Size(name="most keys", uses=("cross",), past={"K": 2**14}, long=True,
         numbers=lambda slow: _many(st.just(1), large(2**16, slow)),
         hunts="an index of 16 bits, sums and counts that are too narrow for 65,536 keys"),
    Size(name="most queries", uses=("cross",), past={"Q": 2**13}, long=True,
         numbers=lambda slow: _many(large(2**16, slow), large(2)),
         hunts="an index of 16 bits with a sign, a grid of many blocks"),
    Size(name="most entries", past={"BH": 2**16 - 1}, long=True, rare=True, most_heads=2**18, times=4,
         numbers=_of_grids(5 * 2**14),
         hunts="entries times heads past the 65,535 blocks that some axes of a grid have"),
)  # fmt: skip


def is_of(size: Size, lengths: Mapping[str, int], slowness: float) -> bool:
    """Return whether a problem with these lengths of axes has the size, for a kernel with this slowness."""
    is_long = {"Q", "K"} & set(size.past)
    if is_long and lengths["Q"] == lengths["K"]:
        return lengths["K"] > PAST_SQUARE / slowness
    known = {**lengths, "BH": lengths["B"] * lengths["H"]}
    past = (known[axis] > most / (1 if axis == "D" else slowness) for axis, most in size.past.items())
    return all(past) if size.all_of_them else any(past)


def is_reached(size: Size, limits: Limits, slowness: float, *, cross: bool, layers: bool = False) -> bool:
    """Return whether a kernel with these limits takes problems of the size; ``cross``: queries and keys may differ in
    number; ``layers``: each problem is a layer.
    """
    if layers and not size.of_layers:
        return False
    if not cross and {"Q", "K"} & set(size.past):
        return min(limits.most("Q"), limits.most("K")) > PAST_SQUARE / slowness
    past = (axis == "D" or limits.most(axis) > most / slowness for axis, most in size.past.items())
    return all(past) if size.all_of_them else any(past)


def used(size: Size, subject: Subject, excluded: Collection[str]) -> set[str]:
    """Return the abilities that problems of this size use: the kernel has them, and the property allows them."""
    return {name for name in size.uses if subject.supports(name) and name not in excluded}


@cache
def numbers(size: Size, slowness: float, *, any_width: bool) -> SearchStrategy[Numbers]:
    """Return the ingredients that a size sets, without widths for a kernel that takes only a few."""
    found = size.numbers(slowness)
    return found if any_width else found.map(lambda made: {n: x for n, x in made.items() if n not in _DIMS})

"""Shapes of problems: lists that run from plain to wild, restricted by a kernel's limits and a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from attn_spec.problem.abilities import DESCALE_AXES
from attn_spec.problem.options import FACTORS, OPTIONS

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attn_spec.kernels.limits import Limits
    from attn_spec.kernels.subject import Subject
    from attn_spec.search.drawing.regimes import Recipe

#: Lengths around the edges of tiles of 16, 32, 64 and 128.
TILE_EDGES = (15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 127, 128, 129, 130)
#: Lengths past the tiles of one block, where loops over blocks, splits and wider indices begin.
LONG = (255, 256, 257, 511, 513, 1025)
#: Head dimensions: powers of two, and dimensions that kernels must pad.
HEAD_DIMS = (1, 2, 16, 64, 63, 65, 72, 80, 96, 104, 128, 192, 256)
#: Value dimensions: powers of two, and dimensions that kernels must pad.
VALUE_DIMS = (1, 8, 16, 40, 65, 96, 128, 256)
#: Pairs (Hq, Hkv) without groups; a slow kernel gets at least the first two.
EQUAL_HEADS = ((1, 1), (2, 2), (3, 3), (5, 5), (16, 16))
#: Pairs (Hq, Hkv) with groups; a slow kernel gets at least the first two. Heads of (2, 1) distinguish h // group from h
#: and from h // Hkv, heads of (4, 2) distinguish it from h % Hkv.
GROUPED_HEADS = ((2, 1), (4, 2), (8, 1), (6, 2), (28, 4))
#: Widths of the projections of a layer.
WIDTHS = (1, 2, 3, 8, 17, 64)
#: Largest B * Hq * Sq * Sk * (max(D, Dv) + 48), which is how the cost of the truth and its bound grows.
BUDGET = 2**20
#: Largest B * Hq with B > 1, times the slowness of a kernel. Interpreted and emulated kernels pay for each head of each
#: batch entry.
MOST_HEADS = 16
#: Least limit of B * Hq: every kernel gets two batch entries of two heads.
FEW_HEADS = 4
#: Number of batch entries that a kernel of a fixed number of query heads gets at least, whatever that number is.
FEW_ENTRIES = 3
#: Largest B * Hq with B > 1 of a kernel of a fixed number of query heads, times its slowness, up to which it gets as
#: many batch entries as a kernel with one head.
MOST_OF_ONE_NUMBER = 2**11
#: Largest Hq times the slowness of a kernel.
HEADS_BUDGET = 256
#: Largest B * Hq * Sq * Sk, with B * Hq > 1, of a kernel whose lengths must be multiples of large numbers. Judging
#: gradients takes about a hundred arrays of this size, which are 4 GB.
MOST_SCORES = 2**22


#: Lengths, one in nine of them long. In one list a length shrinks to any length before it.
_LENGTHS = st.sampled_from([*2 * (*range(1, 10), *TILE_EDGES), *LONG])
_PAST_A_TILE = st.sampled_from([length for length in TILE_EDGES if length > 32])


@cache
def ingredients(
    query_dims: tuple[int, ...] | None, value_dims: tuple[int, ...] | None, slowness: float, *, telling: bool = False
) -> dict[str, SearchStrategy[Any]]:
    """Return the strategies of :class:`Ingredients` for a kernel with these head dimensions and this slowness.

    If ``telling`` is True, the shapes go past a tile of keys, with several groups and batch entries.
    """
    equal, grouped = (
        [pair for place, pair in enumerate(pairs) if place < 2 or pair[0] * slowness <= HEADS_BUDGET]
        for pairs in (EQUAL_HEADS, GROUPED_HEADS)
    )
    plain = {
        "equal": st.sampled_from(equal),
        "grouped": st.sampled_from(grouped),
        "keys": _LENGTHS,
        "others": _LENGTHS,
        "empty": st.sampled_from(range(3)),
        "head_dim": st.sampled_from(sorted(query_dims or HEAD_DIMS)),
        "value_dim": st.sampled_from(value_dims or VALUE_DIMS),
        "batch": st.sampled_from((1, 1, 2, 3, 9)),
        "widths": st.tuples(*(st.sampled_from(dims or WIDTHS) for dims in (query_dims, value_dims, value_dims))),
    }
    if not telling:
        return plain
    several = {name: st.sampled_from(pairs[1:2]) for name, pairs in (("equal", equal), ("grouped", grouped))}
    dims = {
        "head_dim": st.sampled_from(query_dims or HEAD_DIMS[2:]),
        "value_dim": st.sampled_from(value_dims or VALUE_DIMS[2:]),
    }
    return plain | several | dims | {"keys": _PAST_A_TILE, "batch": st.just(2)}


@dataclass(frozen=True)
class Ingredients:
    """Numbers that shapes are made of; all are drawn, whether the options and abilities need them or not."""

    equal: tuple[int, int]
    grouped: tuple[int, int]
    keys: int
    others: int
    #: Lengths that are 0: the queries, the keys, or both, by number.
    empty: int
    head_dim: int
    value_dim: int
    batch: int
    #: Widths of the queries, of the values of a head, and of the output of a layer.
    widths: tuple[int, int, int]

    def shape(self, subject: Subject, chosen: frozenset[str], most_heads: int = MOST_HEADS) -> dict[str, int]:
        """Return the fields of a recipe's shape for these options and abilities.

        With several batch entries, B * Hq times the slowness is at most ``most_heads``.
        """
        limits = subject.kernel.limits
        drawn = self.grouped if "gqa" in chosen else self.equal
        heads, kv_heads = at_most_heads(limits.heads(drawn), limits.most("H"))
        keys = queries = self.keys
        if "cross" in chosen:
            queries = self.others if self.others != keys else keys + 1
        if "empty" in chosen:
            keys, queries = [(0, 0), (keys, 0), (0, queries)][self.empty if "cross" in chosen else 0]
        D, value_dim = self._dims(limits, chosen)
        few = FEW_HEADS
        if limits.query_heads is not None:
            few = FEW_ENTRIES * heads
            most_heads = max(most_heads, few, min(most_heads * heads, MOST_OF_ONE_NUMBER))
        is_small = self.batch * heads * subject.kernel.slowness <= most_heads
        batch = self.batch if is_small else max(min(self.batch, few // heads), 1)
        return {
            "batch": int(min(batch, limits.most("B"), limits.most("BH") / heads)),
            "query_heads": heads,
            "kv_heads": kv_heads,
            "query_length": queries,
            "key_length": keys,
            "head_dim": D,
            "value_dim": value_dim,
        }

    def _dims(self, limits: Limits, chosen: frozenset[str]) -> tuple[int, int]:
        """Return D and Dv for these options and abilities: a pair of the kernel's widths, or any pair if all are.

        The drawn dimensions come first. An option under which v is part of k excludes a Dv above D.
        """
        tied = any(OPTIONS[name].ties_values for name in chosen & set(OPTIONS))

        def fits(pair: tuple[int, int]) -> bool:
            return not (tied and pair[1] > pair[0])

        def is_meant(pair: tuple[int, int]) -> bool:
            return (pair[0] != pair[1]) == ("dv" in chosen)

        def strangeness(pair: tuple[int, int]) -> tuple[bool, bool]:
            return pair[0] != self.head_dim, pair[1] != self.value_dim

        # They are few of many pairs, and one of them comes first nearly always.
        beside = limits.value_dims_beside(self.head_dim)
        if own := [pair for dim in beside if fits(pair := (self.head_dim, dim)) and is_meant(pair)]:
            return min(own, key=strangeness)
        widths = limits.widths
        if widths is None:
            widths = tuple((self.head_dim, dim) for dim in (self.value_dim, *VALUE_DIMS, self.head_dim))
        able = list(filter(fits, widths)) or widths
        return min(list(filter(is_meant, able)) or able, key=strangeness)


def with_able_descales(recipe: Recipe, subject: Subject) -> Recipe:
    """Return the recipe with descales that have several numbers along such axes alone as the kernel takes them."""
    unable = "".join(axes for ability, axes in DESCALE_AXES.items() if not subject.supports(ability))
    found = {}
    for name in FACTORS if unable else ():
        if (value := getattr(recipe, name)) is not None:
            stem, _, letters = value.partition("@")
            found[name] = f"{stem}@{letters.translate(dict.fromkeys(map(ord, unable), '1'))}"
    return replace(recipe, **found) if found else recipe


def of_layer(recipe: Recipe, widths: tuple[int, int, int] | None, *, own_values: bool) -> Recipe:
    """Return the recipe of a layer with these widths; None means the most heads that share D evenly.

    Unless ``own_values`` is True, v is as wide as q.
    """
    D, heads = recipe.head_dim, recipe.query_heads
    if widths is None:
        heads = max(n for n in range(1, heads + 1) if D % n == 0)
        widths = D // heads, D // heads, D
    value_dim = recipe.value_dim if own_values else D
    names = ("score_width", "head_value_dim", "output_width")
    return replace(recipe, query_heads=heads, kv_heads=1, value_dim=value_dim, **dict(zip(names, widths, strict=True)))


def within_limits(recipe: Recipe, subject: Subject, budget: float) -> Recipe:
    """Return the recipe with lengths that the kernel takes, and with a cost within ``budget`` of an ordinary kernel."""
    budget, limits = budget / _slowness(subject), subject.kernel.limits
    least = limits.step("QK") ** 2
    same = recipe.key_length == recipe.query_length and limits.query_lengths is None and least <= MOST_SCORES
    square = same or not subject.supports("cross")
    recipe = of_few_heads(recipe, limits, least if square else limits.step("Q") * limits.step("K"))
    cost = recipe.batch * recipe.query_heads * (max(recipe.head_dim, recipe.value_dim) + 48)
    dear = budget / projections if (projections := _projections(recipe, subject)) else math.inf
    if square:
        step, most = limits.step("QK"), min(limits.most("Q"), limits.most("K"))
        both = -(-recipe.key_length // step) * step
        both = _at_most(both, min(max(min(math.sqrt(budget / cost), dear), step), most), step)
        return replace(recipe, key_length=both, query_length=both)
    step, rows = limits.step("K"), limits.step("Q")
    fit = budget / cost
    if rows > 1:
        fit = max(fit / rows, min(fit, MOST_SCORES / (recipe.batch * recipe.query_heads * rows)))
    most = min(max(min(fit, dear), step), limits.most("K"))
    keys = _at_most(-(-recipe.key_length // step) * step, most, step)
    queries = -(-recipe.query_length // rows) * rows
    fit = budget / (cost * max(keys, 1))
    if limits.keys_reach_queries:  # more queries than keys bring as many keys along
        fit = min(fit, max(keys, math.sqrt(budget / cost)))
    most = min(max(min(fit, dear), rows), limits.most("Q"))
    queries = _at_most(queries, most, rows)
    if limits.query_lengths is not None:
        queries = min(limits.query_lengths, key=lambda length: abs(length - queries))
    if limits.keys_reach_queries:
        keys = max(keys, -(-queries // step) * step)
    return replace(recipe, key_length=keys, query_length=queries)


def of_few_heads(recipe: Recipe, limits: Limits, least: int) -> Recipe:
    """Return the recipe with fewer heads and batch entries if the ``least`` scores of one head are too many for all.

    The number of heads stays that of a layer, and of a kernel that takes certain numbers alone.
    """
    most = max(MOST_SCORES // max(least, 1), 1)
    batch, pair = recipe.batch, (recipe.query_heads, recipe.kv_heads)
    if batch * pair[0] <= most:
        return recipe
    if recipe.query_projection is None and limits.query_heads is None and limits.kv_heads is None:
        pair = at_most_heads(pair, most)
    return replace(recipe, batch=max(min(batch, most // pair[0]), 1), query_heads=pair[0], kv_heads=pair[1])


def _projections(recipe: Recipe, subject: Subject) -> float:
    """Return the cost of the projections of one query or key in the unit of BUDGET; 0 without projections.

    Matrix products take no time in float64. Balls take a sixteenth of the unit for each product of two numbers.
    """
    if recipe.query_projection is None or subject.dtype != "float64":
        return 0.0
    width = max(recipe.score_width or 0, recipe.head_value_dim or 0)
    return recipe.batch * recipe.query_heads * max(recipe.head_dim, recipe.value_dim) * width / 16


def _slowness(subject: Subject) -> float:
    """Return the cost of a problem relative to an ordinary kernel; the truth for float64 needs balls, which are
    expensive.
    """
    return subject.kernel.slowness * (8 if subject.dtype == "float64" else 1)


def at_most_heads(pair: tuple[int, int], most: float) -> tuple[int, int]:
    """Return Hq and Hkv, with fewer kv heads and then smaller groups if there are more than ``most`` query heads."""
    heads, kv_heads = pair
    if heads <= most:
        return pair
    fewer = int(min(kv_heads, most))
    return fewer * int(min(heads // kv_heads, most // fewer)), fewer


def _at_most(length: int, most: float, step: int) -> int:
    return length if length <= most else int(most) // step * step

"""Hypothesis strategies of problems that a subject's kernel declares it can solve.

What is drawn is a recipe (shape, options, regime, seed), never a large array, so that an example costs about a
millisecond and shrinks to one batch entry, one head, one query, one key, one dimension, the plainest regime, seed 0.
Every list below therefore runs from plain to wild. Only tensors of a few entries are drawn entry by entry.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import hypothesis
import numpy as np
from hypothesis import event
from hypothesis import strategies as st

from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem import patterns
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS, Trait, named_by
from attn_spec.problem.problem import Problem
from attn_spec.search.regimes import SCORE_REGIMES, SHIFTS, VALUE_REGIMES, Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

    from attn_spec.kernels.subject import Subject

#: Lengths beside the edges of tiles of 16, 32, 64 and 128.
TILE_EDGES = (15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 127, 128, 129, 130)
#: Lengths past the tiles of one block, where loops over blocks, splits and wider indices begin.
LONG = (255, 256, 257, 511, 513, 1025)
#: Powers of two, and dimensions that kernels must pad.
HEAD_DIMS = (1, 2, 16, 64, 63, 65, 72, 80, 96, 104, 128, 256)
VALUE_DIMS = (1, 8, 16, 40, 65, 96, 128, 256)
#: (Hq, Hkv)
EQUAL_HEADS = ((1, 1), (2, 2), (3, 3), (5, 5), (16, 16))
GROUPED_HEADS = ((2, 1), (8, 1), (6, 2), (28, 4))
#: Largest B * Hq * Sq * Sk * (max(D, Dv) + 48), which is how the cost of the truth and its bound grows.
BUDGET = 2**20
#: Largest B * Hq with B > 1: interpreted and emulated kernels pay for each head of each batch entry.
MOST_HEADS = 16
#: Largest Hq times the slowness of a kernel.
HEADS_BUDGET = 256
#: Regimes that overflow no format, not even where keys are hidden.
TAME = ("normal", "integers", "ties", "large", "one_hot", "sink", "rising", "falling")
#: Bits of the floats that entries are drawn from, before rounding.
_WIDTHS: dict[str, Literal[16, 32, 64]] = {"float64": 64, "float32": 32, "bfloat16": 32, "float16": 16}
#: How often options and abilities are drawn, one beside the other; lengths of zero are rarer.
_WEIGHTS = {name: row.weight for name, row in {**OPTIONS, **ABILITIES}.items() if row.weight}


def often(plain: Any, wild: Sequence[Any], share: int = 3) -> SearchStrategy[Any]:
    """Draw ``plain``, or one time in ``share`` something wild."""
    return st.sampled_from([plain] * ((share - 1) * len(wild)) + list(wild))


def named(known: Iterable[str]) -> SearchStrategy[str]:
    """Draw the name of a mask or bias pattern with a broadcast."""
    return st.sampled_from(patterns.spread(known))


# Strategies are built once, since Hypothesis spends more time on a new strategy than on a draw.
_LENGTHS = often(st.sampled_from([*range(1, 10), *TILE_EDGES]), [st.sampled_from(LONG)], share=8).flatmap(
    lambda chosen: chosen
)
_REGIMES = st.tuples(st.sampled_from(SCORE_REGIMES), often("", [f"+{name}" for name in VALUE_REGIMES], share=2))
_SHIFTS = often(0.0, SHIFTS[1:])
_SEEDS = st.integers(0, 2**32 - 1)
#: Shares of the possible options and abilities that a problem uses; what benchmarks and users run most has none. One
#: number decides: of numbers for each option, Hypothesis would copy one over the others.
_SHARES = st.sampled_from((0.0, 0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.5, 0.6, 0.8))
_ONE_IN_SIXTEEN = st.sampled_from([False] * 15 + [True])
_VALUES = {name: st.sampled_from(row.draws) for name, row in OPTIONS.items()}


def problems(
    subject: Subject,
    *,
    needs: Collection[str] = (),
    without: Collection[str | Trait] = (),
    regimes: Sequence[str] | None = None,
    **fixed: Any,
) -> SearchStrategy[Problem]:
    """Draw problems the kernel declares it can solve.

    ``needs`` are options and abilities that every problem uses; ``without`` those that no problem uses but by need, by
    name or by a trait of their rows; ``regimes`` replaces all regimes and shifts; ``fixed`` are fields of
    :class:`Recipe`, each a value or a strategy.
    """
    recipe = recipes(subject, needs=needs, without=without, regimes=regimes, **fixed)
    if subject.kernel.signatures is not None:
        recipe = _of_few_signatures(recipe, subject.kernel.signatures)
    drawn = recipe.map(Recipe.problem)
    entrywise = not (needs or without or regimes or fixed) and _takes_any_shape(subject)
    return often(drawn, [tiny_problems(subject)], share=8).flatmap(lambda chosen: chosen) if entrywise else drawn


@st.composite
def recipes(
    draw: DrawFn,
    subject: Subject,
    *,
    needs: Collection[str] = (),
    without: Collection[str | Trait] = (),
    regimes: Sequence[str] | None = None,
    **fixed: Any,
) -> Recipe:
    """Draw the recipes behind :func:`problems`, which describes the arguments."""
    # Options come last: the number of draws that they take varies, and what Hypothesis replays after them is lost.
    drawn = _Draws(
        **{
            name: draw(strategy)
            for name, strategy in _of_shape(subject.kernel.head_dims, subject.kernel.slowness).items()
        }
    )
    regime = draw(st.sampled_from(regimes)) if regimes else "".join(draw(_REGIMES))
    shift, seed = 0.0 if regimes else draw(_SHIFTS), draw(_SEEDS)
    given = {name: draw(x) if isinstance(x, st.SearchStrategy) else x for name, x in fixed.items()}
    chosen = _options(draw, subject, needs, without)
    values = {name: draw(strategy) for name, strategy in _VALUES.items() if name in chosen}
    recipe = Recipe(
        dtype=subject.dtype,
        regime=regime,
        **drawn.shape(subject, chosen),
        **{"causal_alignment": subject.conventions.causal_alignment, **values},
        shift=shift,
        seed=seed,
    )
    if "dv" not in chosen:
        given.setdefault("value_dim", given.get("head_dim", recipe.head_dim))
    unlimited = "query_length" in fixed
    recipe = _legal_lengths(replace(recipe, **given), subject, budget=math.inf if unlimited else _budget(subject))
    event("dtype", recipe.dtype)
    event("regime", recipe.regime)
    return recipe


def _of_few_signatures(recipe: SearchStrategy[Recipe], count: int) -> SearchStrategy[Recipe]:
    """Recipes that agree with one of the first ``count`` drawn, all always the same, in all but values."""
    first: list[Recipe] = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=4 * count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType] -- its metaclass
    )
    @hypothesis.given(recipe)
    def collect(drawn: Recipe) -> None:
        if drawn.signature() not in {known.signature() for known in first}:
            first.append(drawn)

    collect()
    kept = sorted(first[:count], key=lambda drawn: drawn.query_length * drawn.key_length)
    return st.tuples(st.sampled_from(kept), recipe).map(lambda pair: pair[0].with_values_of(pair[1]))


@st.composite
def tiny_problems(draw: DrawFn, subject: Subject) -> Problem:
    """Draw problems of at most three queries, keys and dimensions, entry by entry."""
    queries, keys, D = (draw(st.integers(1, 3)) for _ in range(3))
    if not subject.supports("cross"):
        keys = queries
    entries = entry(subject.dtype)

    def tensor(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        return np.array(draw(st.lists(entries, min_size=size, max_size=size))).reshape(shape)

    event("dtype", subject.dtype)
    event("regime", "entry by entry")
    return Problem(
        q=tensor(1, 1, queries, D),
        k=tensor(1, 1, keys, D),
        v=tensor(1, 1, keys, D),
        dtype=subject.dtype,
        causal=subject.supports("causal") and draw(st.booleans()),
        causal_alignment=subject.conventions.causal_alignment,
    )


def entry(dtype: str) -> SearchStrategy[float]:
    """Draw finite numbers of a dtype: half of them within 8, half from the whole range."""
    numbers = [st.floats(-bound, bound, width=_WIDTHS[dtype]) for bound in (8.0, FORMATS[dtype].largest)]
    return st.one_of(numbers).map(lambda x: float(bits.nearest(np.array(x), dtype)))


def _options(
    draw: DrawFn, subject: Subject, needs: Collection[str], without: Collection[str | Trait]
) -> frozenset[str]:
    """Which declared options and abilities a problem uses: those it needs, and each other one with its own chance."""
    excluded = named_by(without)
    possible = [name for name in _WEIGHTS if subject.supports(name) and name not in {*needs, *excluded}]
    drawn = set(draw(_some(tuple(possible), round(draw(_SHARES) * len(possible)))))
    if "empty" not in excluded and subject.supports("empty") and draw(_ONE_IN_SIXTEEN):
        drawn.add("empty")
    chosen = set(needs)
    for name in [name for name in (*_WEIGHTS, "empty") if name in drawn - chosen]:
        if not any(name in pair and chosen & set(pair) for pair in subject.kernel.exclusive):
            chosen.add(name)
    return frozenset(chosen)


@cache
def _some(possible: tuple[str, ...], count: int) -> SearchStrategy[list[str]]:
    """So many of the options and abilities that are possible, in proportion to their chances."""
    weighted = [name for name in possible for _ in range(_WEIGHTS[name])]
    return st.lists(st.sampled_from(weighted), min_size=count, max_size=count, unique=True) if count else st.just([])


@cache
def _of_shape(head_dims: tuple[int, ...] | None, slowness: float) -> dict[str, SearchStrategy[Any]]:
    """What :class:`_Draws` holds, for a kernel that takes these head dimensions, so slowly."""
    equal, grouped = (
        [pair for pair in pairs if pair[0] * slowness <= HEADS_BUDGET] or pairs[:1]
        for pairs in (EQUAL_HEADS, GROUPED_HEADS)
    )
    return {
        "equal": st.sampled_from(equal),
        "grouped": st.sampled_from(grouped),
        "keys": _LENGTHS,
        "others": _LENGTHS,
        "empty": st.sampled_from(range(3)),
        "head_dim": st.sampled_from(sorted(head_dims or HEAD_DIMS)),
        "value_dim": st.sampled_from(head_dims or VALUE_DIMS),
        "batch": st.sampled_from((1, 1, 2, 3, 9)),
    }


@dataclass(frozen=True)
class _Draws:
    """What shapes are made of, drawn whether options and abilities need it or not."""

    equal: tuple[int, int]
    grouped: tuple[int, int]
    keys: int
    others: int
    #: Which lengths are 0: the queries, the keys, or both.
    empty: int
    head_dim: int
    value_dim: int
    batch: int

    def shape(self, subject: Subject, chosen: frozenset[str]) -> dict[str, int]:
        """The fields of a recipe's shape for these options and abilities."""
        heads, kv_heads = self.grouped if "gqa" in chosen else self.equal
        keys = queries = self.keys
        if "cross" in chosen:
            queries = self.others if self.others != keys else keys + 1
        if "empty" in chosen:
            keys, queries = [(0, 0), (keys, 0), (0, queries)][self.empty if "cross" in chosen else 0]
        D = self.head_dim
        values = [self.value_dim, *(subject.kernel.head_dims or VALUE_DIMS), D]
        is_small = self.batch * heads * subject.kernel.slowness <= MOST_HEADS
        return {
            "batch": self.batch if is_small else 1,
            "query_heads": heads,
            "kv_heads": kv_heads,
            "query_length": queries,
            "key_length": keys,
            "head_dim": D,
            "value_dim": next((dim for dim in values if dim != D), D) if "dv" in chosen else D,
        }


def _legal_lengths(recipe: Recipe, subject: Subject, budget: float) -> Recipe:
    """The recipe with lengths that are multiples of what the kernel takes and that keep the cost in budget."""
    cost = recipe.batch * recipe.query_heads * (max(recipe.head_dim, recipe.value_dim) + 48)
    step = subject.kernel.length_multiple
    keys, queries = (-(-length // step) * step for length in (recipe.key_length, recipe.query_length))
    keys = _at_most(keys, max(budget / cost, step), step)
    if subject.supports("cross") and keys != queries:
        most = max(budget / (cost * max(keys, 1)), step)
        return replace(recipe, key_length=keys, query_length=_at_most(queries, most, step))
    both = _at_most(keys, max(math.sqrt(budget / cost), step), step)
    return replace(recipe, key_length=both, query_length=both)


def _budget(subject: Subject) -> float:
    """The budget of one problem; the truth for float64 takes ball arithmetic, which is several times dearer."""
    return BUDGET / subject.kernel.slowness / (8 if subject.dtype == "float64" else 1)


def _at_most(length: int, most: float, step: int) -> int:
    return length if length <= most else int(most) // step * step


def _takes_any_shape(subject: Subject) -> bool:
    kernel = subject.kernel
    return kernel.head_dims is None and kernel.length_multiple == 1 and kernel.signatures is None

"""A few signatures (shapes with options) for kernels to which each costs seconds: the most telling of many drawn.

A signature shows traits of a kernel: a loop over keys past a tile, several groups of heads, an option that changes the
mask. The plainest signatures have no trait, and a kernel that is wrong for all others passes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.options.option import CHOICE, MASK
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

#: Least number of recipes from which signatures are chosen.
POOL = 128
#: Numbers of keys and of queries past which another tile begins.
EDGES = (1, 16, 32, 64, 128)
#: Head dimensions past which kernels take other tiles, or several for one head.
WIDTHS = (64, 128)


@dataclass(frozen=True)
class Signature:
    """A recipe, and the traits of a kernel that it shows."""

    recipe: Recipe
    #: Traits of the recipe's shape.
    shape: frozenset[str]
    #: Traits of the recipe's options, without those that every problem has.
    options: frozenset[str]

    @property
    def traits(self) -> frozenset[str]:
        """Traits that the signature shows by itself: those of its options, else those of its shape."""
        return self.options or self.shape

    def adds(self, told: frozenset[str]) -> tuple[int, ...]:
        """Return a sort key for what the signature adds to the traits ``told``: options count first, once any trait is
        told.
        """
        options = len(self.options - told) if told else 0
        return options, len(self.traits - told), len(self.shape), -self.scores

    @property
    def scores(self) -> int:
        """Number of scores, by which the cost grows."""
        return self.recipe.batch * self.recipe.query_heads * self.recipe.query_length * self.recipe.key_length


def few(
    recipes: SearchStrategy[Recipe],
    telling: SearchStrategy[Recipe],
    count: int,
    own: Collection[str],
    is_meant: Callable[[Recipe], bool] = lambda recipe: True,
) -> SearchStrategy[Recipe]:
    """Draw recipes that agree in shape and options with one of ``count`` fixed recipes.

    The fixed ones are chosen from ``telling``, among those that ``is_meant`` accepts if there are any. ``own`` are
    options that every recipe has.
    """
    drawn = list(_drawn(telling, max(POOL, 4 * count)))
    kept = sorted(_chosen(list(filter(is_meant, drawn)) or drawn, count, own), key=lambda one: one.scores)
    return st.tuples(st.sampled_from([one.recipe for one in kept]), recipes).map(
        lambda pair: pair[0].with_values_of(pair[1])
    )


def _drawn(recipes: SearchStrategy[Recipe], draws: int) -> Iterable[Recipe]:
    """Return one recipe for each drawn signature; every call returns the same ones."""
    found: dict[Recipe, None] = {}

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=draws,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType] -- its metaclass
    )
    @hypothesis.given(recipes)
    def collect(drawn: Recipe) -> None:
        found.setdefault(drawn.signature())

    collect()
    return found


def _chosen(drawn: Iterable[Recipe], count: int, own: Collection[str]) -> list[Signature]:
    """Return ``count`` signatures, each of which adds most to those before it: a shape first, then options."""
    left = [_signature(recipe, own) for recipe in drawn]
    kept: list[Signature] = []
    told: frozenset[str] = frozenset()
    while left and len(kept) < count:
        best = max(left, key=lambda one: one.adds(told))
        left.remove(best)
        kept.append(best)
        told |= best.traits
    return kept


def _signature(recipe: Recipe, own: Collection[str]) -> Signature:
    """Return the signature of a recipe, with its traits."""
    used = {name for name, row in OPTIONS.items() if row.is_used(getattr(recipe, name))}
    rows, keys = recipe.query_length, recipe.key_length
    if any(OPTIONS[name].sees for name in used):
        # The problem is made only for its mask.
        others = {name: row.off for name, row in OPTIONS.items() if row.sees is None and row.kind != CHOICE}
        problem = replace(recipe, head_dim=1, value_dim=1, **others).problem()
        rows, keys = (int(problem.visible.any(axis=axes).sum()) for axes in ((0, 1, 3), (0, 1, 2)))
        used -= {name for name in used if OPTIONS[name].kind == MASK and _hides_nothing(problem, name)}
    return Signature(recipe, frozenset(_of_shape(recipe, rows, keys)), frozenset(used - set(own)))


def _hides_nothing(problem: Problem, option: str) -> bool:
    """Return whether other options mask all the keys that this option masks."""
    return np.array_equal(problem.visible, problem.replace(**{option: OPTIONS[option].off}).visible)


def _of_shape(recipe: Recipe, rows: int, keys: int) -> Iterator[str]:
    """Yield the traits of a shape in which ``rows`` queries see a key, and ``keys`` keys are seen."""
    yield from (name for name, row in ABILITIES.items() if row.is_used(recipe))
    yield from (f"keys past {edge}" for edge in EDGES if keys > edge)
    yield from (f"queries past {edge}" for edge in EDGES if rows > edge)
    yield from (f"heads wider than {width}" for width in WIDTHS if max(recipe.head_dim, recipe.value_dim) > width)
    facts = {
        "entries": recipe.batch > 1,
        "heads": recipe.kv_heads > 1,
        "groups": 1 < recipe.kv_heads < recipe.query_heads,
        "a cut tile": bool(keys % EDGES[1]),
        "more keys than queries": recipe.key_length > recipe.query_length,
        "more queries than keys": recipe.query_length > recipe.key_length,
    }
    yield from (name for name, holds in facts.items() if holds)

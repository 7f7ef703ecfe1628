"""Few signatures, shapes with options, for kernels to which each costs seconds: of many drawn those that tell most.

What a signature tells of a kernel are traits: a loop over keys that goes past a tile, several groups of heads, an
option that changes what is seen. The plainest signatures have none, and a kernel that is wrong for all others passes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.option import CHOICE, MASK
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.search.regimes import Recipe

#: Recipes drawn, at least, to choose signatures from.
POOL = 128
#: Numbers of keys and of queries past which another tile begins.
EDGES = (1, 16, 32, 64, 128)


@dataclass(frozen=True)
class Signature:
    """A recipe, and the traits of a kernel that it shows."""

    recipe: Recipe
    #: Of its shape.
    shape: frozenset[str]
    #: Of its options, beside those that every problem has.
    options: frozenset[str]

    @property
    def traits(self) -> frozenset[str]:
        """The traits it shows at once: of options, or of a shape that no option may hide."""
        return self.options or self.shape

    def adds(self, told: frozenset[str]) -> tuple[int, ...]:
        """Count what it adds to traits already told, for comparison: options first, once there is anything told."""
        options = len(self.options - told) if told else 0
        return options, len(self.traits - told), len(self.shape), -self.scores

    @property
    def scores(self) -> int:
        """The number of its scores, by which its cost grows."""
        return self.recipe.batch * self.recipe.query_heads * self.recipe.query_length * self.recipe.key_length


def few(
    recipes: SearchStrategy[Recipe],
    telling: SearchStrategy[Recipe],
    count: int,
    own: Collection[str],
    is_meant: Callable[[Recipe], bool] = lambda recipe: True,
) -> SearchStrategy[Recipe]:
    """Recipes that agree with one of ``count``, all always the same, in all but values.

    These are chosen from ``telling``, of those that are meant if any are; ``own`` are options that every recipe has.
    """
    drawn = list(_drawn(telling, max(POOL, 4 * count)))
    kept = sorted(_chosen(list(filter(is_meant, drawn)) or drawn, count, own), key=lambda one: one.scores)
    return st.tuples(st.sampled_from([one.recipe for one in kept]), recipes).map(
        lambda pair: pair[0].with_values_of(pair[1])
    )


def _drawn(recipes: SearchStrategy[Recipe], draws: int) -> Iterable[Recipe]:
    """One recipe for each signature that is drawn, the same ones at every call."""
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
    """So many, each the one that tells most of what those before it do not: of a shape first, then of options."""
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
    """A recipe's signature and what it tells."""
    used = {name for name, row in OPTIONS.items() if row.is_used(getattr(recipe, name))}
    rows, keys = recipe.query_length, recipe.key_length
    if any(OPTIONS[name].sees for name in used):
        # No more is asked than what is seen.
        others = {name: row.off for name, row in OPTIONS.items() if row.sees is None and row.kind != CHOICE}
        problem = replace(recipe, head_dim=1, value_dim=1, **others).problem()
        rows, keys = (int(problem.visible.any(axis=axes).sum()) for axes in ((0, 1, 3), (0, 1, 2)))
        used -= {name for name in used if OPTIONS[name].kind == MASK and _hides_nothing(problem, name)}
    return Signature(recipe, frozenset(_of_shape(recipe, rows, keys)), frozenset(used - set(own)))


def _hides_nothing(problem: Problem, option: str) -> bool:
    """Whether other options hide all the keys that this one hides."""
    return np.array_equal(problem.visible, problem.replace(**{option: OPTIONS[option].off}).visible)


def _of_shape(recipe: Recipe, rows: int, keys: int) -> Iterator[str]:
    """Name the traits that a shape shows if so many rows see a key, and so many keys are seen."""
    yield from (name for name, row in ABILITIES.items() if row.is_used(recipe))
    yield from (f"keys past {edge}" for edge in EDGES if keys > edge)
    yield from (f"queries past {edge}" for edge in EDGES if rows > edge)
    facts = {
        "entries": recipe.batch > 1,
        "heads": recipe.kv_heads > 1,
        "groups": 1 < recipe.kv_heads < recipe.query_heads,
        "a cut tile": bool(keys % EDGES[1]),
        "more keys than queries": recipe.key_length > recipe.query_length,
        "more queries than keys": recipe.query_length > recipe.key_length,
    }
    yield from (name for name, holds in facts.items() if holds)

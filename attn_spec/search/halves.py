"""Smaller recipes than one whose call ends a kernel's process: each such call costs seconds, so few are made.

Lengths, widths and numbers of heads and batch entries are halved, together and alone. Hypothesis takes many more steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from attn_spec.problem.abilities import ABILITIES
from attn_spec.search.drawing.regimes import Recipe

#: Fields that are halved at once, the costliest first.
_FIELDS = (
    ("query_length", "key_length"),
    ("batch",),
    ("query_heads", "kv_heads"),
    ("head_dim", "value_dim"),
    ("query_length",),
    ("key_length",),
)


def halves(recipe: Recipe) -> Iterator[Recipe]:
    """Yield recipes with about half of something, which ask a kernel for no further ability.

    A number of 3 becomes 2, so that what needs two of something is not lost at once.
    """
    used = _abilities(recipe)
    for names in () if recipe.projects or recipe.states else _FIELDS:
        halved = {name: (n + 1) // 2 for name in names if (n := getattr(recipe, name))}
        if any(getattr(recipe, name) != n for name, n in halved.items()):
            smaller = replace(recipe, **halved)
            if smaller.query_heads % smaller.kv_heads == 0 and _abilities(smaller) <= used:
                yield smaller


def _abilities(recipe: Recipe) -> set[str]:
    return {name for name, row in ABILITIES.items() if row.is_used(recipe)}

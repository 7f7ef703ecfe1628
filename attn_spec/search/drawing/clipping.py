"""Clipping of drawn lengths of sequences to the limits of a kernel, so that no problem is drawn in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attn_spec.search.drawing.regimes import Recipe

#: Fields of a recipe that limit lengths of sequences, named as in ``kernels.limits``.
CLIPS = ("query_lengths", "keys_reach_queries", "least_keys", "equal_lengths")


def clipped(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options [B, 1, 1, 1] whose lengths of sequences are within the limits that the recipe names.

    Sequences get more keys or fewer queries, and less padding. Only if all lengths must be equal, a sequence may get
    fewer keys, and lengths of queries are added. What still is beyond the limits has no remedy in its shape.
    """
    found = dict(options)
    if all(getattr(recipe, name) == type(recipe).__dataclass_fields__[name].default for name in CLIPS):
        return found
    queries, ends, pads = (options[name] for name in ("seqused_q", "seqused_k", "leftpad_k"))
    n = np.array(recipe.query_length) if queries is None else queries
    if queries is not None and recipe.query_lengths is not None:
        n = _largest_of(recipe.query_lengths, n)
    e = np.array(recipe.key_length) if ends is None else ends
    if recipe.equal_lengths:
        n = e = np.minimum(n, e)
        found["seqused_q"] = found["seqused_k"] = n if queries is not None or ends is not None else None
        return found
    needed = n if recipe.keys_reach_queries and queries is None else 0
    needed = np.minimum(np.maximum(needed, recipe.least_keys), recipe.key_length)
    e = np.maximum(e, needed)
    f = np.minimum(0 if pads is None else pads, e - needed)
    if recipe.keys_reach_queries and queries is not None:
        n = np.minimum(n, np.maximum(e - f, 0))
        n = n if recipe.query_lengths is None else _largest_of(recipe.query_lengths, n)
    lengths = {"seqused_q": n, "seqused_k": e, "leftpad_k": f}
    return found | {name: x for name, x in lengths.items() if options[name] is not None}


def _largest_of(allowed: tuple[int, ...], lengths: np.ndarray) -> np.ndarray:
    """Return for each length the largest allowed number up to it, or 0 if there is none."""
    numbers = np.array(sorted({0, *allowed}))
    return numbers[np.searchsorted(numbers, lengths, side="right") - 1]

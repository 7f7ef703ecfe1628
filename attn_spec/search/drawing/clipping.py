"""Clipping of drawn lengths of sequences to the limits of a kernel, so that no problem is drawn in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Fields of a recipe that limit lengths of sequences, named as in ``kernels.limits``.
CLIPS = ("query_lengths", "keys_reach_queries", "least_keys", "equal_lengths")


def clipped(
    options: Mapping[str, Any],
    lengths: Mapping[str, int],
    *,
    query_lengths: tuple[int, ...] | None,
    keys_reach_queries: bool,
    least_keys: int,
    equal_lengths: bool,
) -> dict[str, Any]:
    """Return options [B, 1, 1, 1] whose lengths of sequences are within limits; ``lengths`` are those of axes.

    Sequences get more keys or fewer queries, and less padding. Only if all lengths must be equal, a sequence may get
    fewer keys, and lengths of queries are added. What still is beyond the limits has no remedy in its shape.
    """
    if query_lengths is None and not (keys_reach_queries or least_keys or equal_lengths):
        return dict(options)
    queries, ends, pads = (options[name] for name in ("seqused_q", "seqused_k", "leftpad_k"))
    n = np.array(lengths["Q"]) if queries is None else queries
    e = np.array(lengths["K"]) if ends is None else ends
    if equal_lengths:
        both = None if queries is None and ends is None else np.minimum(n, e)
        return {**options, "seqused_q": both, "seqused_k": both}
    if queries is not None and query_lengths is not None:
        n = _largest_of(query_lengths, n)
    needed = n if keys_reach_queries and queries is None else 0
    needed = np.minimum(np.maximum(needed, least_keys), lengths["K"])
    e = np.maximum(e, needed)
    f = np.minimum(0 if pads is None else pads, e - needed)
    if keys_reach_queries and queries is not None:
        n = np.minimum(n, np.maximum(e - f, 0))
        n = n if query_lengths is None else _largest_of(query_lengths, n)
    found = {"seqused_q": n, "seqused_k": e, "leftpad_k": f}
    return {**options, **{name: x for name, x in found.items() if options[name] is not None}}


def _largest_of(allowed: tuple[int, ...], lengths: np.ndarray) -> np.ndarray:
    """Return for each length the largest allowed number up to it, or 0 if there is none."""
    numbers = np.array(sorted({0, *allowed}))
    return numbers[np.searchsorted(numbers, lengths, side="right") - 1]

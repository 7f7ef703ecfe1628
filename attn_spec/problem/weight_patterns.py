"""Patterns of the weights of scores and of layers: matrices and vectors by name, see ``patterns``."""

from __future__ import annotations

import numpy as np

from attn_spec.problem.patterns import Pattern, Shape


def _permutation(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return random permutation matrices, one for each batch entry and head."""
    orders = rng.permuted(np.broadcast_to(np.arange(shape[3]), shape[:3]), axis=-1)
    return (orders[..., None] == np.arange(shape[3])).astype(float)


#: Patterns of the square matrices between q and k, from plain to wild.
WEIGHTS: dict[str, Pattern] = {
    "identity": lambda rng, shape: np.broadcast_to(np.eye(shape[3]), shape),
    "permutation": _permutation,
    "diagonal": lambda rng, shape: np.eye(shape[3]) * rng.standard_normal((*shape[:3], 1)),
    "normal": lambda rng, shape: rng.standard_normal(shape) / max(shape[3], 1) ** 0.5,
    "triangular": lambda rng, shape: np.tril(rng.standard_normal(shape)),
    "rank_one": lambda rng, shape: rng.standard_normal((*shape[:3], 1)) * rng.standard_normal(shape[3]),
}

#: Patterns of the matrices from q or k to the width of a score, from plain to wild.
LAYERS: dict[str, Pattern] = {
    "identity": lambda rng, shape: np.broadcast_to(np.eye(*shape[2:]), shape),
    "normal": lambda rng, shape: rng.standard_normal(shape) / max(shape[3], 1) ** 0.5,
    "saturating": lambda rng, shape: 8.0 * rng.standard_normal(shape),
    "zero": lambda rng, shape: np.zeros(shape),
}


def _slices(shape: Shape) -> np.ndarray:
    """Return projections in which head h selects part h of the inputs.

    With more rows than columns head h writes part h of the outputs instead.
    """
    _, heads, rows, columns = shape
    places, entries = np.arange(rows)[:, None], np.arange(columns)
    starts = np.arange(heads)[:, None, None] * min(rows, columns)
    taken = entries - places == starts if rows <= columns else places - entries == starts
    return np.broadcast_to(taken.astype(float), shape)


def plain_slices(width: int, columns: int) -> np.ndarray:
    """Return projections of two heads, or of one if the width is odd; each head selects its part of the inputs."""
    heads = 2 if width % 2 == 0 else 1
    return _slices((1, heads, width // heads, columns))


#: Patterns of the projections of a layer's heads, from plain to wild.
PROJECTIONS: dict[str, Pattern] = {
    "slices": lambda rng, shape: _slices(shape),
    "normal": LAYERS["normal"],
    "equal_heads": lambda rng, shape: np.broadcast_to(LAYERS["normal"](rng, (1, 1, *shape[2:])), shape),
    "one_head": lambda rng, shape: LAYERS["normal"](rng, shape) * (np.arange(shape[1]) == shape[1] // 2)[:, None, None],
    "large": lambda rng, shape: 4.0 * rng.standard_normal(shape),
    "rank_one": WEIGHTS["rank_one"],
    "zero": LAYERS["zero"],
}

#: Patterns of vectors as long as the width of a score, from plain to wild.
VECTORS: dict[str, Pattern] = {
    "one": lambda rng, shape: np.ones(shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "alternating": lambda rng, shape: np.broadcast_to((-1.0) ** np.arange(shape[3]), shape),
    "large": lambda rng, shape: 10.0 * rng.standard_normal(shape),
}

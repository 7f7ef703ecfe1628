"""Patterns of the options' tensors, by name.

A pattern may end in "@" and four letters that say along which axes it varies. ``"padding@B11K"`` has the shape [B, 1,
1, Sk]: each letter of B, H, Q, K keeps its axis, a 1 broadcasts it. Without a suffix a pattern is "@11QK", one matrix
for every batch entry and head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from attn_spec.problem import masks

#: Shape [B, Hq, Sq, Sk] of a tensor, or the shape with the axes of another option.
Shape = tuple[int, int, int, int]
#: Function (rng, shape) -> array of that shape, or broadcastable to it; the axes are batch, query head, query, key.
Pattern = Callable[[np.random.Generator, Shape], np.ndarray]
#: Function (rng, shape, most) -> integers from 0 to ``most``, the length of an axis, one for each batch entry.
LengthPattern = Callable[[np.random.Generator, Shape, int], np.ndarray]

#: Broadcasts that callers use and that kernels get wrong one by one, by the axes of the whole tensor.
BROADCASTS = {
    "BHQK": ("11QK", "BHQK", "B11K", "B1QK", "1HQK", "111K", "1HQ1", "1H1K", "BH1K", "BHQ1"),
    "BHDD": ("11DD", "1HDD", "BHDD"),
    "BH11": ("1111", "1H11", "BH11"),
    "BG11": ("1111", "1G11", "BG11"),
    "1111": ("1111",),
    "BGK1": ("1111", "1G11", "BGK1", "1GK1", "BG11", "11K1"),
    "1H11": ("1H11", "1111"),
    "BHAD": ("11AD", "1HAD", "BHAD"),
    "BH1A": ("111A", "1H1A", "BH1A"),
    "B111": ("B111",),
    "B1Q1": ("11Q1", "B1Q1"),
    "B11K": ("111K", "B11K"),
}
#: Lengths of masked prefixes: a whole first tile of several tile sizes, and one key more or less.
_TILES = np.array([1, 15, 16, 17, 32, 33, 64, 65, 128])


def _padding(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Mask the last keys: each batch entry has its own length, at least 1 and often a multiple of 16."""
    size = (*shape[:2], 1, 1)
    length = rng.integers(1, max(shape[3], 1) + 1, size=size)
    tiles = length // 16 * 16
    return np.arange(shape[3]) < np.where((tiles > 0) & (rng.random(size) < 0.4), tiles, length)


def _leading(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Mask the first keys, often whole tiles of them; the last key stays visible."""
    hidden = rng.choice(_TILES, size=(*shape[:2], 1, 1))
    return np.arange(shape[3]) >= np.minimum(hidden, shape[3] - 1)


def _empty_rows(place: Callable[[int], slice]) -> Pattern:
    """Return a pattern that masks random keys, and for the queries of the slice ``place`` all keys."""

    def pattern(rng: np.random.Generator, shape: Shape) -> np.ndarray:
        seen = rng.random(shape) < 0.7
        seen[:, :, place(shape[2])] = False
        return seen

    return pattern


def _documents(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return the mask of packed sequences; queries and keys are split at the same fractions of their lengths."""
    cuts = np.sort(rng.random(2))
    document = [np.searchsorted(cuts, (np.arange(n) + 0.5) / max(n, 1)) for n in shape[2:]]
    return np.broadcast_to(document[0][:, None] == document[1], shape)


def _interleaved_documents(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return the mask of three documents whose queries and keys are mixed, with padding of no document among them."""
    ids = rng.integers(3, size=(*shape[:2], max(shape[2:])))
    ids = np.where(rng.random(ids.shape) < 1 / 8, -1, ids)
    queries, keys = ids[..., : shape[2], None], ids[..., None, : shape[3]]
    return (queries == keys) & (keys >= 0)


#: Trees of n drafts by name, as the parent of each node, -1 for a root: (rng, n) -> integers [n]. In "siblings" each
#: node of a pair has the first of the pair before as its parent. In "deep_first" a second branch of the prefix follows
#: the first one. Both hide keys before the diagonal.
TREES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "chain": lambda rng, n: np.arange(n) - 1,
    "star": lambda rng, n: np.full(n, -1),
    "binary": lambda rng, n: (np.arange(n) + 1) // 2 - 1,
    "random": lambda rng, n: rng.integers(-1, np.arange(n)),
    "siblings": lambda rng, n: np.maximum(np.arange(n) // 2 * 2 - 2, -1),
    "deep_first": lambda rng, n: np.where(np.arange(n) == (n + 1) // 2, -1, np.arange(n) - 1),
}


def _drafts(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return the mask of a random tree of drafts for each batch entry and head; its nodes are the last keys."""
    rows, keys = shape[2:]
    trees = rng.choice(list(TREES), size=shape[:2])
    found = [[masks.drafts(TREES[name](rng, rows), keys - rows, keys) for name in of_entry] for of_entry in trees]
    return np.array(found, dtype=bool).reshape(shape)


def _strided(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return a strided mask with a random stride, one time in two with all keys nearer than the stride."""
    stride = int(rng.choice((2, 3, 4, 7, 16, 17)))
    mask = masks.strided(stride, stride if rng.random() < 0.5 else 1)
    return np.broadcast_to(mask.dense(*shape[2:]), shape)


#: Numbers of queries and keys in a block.
_BLOCKS = (2, 4, 8, 16, 32)


def _in_blocks(values: np.ndarray, size: int, shape: Shape) -> np.ndarray:
    """Return a tensor that repeats each value for ``size`` queries and keys; blocks are truncated at the edge."""
    return values.repeat(size, axis=2).repeat(size, axis=3)[:, :, : shape[2], : shape[3]]


def _number_of(size: int, shape: Shape) -> Shape:
    """Return the number of blocks along each axis of a tensor of this shape."""
    return (*shape[:2], -(-shape[2] // size), -(-shape[3] // size))


def _blocks(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return a mask of blocks of queries and keys, each visible or masked as a whole; 40 % are visible."""
    size = int(rng.choice(_BLOCKS))
    return _in_blocks(rng.random(_number_of(size, shape)) < 0.4, size, shape)


def _specks(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return a mask of blocks with one flipped element in each block, or none if that element is outside the matrix."""
    size = int(rng.choice(_BLOCKS))
    number = _number_of(size, shape)
    seen = rng.random(number) < 0.4
    seen, row, column = (_in_blocks(x, size, shape) for x in (seen, *rng.integers(size, size=(2, *number))))
    place = np.indices(shape[2:]) % size
    return seen ^ ((row == place[0]) & (column == place[1]))


def _one_key(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return a mask in which each query sees one random key."""
    return np.arange(shape[3]) == rng.integers(max(shape[3], 1), size=(*shape[:3], 1))


#: Patterns of visible keys as bool arrays, from plain to wild.
MASKS: dict[str, Pattern] = {
    "all": lambda rng, shape: np.ones(shape, dtype=bool),
    "padding": _padding,
    "random": lambda rng, shape: rng.random(shape) < 0.5,
    "checkerboard": lambda rng, shape: np.indices(shape)[2:].sum(axis=0) % 2 == 0,
    "documents": _documents,
    "interleaved_documents": _interleaved_documents,
    "drafts": _drafts,
    "one_key": _one_key,
    "leading_hidden": _leading,
    "strided": _strided,
    "blocks": _blocks,
    "specks": _specks,
    "empty_first_rows": _empty_rows(lambda n: slice(0, (n + 3) // 4)),
    "empty_middle_rows": _empty_rows(lambda n: slice(n // 2, n // 2 + (n + 3) // 4)),
    "empty_last_rows": _empty_rows(lambda n: slice(n - (n + 3) // 4, None)),
    "all_hidden": lambda rng, shape: np.zeros(shape, dtype=bool),
}

#: Patterns of weights that dropout keeps, as bool arrays, from plain to wild.
KEEPS: dict[str, Pattern] = {
    "all": MASKS["all"],
    "half": MASKS["random"],
    "most": lambda rng, shape: rng.random(shape) < 0.9,
    "few": lambda rng, shape: rng.random(shape) < 0.1,
    "one_key": _one_key,
    "checkerboard": MASKS["checkerboard"],
    "empty_last_rows": MASKS["empty_last_rows"],
    "none": MASKS["all_hidden"],
}


def _slopes(shape: Shape) -> np.ndarray:
    """Return 2**(-8 (h + 1) / Hq) for head h, the slopes of ALiBi (arXiv 2108.12409)."""
    return np.exp2(-8.0 * (np.arange(shape[1]) + 1) / shape[1])[:, None, None]


def _alibi(_: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return minus the slope of each head times the distance from the diagonal."""
    slope = _slopes(shape)
    distance = np.abs(np.arange(shape[2])[:, None] - np.arange(shape[3]))
    return np.broadcast_to(-slope * distance, shape)


def _with_holes(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))


def _leading_holes(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    return np.where(_leading(rng, shape), rng.standard_normal(shape), -np.inf)


#: Finite values that programs write in place of -inf. Each stays finite when divided by a scale and multiplied by
#: log2(e). Formats that cannot represent a value hold -inf.
_FILLS = (-1e4, -1e9, -1e30, -1e37)


def _finite_fill(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return one of ``_FILLS`` at random keys, and at all keys of about a quarter of the queries; 0 elsewhere."""
    filled = (rng.random(shape) < 0.5) | (rng.random((*shape[:3], 1)) < 0.25)
    return np.where(filled, rng.choice(_FILLS), 0.0)


#: Patterns of biases added to the scores, from plain to wild; -inf masks a key.
BIASES: dict[str, Pattern] = {
    "zero": lambda rng, shape: np.zeros(shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "row_constant": lambda rng, shape: np.broadcast_to(20.0 * rng.standard_normal((*shape[:3], 1)), shape),
    "alibi": _alibi,
    "large": lambda rng, shape: 100.0 * rng.standard_normal(shape),
    "finite_fill": _finite_fill,
    "minus_inf": _with_holes,
    "leading_minus_inf": _leading_holes,
    "all_minus_inf": lambda rng, shape: np.full(shape, -np.inf),
}


#: Patterns of slopes of a term that falls with the distance, from plain to wild.
SLOPES: dict[str, Pattern] = {
    "one": lambda rng, shape: np.ones(shape),
    "geometric": lambda rng, shape: np.broadcast_to(_slopes(shape), shape),
    "random": lambda rng, shape: rng.random(shape),
    "steep": lambda rng, shape: 8.0 * rng.random(shape),
    "steepest": lambda rng, shape: 32.0 * (1 + rng.random(shape)),
    "slight": lambda rng, shape: 2.0**-12 * rng.random(shape),
    "zero": lambda rng, shape: np.zeros(shape),
}

#: Patterns of factors on a cosine, from plain to wild.
GAMMAS: dict[str, Pattern] = {
    "one": lambda rng, shape: np.ones(shape),
    "ten": lambda rng, shape: np.full(shape, 10.0),
    "positive": lambda rng, shape: np.exp(rng.standard_normal(shape)),
    "normal": lambda rng, shape: 10.0 * rng.standard_normal(shape),
    "large": lambda rng, shape: 100.0 * (1 + rng.random(shape)) * rng.choice((-1.0, 1.0), shape),
    "tiny": lambda rng, shape: 2.0**-12 * rng.standard_normal(shape),
    "zero": lambda rng, shape: np.zeros(shape),
}


def _some_absent(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return sinks of which about half are -inf, which is no sink; the first head has none."""
    absent = (rng.random(shape) < 0.5) | (np.arange(shape[1])[:, None, None] == 0)
    return np.where(absent, -np.inf, rng.standard_normal(shape))


#: Patterns of attention sinks, from plain to wild. A sink of 100 overflows float32 unless it is part of the maximum.
SINKS: dict[str, Pattern] = {
    "zero": lambda rng, shape: np.zeros(shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "spread": lambda rng, shape: 4.0 * rng.standard_normal(shape),
    "high": lambda rng, shape: 20.0 + rng.standard_normal(shape),
    "low": lambda rng, shape: -40.0 + rng.standard_normal(shape),
    "some_absent": _some_absent,
    "absent": lambda rng, shape: np.full(shape, -np.inf),
    "beyond": lambda rng, shape: np.full(shape, 100.0),
}


def _ordinary(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return a largest number over 448, the largest of float8_e4m3fn, as quantizers of tensors make descales."""
    return (1 + 4 * rng.random(shape)) / 448


def _of_blocks(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return descales of blocks of keys, each repeated for the keys of its block; blocks are truncated at the end."""
    size = int(rng.choice(_BLOCKS))
    of_blocks = (1 + rng.random((*shape[:2], -(-shape[2] // size), shape[3]))) / 4
    return of_blocks.repeat(size, axis=2)[:, :, : shape[2]]


def _one_huge(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return descales of 1/2 up to 1, but 64 for one kv head or key, and 1/64 for another."""
    found = (0.5 + 0.5 * rng.random(shape)).reshape(-1)
    for factor, at in zip((64.0, 2.0**-6), rng.permutation(found.size)[:2], strict=False):
        found[at] = factor * found[at]
    return found.reshape(shape)


#: Patterns of descales, from plain to wild.
DESCALES: dict[str, Pattern] = {
    "one": lambda rng, shape: np.ones(shape),
    "half": lambda rng, shape: np.full(shape, 0.5),
    "power_of_two": lambda rng, shape: np.exp2(rng.integers(-6, 3, size=shape)),
    "near_one": lambda rng, shape: 0.5 + rng.random(shape),
    "ordinary": _ordinary,
    "blocks": _of_blocks,
    "spread": lambda rng, shape: np.exp2(12 * rng.random(shape) - 6),
    "one_huge": _one_huge,
    "tiny": lambda rng, shape: 2.0**-20 * (1 + rng.random(shape)),
}


def _single(pattern: Pattern) -> Pattern:
    """Return a pattern whose numbers are those of float32."""
    return lambda rng, shape: pattern(rng, shape).astype(np.float32).astype(np.float64)


#: Patterns of scales of an output, which float32 has, from plain to wild. Below "small", outputs near 1 exceed
#: float8_e4m3fn.
OUTPUT_SCALES: dict[str, Pattern] = {
    **{name: _single(DESCALES[name]) for name in ("one", "half", "near_one", "ordinary")},
    "power_of_two": lambda rng, shape: np.exp2(rng.integers(-8, 4, size=shape)),
    "small": _single(lambda rng, shape: 2.0**-9 * (1 + rng.random(shape))),
    "large": _single(lambda rng, shape: 16 * (1 + rng.random(shape))),
}


def _places(shape: Shape) -> np.ndarray:
    """Return 0, 1, .. along the last two axes, one of which has length 1."""
    return np.broadcast_to(np.arange(shape[2] * shape[3]).reshape(shape[2:]), shape)


def _first(rng: np.random.Generator, shape: Shape, most: int) -> np.ndarray:
    """Return a random integer from 0 to ``most``, inclusive, for each batch entry."""
    return rng.integers(most, size=(*shape[:2], 1, 1), endpoint=True)


def _restarted(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return positions of packed documents, which start again from 0 at random places."""
    place, starts = _places(shape), rng.random(shape) < rng.random() / 3
    axis = 2 if shape[3] == 1 else 3
    return place - np.maximum.accumulate(np.where(starts, place, 0), axis=axis)


def _tree(rng: np.random.Generator, shape: Shape) -> np.ndarray:
    """Return positions in a tree of drafts: the next row has the same position or the next one."""
    return np.cumsum(rng.random(shape) < 0.5, axis=2 if shape[3] == 1 else 3)


def _last_shorter(rng: np.random.Generator, shape: Shape, most: int) -> np.ndarray:  # noqa: ARG001 - a LengthPattern
    """Return whole lengths, but half of one for the last batch entry."""
    entry = np.arange(shape[0]).reshape(-1, 1, 1, 1)
    return np.where(entry == shape[0] - 1, most // 2, most)


def _at_edges(rng: np.random.Generator, shape: Shape, most: int) -> np.ndarray:
    """Return multiples of 16, or one more or less."""
    edges = 16 * rng.integers(0, most // 16, size=shape, endpoint=True) + rng.integers(-1, 2, size=shape)
    return np.clip(edges, 0, most)


def _but_one(rng: np.random.Generator, shape: Shape, most: int) -> np.ndarray:
    """Return whole lengths, but a shorter one for one random batch entry."""
    lengths = np.full(shape, most)
    if lengths.size:
        lengths.flat[rng.integers(lengths.size)] = rng.integers(0, max(most, 1))
    return lengths


def _some_empty(rng: np.random.Generator, shape: Shape, most: int) -> np.ndarray:
    """Return random lengths, about half of which are 0."""
    return np.where(rng.random(shape) < 0.4, 0, rng.integers(0, most, size=shape, endpoint=True))


#: Patterns of lengths of sequences, from plain to wild.
LENGTHS: dict[str, LengthPattern] = {
    "full": lambda rng, shape, most: np.full(shape, most),
    "one_less": lambda rng, shape, most: np.full(shape, max(most - 1, 0)),
    "last_shorter": _last_shorter,
    "ragged": lambda rng, shape, most: rng.integers(min(most, 1), most, size=shape, endpoint=True),
    "edges": _at_edges,
    "but_one": _but_one,
    "some_empty": _some_empty,
    "one_each": lambda rng, shape, most: np.full(shape, min(most, 1)),
    "none": lambda rng, shape, most: np.zeros(shape),
}

#: Patterns of padding on the left of sequences, from plain to wild; "to_the_end" leaves no key.
PADS: dict[str, LengthPattern] = {
    "zero": lambda rng, shape, most: np.zeros(shape),
    "one": lambda rng, shape, most: np.full(shape, min(most, 1)),
    "ragged": lambda rng, shape, most: rng.integers(0, max(most, 1), size=shape),
    "edges": _at_edges,
    "to_the_end": lambda rng, shape, most: np.where(rng.random(shape) < 0.5, most, 0),
}

#: Largest position: float32 represents every integer up to it.
FARTHEST = 2**24

#: Patterns of the positions of rows, from plain to wild.
POSITIONS: dict[str, Pattern] = {
    "counted": lambda rng, shape: _places(shape),
    "shifted": lambda rng, shape: _places(shape) + _first(rng, shape, 4096),
    "left_padded": lambda rng, shape: np.maximum(_places(shape) - _first(rng, shape, max(shape[2:])), 0),
    "documents": _restarted,
    "tree": _tree,
    "strided": lambda rng, shape: _places(shape) * rng.integers(2, 17),
    "equal": lambda rng, shape: np.broadcast_to(_first(rng, shape, 300), shape),
    "shuffled": lambda rng, shape: rng.permuted(_places(shape), axis=2 if shape[3] == 1 else 3),
    "far": lambda rng, shape: _places(shape) + _first(rng, shape, 2**20),
}


def _listed(known: Mapping[str, Any], stem: str) -> LengthPattern | None:
    """Return the pattern of a list of numbers, one of each batch entry, as "1:4096:17"; None for another name.

    A list is a pattern of lengths and of padding only.
    """
    found = stem.split(":")
    if known not in (LENGTHS, PADS) or not all(number.isdecimal() for number in found):
        return None
    return lambda rng, shape, most: np.array([int(number) for number in found]).reshape(shape)


def is_known(name: str, patterns: Mapping[str, Any], axes: str = "BHQK") -> bool:
    """Return whether ``name`` is a pattern with a valid broadcast of these axes, or with none.

    Lengths of sequences may also be a list of numbers, as in "1:4096:17@B111".
    """
    stem, at, letters = name.partition("@")
    valid = len(letters) == 4 and all(letter in "1" + axis for letter, axis in zip(letters, axes, strict=True))
    return (stem in patterns or _listed(patterns, stem) is not None) and (valid or not at)


def spread(known: Iterable[str], axes: str = "BHQK") -> tuple[str, ...]:
    """Return the names of the patterns with every broadcast of a tensor with these axes."""
    return tuple(f"{name}@{kept}" for name in known for kept in BROADCASTS[axes])


def made(known: Mapping[str, Any], name: str, rng: np.random.Generator, shape: Shape, *most: int) -> np.ndarray:
    """Return the named pattern as a tensor, not rounded; axes of length 1 are those that the name broadcasts.

    ``shape`` is the shape without broadcasts. ``most`` is given for patterns of lengths, see ``LengthPattern``.
    """
    stem, _, letters = name.partition("@")
    batch, heads, rows, columns = (1 if x == "1" else n for x, n in zip(letters or "11QK", shape, strict=True))
    reduced = (batch, heads, rows, columns)
    pattern = _listed(known, stem) or known[stem]
    return np.broadcast_to(pattern(rng, reduced, *most), reduced)

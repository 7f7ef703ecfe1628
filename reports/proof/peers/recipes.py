"""Inputs of other test suites: their shapes, options and values, drawn from their own lists.

Batches, heads and lengths are reduced so that an emulated kernel can be tried; the ``recipe`` of each row of ``rows``
names the reduction. Values keep the suite's distribution, options its combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.masks import causal
from attn_spec.problem.problem import Problem

#: Multiply-adds of the largest problem: several fit into a budget.
LARGEST = 2**25
#: Fewest queries to which a problem is reduced.
FEWEST_QUERIES = 8
#: Draws in a row that a kernel may decline before the recipe gives up.
PATIENCE = 1000


class PeerError(ValueError):
    """A recipe that holds no problem for a kernel."""


#: Values of q, k, v before the factor.
VALUES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "wide": lambda rng, shape: rng.uniform(-9, 9, shape),
}


@dataclass(frozen=True, repr=False, kw_only=True)
class PeerRecipe:
    """Recipe of one problem of a peer; the fields of a problem, patterns and values by name."""

    #: A name from VALUES.
    values: str = "normal"
    #: Factor of the values, and a further factor of the queries.
    factor: float = 1.0
    query_factor: float = 1.0
    seed: int = 0
    dtype: str = "float32"
    batch: int = 1
    query_heads: int = 1
    kv_heads: int = 1
    query_length: int = 1
    key_length: int = 1
    head_dim: int = 1
    value_dim: int = 1
    scale: float | None = None
    causal: bool = False
    causal_alignment: str = "top_left"
    window: tuple[int | None, int | None] | None = None
    #: A name from MASKS.
    mask: str | None = None
    #: A name from BIASES.
    bias: str | None = None
    softcap: float | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Sk]."""
        return (self.batch, self.query_heads, self.query_length, self.key_length)

    @property
    def work(self) -> int:
        """Multiply-adds of one forward pass."""
        return int(np.prod(self.shape)) * (self.head_dim + self.value_dim)

    def options(self) -> set[str]:
        """Return the names of the options that the kernel must declare."""
        used = {name for name in ("scale", "window", "mask", "bias", "softcap") if getattr(self, name) is not None}
        shapes = {
            "gqa": self.query_heads != self.kv_heads,
            "dv": self.head_dim != self.value_dim,
            "cross": self.query_length != self.key_length,
        }
        return used | {name for name, present in shapes.items() if present} | ({"causal"} if self.causal else set())

    def problem(self) -> Problem:
        """Return the problem, the same bits on every call."""
        rng = np.random.default_rng(self.seed)
        kv = (self.batch, self.kv_heads, self.key_length)
        shapes = ((*self.shape[:3], self.head_dim), (*kv, self.head_dim), (*kv, self.value_dim))
        q, k, v = (self._times(VALUES[self.values](rng, shape), self.factor) for shape in shapes)
        named = ("scale", "causal", "causal_alignment", "window", "softcap")
        bias = None if self.bias is None else bits.nearest(BIASES[self.bias](rng, self), self.dtype)
        return Problem(
            q=self._times(q, self.query_factor),
            k=k,
            v=v,
            mask=None if self.mask is None else MASKS[self.mask](rng, self),
            bias=bias,
            recipe=self,
            dtypes=self.dtype,
            **{name: getattr(self, name) for name in named},
        )

    def _times(self, x: np.ndarray, factor: float) -> np.ndarray:
        """Multiply as suites do, which draw in the dtype and multiply there."""
        return bits.nearest(bits.nearest(x, self.dtype) * factor, self.dtype)

    def __repr__(self) -> str:
        changed = [f"{f.name}={value!r}" for f in fields(self) if (value := getattr(self, f.name)) != f.default]
        return f"PeerRecipe({', '.join(changed)})"


def _distance(recipe: PeerRecipe, alignment: str = "bottom_right") -> np.ndarray:
    """Return j - (i + offset), [Sq, Sk]."""
    offset = recipe.key_length - recipe.query_length if alignment == "bottom_right" else 0
    return np.arange(recipe.key_length) - np.arange(recipe.query_length)[:, None] - offset


def _alibi(rng: np.random.Generator, recipe: PeerRecipe) -> np.ndarray:
    """Draw the ALiBi of FlashAttention: slopes are 0.3 x uniform; with causal, distances count from the last key."""
    slopes = 0.3 * rng.random((recipe.batch, recipe.query_heads, 1, 1))
    return slopes * (
        np.arange(recipe.key_length) - (recipe.key_length - 1.0) if recipe.causal else -np.abs(_distance(recipe))
    )


def _corner(rng: np.random.Generator, recipe: PeerRecipe) -> np.ndarray:
    """Let all queries of the first head but the last see only the last key."""
    bias = 3 * rng.standard_normal(recipe.shape)
    bias[0, 0, :-1, :-1] = -np.inf
    return bias


def _geometric(_: np.random.Generator, recipe: PeerRecipe) -> np.ndarray:
    """Return the ALiBi of FlexAttention: slopes 2^-1 .. 2^-8."""
    slopes = np.exp2(-(np.arange(recipe.query_heads) + 1.0))
    return slopes[:, None, None] * _distance(recipe, "top_left")[None, None]


#: Additive biases.
BIASES: dict[str, Callable[[np.random.Generator, PeerRecipe], np.ndarray]] = {
    "alibi": _alibi,
    "corner": _corner,
    "geometric": _geometric,
    "relative": lambda _, recipe: -_distance(recipe, "top_left")[None, None].astype(float),
    "normal": lambda rng, recipe: rng.standard_normal(recipe.shape),
    "normal_3": lambda rng, recipe: 3 * rng.standard_normal(recipe.shape),
    "normal_of_heads": lambda rng, recipe: rng.standard_normal((1, *recipe.shape[1:])),
    "normal_of_rows": lambda rng, recipe: rng.standard_normal((1, 1, *recipe.shape[2:])),
    "uniform_of_rows": lambda rng, recipe: rng.random((1, 1, *recipe.shape[2:])),
    "wide_of_rows": lambda rng, recipe: rng.uniform(-9, 9, (1, 1, *recipe.shape[2:])),
}


def _lengths(lengths: Sequence[int] | np.ndarray, recipe: PeerRecipe) -> np.ndarray:
    return (np.arange(recipe.key_length) < np.asarray(lengths)[:, None])[:, None, None]


def _half_of(length: int) -> np.ndarray:
    """Return whether each position lies in the second half, bool [length]."""
    return np.arange(length) >= length // 2


#: Masks, True = attend.
MASKS: dict[str, Callable[[np.random.Generator, PeerRecipe], np.ndarray]] = {
    "lower": lambda _, recipe: causal().dense(recipe.query_length, recipe.key_length)[None, None],
    "upper": lambda _, recipe: (_distance(recipe, "top_left") >= 0)[None, None],
    "even_keys": lambda _, recipe: (np.arange(recipe.key_length) % 2 == 0)[None, None, None],
    "halves": lambda _, recipe: (_half_of(recipe.query_length)[:, None] == _half_of(recipe.key_length))[None, None],
    "quarter_and_half": lambda _, recipe: _lengths(
        [recipe.key_length // 4, recipe.key_length // 2][: recipe.batch], recipe
    ),
    "padding": lambda rng, recipe: _lengths(rng.integers(1, max(recipe.key_length, 2), recipe.batch), recipe),
    "lower_padding": lambda rng, recipe: MASKS["padding"](rng, recipe) & MASKS["lower"](rng, recipe),
}


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The lists one test is parametrized with; a problem takes one entry of each."""

    #: (Sq, Sk)
    lengths: tuple[tuple[int, int], ...]
    #: (D, Dv)
    dims: tuple[tuple[int, int], ...]
    #: (B, Hq, Hkv)
    heads: tuple[tuple[int, int, int], ...] = ((1, 2, 2),)
    #: Lists of changes to a recipe. The window "random" is drawn for the lengths, the scale "1/D" for the dimension;
    #: "ordered" makes the keys at least as many as the queries.
    options: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    #: Fields of every recipe.
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, rng: np.random.Generator, dtype: str) -> PeerRecipe:
        """Draw one entry of each list, and reduce the lengths."""
        Sq, Sk = self.lengths[rng.integers(len(self.lengths))]
        D, Dv = self.dims[rng.integers(len(self.dims))]
        B, Hq, Hkv = self.heads[rng.integers(len(self.heads))]
        changes: dict[str, Any] = dict(self.fixed)
        for choices in self.options:
            changes |= choices[rng.integers(len(choices))]
        window, scale = changes.pop("window", None), changes.pop("scale", None)
        Sk = max(Sq, Sk) if changes.pop("ordered", False) else Sk
        shape = {"batch": B, "query_heads": Hq, "kv_heads": Hkv, "query_length": Sq, "key_length": Sk}
        seed = int(rng.integers(2**32))
        recipe = cut(PeerRecipe(dtype=dtype, seed=seed, head_dim=D, value_dim=Dv, **shape, **changes), window is None)
        if window == "random":
            left, right = (int(side) for side in rng.integers(recipe.key_length, size=2))
            window = (left, 0 if recipe.causal else right)
        return replace(recipe, window=window, scale=1 / D if scale == "1/D" else scale)


def cut(recipe: PeerRecipe, free: bool = True) -> PeerRecipe:
    """Halve lengths until the problem is no larger than LARGEST, odd ones staying odd.

    Queries are independent of their place if ``free``, not causal, and without mask or bias. Then only their number is
    halved, since the number of keys decides how small an output is.
    """
    plain = free and not recipe.causal and recipe.mask is None and recipe.bias is None
    while recipe.work > LARGEST:
        if plain and recipe.query_length >= 2 * FEWEST_QUERIES:
            recipe = replace(recipe, query_length=_half(recipe.query_length))
        else:
            recipe = replace(recipe, query_length=_half(recipe.query_length), key_length=_half(recipe.key_length))
    return recipe


def _half(length: int) -> int:
    return max(length // 2 | length & 1, 1)


def drawn(*grids: Grid) -> Callable[[Subject, np.random.Generator], Iterator[Problem]]:
    """Return an endless iterator of problems of tests that are drawn equally often. Raises :class:`PeerError`."""

    def problems(subject: Subject, rng: np.random.Generator) -> Iterator[Problem]:
        declined = 0
        while declined < PATIENCE:
            recipe = grids[rng.integers(len(grids))].draw(rng, subject.dtype)
            declined += 1
            if not has_options(subject, recipe) or subject.kernel.limits.refusal(problem := recipe.problem()):
                continue
            if subject.conventions.outputs_without_keys == {"zero"} or not problem.empty_rows.any():
                declined = 0
                yield problem
        raise PeerError(f"{subject.kernel.name} takes no problem of this recipe: {PATIENCE} in a row were declined")

    return problems


def has_options(subject: Subject, recipe: PeerRecipe) -> bool:
    """Return whether the kernel takes the options of a recipe, and needs no other."""
    needs = recipe.options()
    diagonal = {"causal", "window"} & needs and "cross" in needs
    if diagonal and recipe.causal_alignment != subject.conventions.causal_alignment:
        needs.add("causal_alignment")
    return subject.supports(*needs) and needs.issuperset(subject.kernel.limits.always)

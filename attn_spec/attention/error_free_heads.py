"""One query head as error-free products take it: its keys and values in slices, its scale, and whether it is safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_spec.attention.arithmetic import DOUBLE_DOUBLES
from attn_spec.attention.terms import numbers_of, scale_of
from attn_spec.numbers.double_double import DoubleDouble, number
from attn_spec.numbers.error_free_products import Right, right
from attn_spec.problem.problem import Problem

#: Magnitudes of inputs that are not 0, between which nothing under- or overflows.
SMALLEST, LARGEST = 2.0**-200, 2.0**200


@dataclass(frozen=True)
class Head:
    """One query head, [1, 1, ..], and its keys and values as factors of products."""

    problem: Problem
    #: Query heads of the whole problem that share its keys.
    group: int = 1

    @cached_property
    def k(self) -> np.ndarray:
        """[Sk, D], hidden NaN and infinities as 0, like v below."""
        return finite(self.problem.k[0, 0])

    @cached_property
    def v(self) -> np.ndarray:
        """[Sk, Dv]."""
        return finite(self.problem.v[0, 0])

    @cached_property
    def transposed_keys(self) -> list[Right]:
        return right(np.ascontiguousarray(self.k.T))

    @cached_property
    def keys(self) -> list[Right]:
        return right(self.k)

    @cached_property
    def values(self) -> list[Right]:
        return right(self.v)

    @cached_property
    def transposed_values(self) -> list[Right]:
        return right(np.ascontiguousarray(self.v.T))

    @cached_property
    def scale(self) -> DoubleDouble:
        """The real factor on q.k."""
        return scale_of(DOUBLE_DOUBLES, self.problem)

    @cached_property
    def sink(self) -> float | None:
        """The sink z; None if the head has none."""
        z = float(self.problem.sinks_of_heads.item())
        return z if z > -np.inf else None

    @cached_property
    def keep_factor(self) -> DoubleDouble:
        """The factor of dropout for the weights that it keeps."""
        p = self.problem.dropout_p if self.problem.dropout_keep is not None else None
        return number(1.0) / (number(1.0) - number(p or 0.0))

    @cached_property
    def largest_value(self) -> np.ndarray:
        """The largest magnitude of each column of v, [1, Dv]."""
        return np.abs(self.v).max(axis=0, keepdims=True, initial=0.0)

    @cached_property
    def is_finite(self) -> bool:
        """Return whether all keys and values are finite."""
        return bool(np.isfinite(self.problem.k).all() and np.isfinite(self.problem.v).all())

    @cached_property
    def is_safe(self) -> bool:
        """Return whether no input, and no parameter, is so large or small that something may under- or overflow."""
        problem = self.problem
        scale = 1.0 if problem.scale is None else problem.scale
        given = (problem.q, problem.k, problem.v, scale, self.sink or 0.0, *safe_numbers(problem).values())
        return all(is_safe(x) for x in given)


def heads(problem: Problem) -> Iterator[tuple[int, int, Head]]:
    """Every query head, by batch entry."""
    for b in range(problem.batch):
        entry = problem.take("B", [b])
        for h in range(problem.query_heads):
            yield b, h, Head(entry.head(h), problem.group)


def safe_numbers(problem: Problem) -> dict[str, np.ndarray]:
    """Return the numbers of terms; what is far below 0 is clipped, and hidden infinities are 0."""
    return {name: np.maximum(finite(x), -LARGEST / 2) for name, x in numbers_of(problem).items()}


def finite(x: np.ndarray) -> np.ndarray:
    """Return x with 0 in place of NaN and infinities, which no query sees or which make the row undefined."""
    return np.where(np.isfinite(x), x, 0.0)


def is_safe(x: np.ndarray | float) -> bool:
    """Return whether the largest magnitude is 0 or far from the ends of float64; small ones beside it do no harm."""
    largest = np.abs(finite(np.asarray(x, dtype=np.float64))).max(initial=0.0)
    return bool(largest == 0 or SMALLEST <= largest <= LARGEST)

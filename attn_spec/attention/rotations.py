"""Rotary positions: pairs of columns turned by an angle that grows with the position (Su et al., arXiv 2104.09864).

With R columns turned, the pair m = 0 .. R/2 - 1 of row i is turned by

    theta_im = position_i base^(-2m / R)        (x, y) -> (x cos theta - y sin theta, y cos theta + x sin theta)

where positions are those given, or count rows.

A pair is the columns m and m + R/2 ("half", as GPT-NeoX and Llama have it) or 2m and 2m + 1 ("interleaved", as in the
paper and in GPT-J). Columns from R on stay as they are. A turn is x cos + swapped(x) sin, where ``swapped`` puts -y in
the place of x and x in that of y; its gradient is the turn back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.problem.masks import diagonal_offset

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem

#: The base where none is given.
BASE = 10000.0


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of the rows of one side, queries or keys."""

    #: Integers [.., S].
    positions: np.ndarray
    base: float
    #: R and D.
    turned: int
    columns: int
    layout: str
    #: Dtype to which cosines and sines are rounded; empty if they are real numbers.
    table_dtype: str = ""

    @cached_property
    def exponents(self) -> np.ndarray:
        """-2m / R of each pair, [R/2]."""
        return -2 * np.arange(self.turned // 2) / max(self.turned, 1)

    @cached_property
    def pair(self) -> np.ndarray:
        """The pair m of each turned column, [R]."""
        half = np.arange(self.turned // 2)
        return np.tile(half, 2) if self.layout == "half" else half.repeat(2)

    @cached_property
    def partner(self) -> np.ndarray:
        """The column of the same pair, [D]; of one that stays, itself."""
        found, column = np.arange(self.columns), np.arange(self.turned)
        if self.layout == "half":
            found[: self.turned] = np.roll(column, self.turned // 2)
        else:
            found[: self.turned] = column ^ 1
        return found

    @cached_property
    def sign(self) -> np.ndarray:
        """-1 of the first column of each pair, to which its partner comes with a minus, and 1, [D]."""
        found, column = np.ones(self.columns), np.arange(self.turned)
        first = column < self.turned // 2 if self.layout == "half" else column % 2 == 0
        found[: self.turned][first] = -1.0
        return found

    def swapped(self, x: np.ndarray) -> np.ndarray:
        """-y in place of x and x in place of y, for arrays [.., D] of any numbers: no rounding."""
        return x[..., self.partner] * self.sign

    def spread(self, table: np.ndarray, rest: object) -> np.ndarray:
        """Return a table [.., S, R/2] of pairs as a table of columns [.., S, D]; other columns hold ``rest``."""
        found = np.full((*self.positions.shape, self.columns), rest, dtype=table.dtype)
        found[..., : self.turned] = table[..., self.pair]
        return found


def turned_columns(head_dim: int, rotary_dim: int | None) -> int:
    """R: as many as are asked for, or all but the last of an odd number."""
    return head_dim - head_dim % 2 if rotary_dim is None else rotary_dim


def rotations_of(problem: Problem, entry: int | None = None) -> dict[str, Rotation]:
    """Return the rotations of "queries" and "keys", of all batch entries or of one; none without rotary positions.

    Where no positions are given key j stands at j, query i at the key that it is aligned with: i, or i + Sk - Sq from
    the bottom-right corner.
    """
    if problem.rotary is None:
        return {}
    queries = _of_entry(problem.rotary_query_positions, entry)
    if queries is None and (problem.diagonal is not None or problem.has_lengths):
        aligned = np.atleast_2d(problem.aligned_keys)[:, None, :, None]  # of one entry or of all
        queries = _of_entry(aligned, entry)
    return rotations(
        query_length=problem.query_length,
        key_length=problem.key_length,
        columns=problem.head_dim,
        rotary=problem.rotary,
        rotary_base=problem.rotary_base,
        rotary_dim=problem.rotary_dim,
        rotary_from_tables=problem.dtype_of("q") if problem.rotary_from_tables else "",
        rotary_query_positions=queries,
        rotary_key_positions=_of_entry(problem.rotary_key_positions, entry),
        causal_alignment=problem.causal_alignment,
    )


def _of_entry(positions: np.ndarray | None, entry: int | None) -> np.ndarray | None:
    return positions if positions is None or entry is None else positions[min(entry, len(positions) - 1), 0]


def rotations(
    *,
    query_length: int,
    key_length: int,
    columns: int,
    rotary: str,
    rotary_base: float | None = None,
    rotary_dim: int | None = None,
    rotary_from_tables: str = "",
    rotary_query_positions: np.ndarray | None = None,
    rotary_key_positions: np.ndarray | None = None,
    causal_alignment: str = "top_left",
) -> dict[str, Rotation]:
    """Return the rotations of a call's options; given positions are [B, 1, S, 1] and [B, 1, 1, S], or one entry's.

    ``rotary_from_tables`` is the dtype of q if cosines and sines are rounded to it.
    """
    first = diagonal_offset(causal_alignment, query_length, key_length)
    base, turned = rotary_base or BASE, turned_columns(columns, rotary_dim)
    found = {}
    for side, given, start, length in (
        ("queries", rotary_query_positions, first, query_length),
        ("keys", rotary_key_positions, 0, key_length),
    ):
        positions = np.arange(start, start + length) if given is None else _along(given, length)
        kinds = (rotary, rotary_from_tables)
        found[side] = _rotation((positions.tobytes(), positions.shape), base, turned, columns, kinds)
    return found


def _along(given: np.ndarray, length: int) -> np.ndarray:
    """Positions [B, 1, S, 1], [B, 1, 1, S], [S, 1] or [1, S], where S may be 1 for all rows, as [B, 1, S] or [S]."""
    *entries, rows, columns = given.shape
    flat = given.astype(np.int64).reshape(*entries, rows * columns)  # of no entries the length cannot be inferred
    return np.broadcast_to(flat, (*flat.shape[:-1], length))


# Equal settings give the same rotation, whose tables are then found once. Nobody changes one.
@lru_cache(maxsize=64)
def _rotation(
    positions: tuple[bytes, tuple[int, ...]], base: float, turned: int, columns: int, kinds: tuple[str, str]
) -> Rotation:
    (data, shape), (layout, table_dtype) = positions, kinds
    return Rotation(np.frombuffer(data, dtype=np.int64).reshape(shape), base, turned, columns, layout, table_dtype)

"""The operations that formulas of scores are written in, in each arithmetic that evaluates them.

A formula is a function of an arithmetic and its numbers: arrays of [rows, columns], or with leading axes, that ``*``
multiplies entry by entry. The same text is evaluated in mpf (``definition``), in balls (``enclosure``), in float64
(``intermediates``) and in float64 with a running error bound (``running_error``).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from flint import arb, arb_mat
from mpmath import mp


class Arithmetic(Protocol):
    """What numbers can do beside ``*``."""

    def product(self, x: Any, y: Any) -> Any:
        """The matrix product."""

    def transposed(self, x: Any) -> Any:
        """Rows as columns."""

    def total(self, x: Any) -> Any:
        """The sum over the columns, which stay as one."""

    def root(self, x: Any) -> Any:
        """The square root."""

    def quotient(self, x: Any, y: Any) -> Any:
        """x / y, and 0 where both are 0."""


class Reals:
    """mpf at mpmath's present precision, in object arrays [rows, columns]."""

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return _entries([[mp.fdot(row, column) for column in y.T] for row in x], (len(x), y.shape[1]))

    def transposed(self, x: np.ndarray) -> np.ndarray:
        return x.T

    def total(self, x: np.ndarray) -> np.ndarray:
        return _entries([mp.fsum(row) for row in x], (len(x), 1))

    def root(self, x: np.ndarray) -> np.ndarray:
        return _entries([mp.sqrt(entry) for entry in x.ravel()], x.shape)

    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pairs = zip(*(side.ravel() for side in np.broadcast_arrays(x, y)), strict=True)
        return _entries([mp.zero if n == m == 0 else n / m if m else mp.nan for n, m in pairs], x.shape)


class Balls:
    """Balls of python-flint at its present precision, in object arrays [rows, columns]."""

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return table(matrix_of(x) * matrix_of(y))

    def transposed(self, x: np.ndarray) -> np.ndarray:
        return x.T

    def total(self, x: np.ndarray) -> np.ndarray:
        return _entries([sum(row, arb(0)) for row in x], (len(x), 1))

    def root(self, x: np.ndarray) -> np.ndarray:
        return _entries([ball.sqrt() for ball in x.ravel()], x.shape)

    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pairs = zip(*(side.ravel() for side in np.broadcast_arrays(x, y)), strict=True)
        return _entries([arb(0) if n.is_zero() and m.is_zero() else n / m for n, m in pairs], x.shape)


class Floats:
    """float64, in arrays [.., rows, columns]."""

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x @ y

    def transposed(self, x: np.ndarray) -> np.ndarray:
        return x.swapaxes(-1, -2)

    def total(self, x: np.ndarray) -> np.ndarray:
        return x.sum(axis=-1, keepdims=True)

    def root(self, x: np.ndarray) -> np.ndarray:
        return np.sqrt(x)

    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where((x == 0) & (y == 0), 0.0, x / y)


REALS, BALLS, FLOATS = Reals(), Balls(), Floats()


def matrix_of(x: np.ndarray) -> arb_mat:
    """An object array of balls [rows, columns] as a matrix."""
    rows, columns = x.shape
    return arb_mat(rows, columns, x.ravel().tolist())


def table(x: arb_mat) -> np.ndarray:
    """A matrix of balls as an object array [rows, columns]."""
    return _entries(x.entries(), (x.nrows(), x.ncols()))


def _entries(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """An object array of ``shape``; NumPy would look into what numbers of a library are made of."""
    result = np.empty(shape, dtype=object)
    flat = [entry for row in values for entry in row] if values and isinstance(values[0], list) else values
    result.reshape(-1)[:] = flat
    return result

"""The operations that formulas of scores and weights are written in.

A formula is a function of an arithmetic and its numbers: arrays of [rows, columns], or with leading axes, that ``*``
multiplies, and ``+`` and ``-`` add and subtract, entry by entry. The same text is evaluated in mpf (``definition``),
in balls (``enclosure``), in float64 (``intermediates``) and in float64 with a running error bound (``running_error``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from attn_spec.attention.rotations import Rotation


class Elements(Protocol):
    """Operations of the formulas of terms (``terms``), entry by entry, beside ``+``, ``-``, ``*`` and ``/``."""

    def given(self, x: np.ndarray) -> Any:
        """Float64 as numbers of this arithmetic."""

    def tanh(self, x: Any) -> Any:
        """Return the hyperbolic tangent."""


class Slopes(Elements, Protocol):
    """Operations of the formulas of their slopes."""

    def slope_of_tanh(self, s: Any, y: Any, c: Any) -> Any:
        """1 - tanh(s / c)^2, the slope of y = c tanh(s / c)."""


class Scaling(Elements, Protocol):
    """Operations of an arithmetic that evaluates the scale too."""

    def inverse_root(self, n: int) -> Any:
        """1 / sqrt(n), [1, 1]."""


class Arithmetic(Protocol):
    """Operations of numbers beside ``*``, ``+`` and ``-``."""

    def product(self, x: Any, y: Any) -> Any:
        """Return the matrix product."""

    def shifted(self, y: Any, b: Any, x: Any) -> Any:
        """y + b for a product y of the rows of x, whose sums b may be any term of."""

    def as_operand(self, x: Any) -> Any:
        """x, a result that may be stored as operands are before it goes on."""

    def transposed(self, x: Any) -> Any:
        """Rows as columns."""

    def total(self, x: Any) -> Any:
        """Return the sum over the columns, as one column."""

    def root(self, x: Any) -> Any:
        """Return the square root."""

    def quotient(self, x: Any, y: Any) -> Any:
        """x / y, and 0 where both are 0."""

    def linear_quotient(self, linear: Callable[[Any], Any], x: Any, y: Any) -> Any:
        """linear(x) / y of a linear function of rows and a number y of each; kernels may evaluate linear(x / y)."""

    def tanh(self, x: Any) -> Any:
        """Return the hyperbolic tangent."""

    def complement(self, x: Any) -> Any:
        """1 - x."""

    def exp(self, x: Any) -> Any:
        """Return the exponential."""

    def capped_exp(self, x: Any) -> Any:
        """exp(min(x, 0))."""

    def gated(self, t: Any, x: Any) -> Any:
        """t where x > 0, else 0."""

    def tables(self, turn: Rotation) -> tuple[Any, Any]:
        """cos and sin of the angles of a rotation, [rows, columns]; 1 and 0 in columns that stay."""
        ...

    def swapped(self, x: Any, turn: Rotation) -> Any:
        """x with the columns of each pair in the other's place, the one that comes first with a minus."""

    def pairs(self, x: Any, y: Any) -> Any:
        """x_i + y_j for rows i of x and j of y, in rows: those of the first i come first."""

    def grid(self, s: Any, x: Any, y: Any) -> Any:
        """One number for each such pair, as rows i and columns j."""

    def listed(self, s: Any) -> Any:
        """Return the inverse of :meth:`grid`."""

    def over_second(self, u: Any, x: Any, y: Any) -> Any:
        """Return the sums over j of the numbers u of each pair."""

    def over_first(self, u: Any, x: Any, y: Any) -> Any:
        """Return the sums over i of the numbers u of each pair."""


class Elementary(Arithmetic, Protocol):
    """Further operations that formulas of weights use; rows are arrays [1, n]."""

    def log(self, x: Any) -> Any:
        """Return the natural logarithm."""

    def divided(self, x: Any, y: Any) -> Any:
        """Return a row divided by one number; NaN if the number is 0."""

    def reference(self, s: Any) -> Any:
        """Return a number so near to the largest of a row that exponentials of differences do not overflow."""

    def heaviest(self, P: Any) -> Any:
        """Return the place of a row's largest weight, or of one that serves as well."""

    def less(self, x: Any, at: int) -> Any:
        """Return a row minus its entry ``at``, which becomes exactly 0."""

"""The operations of ``operations`` in mpf, in balls, in float64 and in double-doubles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx
from mpmath import mp

from attn_spec.attention.rotations import Rotation
from attn_spec.numbers import bits, double_double, powers_of_two
from attn_spec.numbers.double_double import DoubleDouble


class _Arrays(ABC):
    """Operations that arrays of numbers of any arithmetic share."""

    #: The sum of nothing.
    zero: Any

    def shifted(self, y: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:  # noqa: ARG002 - what the sums are of
        return y + b

    def as_operand(self, x: np.ndarray) -> np.ndarray:
        return x

    @abstractmethod
    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the quotient, and 0 where both are 0."""

    def linear_quotient(self, linear: Callable[[np.ndarray], np.ndarray], x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return self.quotient(linear(x), y)

    def swapped(self, x: np.ndarray, turn: Rotation) -> np.ndarray:
        return turn.swapped(x)

    def complement(self, x: np.ndarray) -> np.ndarray:
        return 1 - x

    def slope_of_tanh(self, s: np.ndarray, y: np.ndarray, c: np.ndarray) -> np.ndarray:  # noqa: ARG002 - y says enough
        t = y / c
        return 1 - t * t

    def gated(self, t: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.where((x > 0).astype(bool), t, self.zero)

    def capped_exp(self, x: np.ndarray) -> np.ndarray:
        return self.exp(x - self.gated(x, x))

    @abstractmethod
    def exp(self, x: np.ndarray) -> np.ndarray:
        """Return the exponential of each entry."""

    def pairs(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return as_pairs(x[..., :, None, :] + y[..., None, :, :])

    def grid(self, s: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return s.reshape(*s.shape[:-2], x.shape[-2], y.shape[-2])

    def listed(self, s: np.ndarray) -> np.ndarray:
        return as_pairs(s[..., None])

    def over_second(self, u: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.add.reduce(by_pair(u, x, y), axis=-2, initial=self.zero)

    def over_first(self, u: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.add.reduce(by_pair(u, x, y), axis=-3, initial=self.zero)


def as_pairs(x: np.ndarray) -> np.ndarray:
    """[.., first, second, columns] with pairs as rows."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def by_pair(u: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return [.., first, second, columns] for pairs as rows: the inverse of :func:`as_pairs`."""
    return u.reshape(*u.shape[:-2], x.shape[-2], y.shape[-2], u.shape[-1])


class Reals(_Arrays):
    """mpf at mpmath's present precision, in object arrays [rows, columns]."""

    zero = mp.zero

    def given(self, x: np.ndarray) -> np.ndarray:
        """No float is rounded, whatever the precision."""
        return entries([mp.convert(value) for value in x.ravel().tolist()], x.shape)

    def inverse_root(self, n: int) -> np.ndarray:
        return entries([1 / mp.sqrt(n)], (1, 1))

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return entries([[mp.fdot(row, column) for column in y.T] for row in x], (len(x), y.shape[1]))

    def transposed(self, x: np.ndarray) -> np.ndarray:
        return x.T

    def total(self, x: np.ndarray) -> np.ndarray:
        return entries([mp.fsum(row) for row in x], (len(x), 1))

    def root(self, x: np.ndarray) -> np.ndarray:
        return entries([mp.sqrt(entry) for entry in x.ravel()], x.shape)

    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pairs = zip(*(side.ravel() for side in np.broadcast_arrays(x, y)), strict=True)
        return entries([mp.zero if n == m == 0 else n / m if m else mp.nan for n, m in pairs], x.shape)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return entries([mp.tanh(entry) for entry in x.ravel()], x.shape)

    def tables(self, turn: Rotation) -> tuple[np.ndarray, np.ndarray]:
        return _given_tables(self, turn) if turn.table_dtype else _real_tables(turn, mp.prec)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return entries([mp.exp(entry) for entry in x.ravel()], x.shape)

    def log(self, x: np.ndarray) -> np.ndarray:
        return entries([mp.log(entry) for entry in x.ravel()], x.shape)

    def divided(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x / y.item() if y.item() else entries([mp.nan] * x.size, x.shape)

    def reference(self, s: np.ndarray) -> Any:
        """0: the exponents of mpmath are unbounded."""
        del s
        return mp.zero

    def heaviest(self, P: np.ndarray) -> int:
        return max(range(P.size), key=P.ravel().__getitem__)

    def less(self, x: np.ndarray, at: int) -> np.ndarray:
        return x - x[0, at]


class Balls(_Arrays):
    """Balls of python-flint at its present precision, in object arrays [rows, columns]."""

    zero = arb(0)

    def given(self, x: np.ndarray) -> np.ndarray:
        """Balls of radius 0."""
        return entries([arb(value) for value in x.ravel().tolist()], x.shape)

    def inverse_root(self, n: int) -> np.ndarray:
        return entries([arb(n).rsqrt()], (1, 1))

    def product(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return table(matrix_of(x) * matrix_of(y))

    def transposed(self, x: np.ndarray) -> np.ndarray:
        return x.T

    def total(self, x: np.ndarray) -> np.ndarray:
        return entries([sum(row, arb(0)) for row in x], (len(x), 1))

    def root(self, x: np.ndarray) -> np.ndarray:
        return entries([ball.sqrt() for ball in x.ravel()], x.shape)

    def quotient(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        pairs = zip(*(side.ravel() for side in np.broadcast_arrays(x, y)), strict=True)
        return entries([arb(0) if n.is_zero() and m.is_zero() else n / m for n, m in pairs], x.shape)

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return entries([ball.tanh() for ball in x.ravel()], x.shape)

    def slope_of_tanh(self, s: np.ndarray, y: np.ndarray, c: np.ndarray) -> np.ndarray:
        """sech^2, of which no leading digits cancel."""
        del y
        ratios: Any = s / c
        return entries([ball.sech() ** 2 for ball in ratios.ravel()], s.shape)

    def tables(self, turn: Rotation) -> tuple[np.ndarray, np.ndarray]:
        return _given_tables(self, turn) if turn.table_dtype else _ball_tables(turn, ctx.prec)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return entries([ball.exp() for ball in x.ravel()], x.shape)

    def log(self, x: np.ndarray) -> np.ndarray:
        return entries([ball.log() for ball in x.ravel()], x.shape)

    def divided(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x / y.item()

    def reference(self, s: np.ndarray) -> arb:
        return reduce(arb.max, s.ravel()).mid()

    def heaviest(self, P: np.ndarray) -> int:
        return max(range(P.size), key=lambda j: float(P[0, j]))

    def less(self, x: np.ndarray, at: int) -> np.ndarray:
        """Return the row minus its entry ``at``, there exactly 0; a ball less itself would keep its radius twice."""
        found = x - x[0, at]
        found[0, at] = arb(0)
        return found


class Floats(_Arrays):
    """float64, in arrays [.., rows, columns]."""

    zero = 0.0

    def given(self, x: np.ndarray) -> np.ndarray:
        return x

    def inverse_root(self, n: int) -> np.ndarray:
        return np.full((1, 1), n**-0.5)

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

    def tanh(self, x: np.ndarray) -> np.ndarray:
        return np.tanh(x)

    def exp(self, x: np.ndarray) -> np.ndarray:
        return np.exp(x)

    def tables(self, turn: Rotation) -> tuple[np.ndarray, np.ndarray]:
        if turn.table_dtype:
            cos, sin = rounded_tables(turn)
            return turn.spread(cos, 1.0), turn.spread(sin, 0.0)
        angles = turn.positions[..., None] * np.power(turn.base, turn.exponents)
        return turn.spread(np.cos(angles), 1.0), turn.spread(np.sin(angles), 0.0)


class DoubleDoubles:
    """Double-doubles with radii, which have the operations of terms alone."""

    def given(self, x: np.ndarray) -> DoubleDouble:
        return double_double.number(x)

    def inverse_root(self, n: int) -> DoubleDouble:
        return powers_of_two.inverse_root(n)

    def tanh(self, x: DoubleDouble) -> DoubleDouble:
        return powers_of_two.tanh(x)

    def slope_of_tanh(self, s: DoubleDouble, y: DoubleDouble, c: DoubleDouble) -> DoubleDouble:  # noqa: ARG002
        t = y / c
        return double_double.number(1.0) - t * t


REALS, BALLS, FLOATS, DOUBLE_DOUBLES = Reals(), Balls(), Floats(), DoubleDoubles()


#: Bits of a cosine before it is rounded to float64, beside those of its angle before the point.
_TABLE_BITS = 128


@lru_cache(maxsize=8)
def rounded_tables(turn: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines and sines of a rotation [.., S, R/2], rounded to float64 and then to the dtype of its tables.

    The midpoint of a ball stands for the true number: its radius is below 2^-100.
    """
    places, where = np.unique(turn.positions, return_inverse=True)
    with ctx.workprec(_TABLE_BITS + 64):
        frequencies = [arb(turn.base) ** (arb(-2 * m) / turn.turned) for m in range(turn.turned // 2)]
        found = [(int(n) * frequency).sin_cos() for n in places for frequency in frequencies]
        sin, cos = (np.array([float(pair[at].mid()) for pair in found]) for at in (0, 1))
    shape = (len(places), turn.turned // 2)
    cos, sin = (
        bits.nearest(x.reshape(shape), turn.table_dtype)[where.reshape(turn.positions.shape)] for x in (cos, sin)
    )
    return cos, sin


def _given_tables(arithmetic: Reals | Balls, turn: Rotation) -> tuple[np.ndarray, np.ndarray]:
    """Return rounded cosines and sines as exact numbers of an arithmetic, spread over the columns [S, D]."""
    cos, sin = (arithmetic.given(table) for table in rounded_tables(turn))
    return turn.spread(cos, arithmetic.given(np.ones(1))[0]), turn.spread(sin, arithmetic.given(np.zeros(1))[0])


# Heads, batch entries and gradients turn by the same tables. Nobody changes one.
@lru_cache(maxsize=8)
def _real_tables(turn: Rotation, precision: int) -> tuple[np.ndarray, np.ndarray]:
    with mp.workprec(precision):
        frequencies = [mp.power(turn.base, -mp.mpf(2 * m) / turn.turned) for m in range(turn.turned // 2)]
        angles = np.array([int(n) for n in turn.positions], dtype=object)[:, None] * np.array(frequencies, dtype=object)
        cos, sin = (entries([of(angle) for angle in angles.ravel()], angles.shape) for of in (mp.cos, mp.sin))
    return turn.spread(cos, mp.one), turn.spread(sin, mp.zero)


@lru_cache(maxsize=8)
def _ball_tables(turn: Rotation, precision: int) -> tuple[np.ndarray, np.ndarray]:
    with ctx.workprec(precision):
        frequencies = [arb(turn.base) ** (arb(-2 * m) / turn.turned) for m in range(turn.turned // 2)]
        found = [(int(n) * frequency).sin_cos() for n in turn.positions for frequency in frequencies]
    shape = len(turn.positions), turn.turned // 2
    sin, cos = (entries([pair[at] for pair in found], shape) for at in (0, 1))
    return turn.spread(cos, arb(1)), turn.spread(sin, arb(0))


def matrix_of(x: np.ndarray) -> arb_mat:
    """Return an object array of balls [rows, columns] as a matrix."""
    rows, columns = x.shape
    return arb_mat(rows, columns, x.ravel().tolist())


def table(x: arb_mat) -> np.ndarray:
    """Return a matrix of balls as an object array [rows, columns]."""
    return entries(x.entries(), (x.nrows(), x.ncols()))


def entries(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return values as an object array of ``shape``; NumPy itself would unpack the numbers of a library."""
    flat = [entry for row in values for entry in row] if values and isinstance(values[0], list) else values
    return np.fromiter(flat, dtype=object, count=len(flat)).reshape(shape)

"""The spread of a row's values around its output, as a kernel may have them: sums and ends of |c_ij v_jc - o_ic|.

Columns are those of the values, or those that a projection W makes of them: an error of a weight moves all columns of a
value together, and so what the projection makes of that, while errors of single columns meet |W|.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.operand_bounds import value_error, value_sizes
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import term, times

#: Products Sq * Sk * Dv that are formed element by element at a time.
AT_A_TIME = 2**18


def slack(forward: Intermediates, contract: ResolvedContract) -> np.ndarray | float:
    """Bound the error of the output of exact weights that errors of the values make, [.., Sq, Dv]."""
    error = value_error(forward, contract)
    return 0.0 if error is None else term("errors of values carry the output", forward.dropped(forward.P) @ error)


def around(forward: Intermediates, contract: ResolvedContract, products: np.ndarray, size: np.ndarray) -> np.ndarray:
    """|dO.(c_ij v_j - o)| [.., Sq, Sk] of values with errors, from that of v itself, for dO of that ``size``."""
    if (error := value_error(forward, contract)) is None:
        return products
    moved = (size * slack(forward, contract)).sum(-1, keepdims=True)
    return products + np.where(
        forward.visible,
        term("errors of values in how dP lies around delta", forward.dropped(size @ error.swapaxes(-1, -2)))
        + term("the error of delta in how dP lies around it", moved),
        0.0,
    )


@dataclass(frozen=True, eq=False)
class Columns:
    """Values and outputs of heads in some columns."""

    #: v [.., Sk, C], its error, or None, and the sum of the sizes that it is made of; o [.., Sq, C].
    v: np.ndarray
    error: np.ndarray | None
    size: np.ndarray
    o: np.ndarray
    #: |W| [.., C, Dv], or None.
    projection: np.ndarray | None = None

    def of_each(self, errors: np.ndarray | float) -> np.ndarray | float:
        """Return ``errors`` of single columns, [.., rows, Dv] or [.., rows, 1], projected as the values are."""
        if self.projection is None:
            return errors
        W = self.projection.swapaxes(-1, -2)
        errors = np.asarray(errors)
        return (
            errors * times("an error that all columns share, projected", W.sum(axis=-2, keepdims=True))
            if errors.shape[-1:] in ((), (1,))
            else term("errors of columns, projected", errors) @ W
        )


def columns(forward: Intermediates, contract: ResolvedContract, o: np.ndarray, W: np.ndarray | None = None) -> Columns:
    """Return the columns of values, or of W [.., C, Dv] times values."""
    v, error, size = forward.v, value_error(forward, contract), value_sizes(forward, contract)
    if W is None:
        return Columns(v, error, size, o)
    T, sizes = W.swapaxes(-1, -2), np.abs(W).swapaxes(-1, -2)
    return Columns(
        v @ T,
        None if error is None else term("errors of values that are projected", error @ sizes),
        term("sizes of values that are projected", size @ sizes),
        o @ T,
        np.abs(W),
    )


def spread(forward: Intermediates, W: np.ndarray, of: Columns) -> np.ndarray:
    """sum_j W_ij |c_ij v_jc - o_ic|, [.., Sq, C], element by element."""
    found = _of_values(forward, W, of)
    if of.error is None:
        return found
    return found + term("errors of values, times those of weights", forward.dropped(W) @ of.error)


def _of_values(forward: Intermediates, W: np.ndarray, of: Columns) -> np.ndarray:
    v, o, c = of.v, of.o, forward.c
    found = np.empty(o.shape)
    # One block of rows after the other in one array: new memory takes longer to come by than to fill.
    apart = np.empty((rows_at_a_time(forward, v), *v.shape[-2:]))
    for at in row_blocks(forward, v, np.ones(o.shape[:-1], dtype=bool)):
        weights = W[at]
        some = weighed(weights)
        met = v[at[:2]][some][None]
        met = met if c is None else c[at][:, some, None] * met
        space = apart[: len(at[2]), some]
        np.subtract(met, o[at][:, None, :], out=space)
        found[at] = (weights[:, None, some] @ np.abs(space, out=space))[:, 0]
    return found


def weighed(weights: np.ndarray) -> slice:
    """Return the keys of ``weights`` [rows, Sk] from the first to the last that is not 0 in each row."""
    some = np.flatnonzero(weights.any(axis=0))
    return slice(some[0], some[-1] + 1) if len(some) else slice(0)


def rows_at_a_time(forward: Intermediates, v: np.ndarray) -> int:
    """Return the number of rows of a head with AT_A_TIME products of keys and columns of ``v``, one at least."""
    return max(min(AT_A_TIME // max(v.shape[-2] * v.shape[-1], 1), forward.s.shape[-2]), 1)


def row_blocks(forward: Intermediates, v: np.ndarray, chosen: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Batch entry, head and some rows of the ``chosen`` ones [.., Sq], until all have come."""
    count = rows_at_a_time(forward, v)
    for b, h in np.ndindex(*chosen.shape[:-1]):
        rows = np.flatnonzero(chosen[b, h])
        for start in range(0, len(rows), count):
            yield b, h, rows[start : start + count]


def visible_range(forward: Intermediates, contract: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """Largest and smallest visible value of each column, as a kernel may have it, [.., Sq, Dv]; 0 for empty rows."""
    high, low, error = np.zeros(forward.O.shape), np.zeros(forward.O.shape), value_error(forward, contract)
    most, least = (
        (forward.v, forward.v)
        if error is None
        else (
            forward.v + term("errors of values in their range", error),
            forward.v - term("errors of values in their range", error),
        )
    )
    for column in range(forward.v.shape[-1]):
        above, below = (forward.dropped(values[..., None, :, column]) for values in (most, least))
        high[..., column] = np.where(forward.seen, above, -np.inf).max(axis=-1, initial=-np.inf)
        low[..., column] = np.where(forward.seen, below, np.inf).min(axis=-1, initial=np.inf)
    empty = forward.keys == 0
    return np.where(empty, 0.0, high), np.where(empty, 0.0, low)

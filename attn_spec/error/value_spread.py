"""How the values of a row lie around its output, as a kernel may have them: sums and ends of |c_ij v_jc - o_ic|."""

from __future__ import annotations

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.intermediates import Intermediates
from attn_spec.error.operand_bounds import value_error

#: Most products Sq * Sk * Dv for which |v - o| is formed element by element.
ELEMENTWISE_LIMIT = 2**19


def slack(x: Intermediates, c: ResolvedContract) -> np.ndarray | float:
    """How far errors of the values carry the output of exact weights, [.., Sq, Dv]."""
    error = value_error(x, c)
    return 0.0 if error is None else x.dropped(x.P) @ error


def around(x: Intermediates, c: ResolvedContract, products: np.ndarray, size: np.ndarray) -> np.ndarray:
    """|dO.(c_ij v_j - o)| [.., Sq, Sk] of values with errors, from that of v itself, for dO of that ``size``."""
    if (error := value_error(x, c)) is None:
        return products
    moved = (size * slack(x, c)).sum(-1, keepdims=True)
    return products + np.where(x.visible, x.dropped(size @ error.swapaxes(-1, -2)) + moved, 0.0)


def spread(x: Intermediates, contract: ResolvedContract, W: np.ndarray, o: np.ndarray) -> np.ndarray:
    """sum_j W_ij |c_ij v_jc - o_ic|, [.., Sq, Dv]; above ELEMENTWISE_LIMIT by the triangle inequality."""
    if (error := value_error(x, contract)) is not None:
        return _of_values(x, W, o) + x.dropped(W) @ error
    return _of_values(x, W, o)


def _of_values(x: Intermediates, W: np.ndarray, o: np.ndarray) -> np.ndarray:
    v, c = x.v, x.c
    if W.size * v.shape[-1] > ELEMENTWISE_LIMIT:
        return x.dropped(W) @ x.v_size + W.sum(-1, keepdims=True) * np.abs(o)
    # One head after the other in one array: new memory of this size takes longer to come by than to fill.
    spread, apart = np.empty(o.shape), np.empty((*W.shape[-2:], v.shape[-1]))
    for head in np.ndindex(o.shape[:-2]):
        met = v[head][None, :, :] if c is None else c[head][:, :, None] * v[head][None, :, :]
        np.subtract(met, o[head][:, None, :], out=apart)
        spread[head] = (W[head][:, None, :] @ np.abs(apart, out=apart))[:, 0]
    return spread


def visible_range(x: Intermediates, c: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """Largest and smallest visible value of each column, as a kernel may have it, [.., Sq, Dv]; 0 for empty rows."""
    high, low, error = np.zeros(x.O.shape), np.zeros(x.O.shape), value_error(x, c)
    most, least = (x.v, x.v) if error is None else (x.v + error, x.v - error)
    for column in range(x.v.shape[-1]):
        above, below = (x.dropped(values[..., None, :, column]) for values in (most, least))
        high[..., column] = np.where(x.seen, above, -np.inf).max(axis=-1, initial=-np.inf)
        low[..., column] = np.where(x.seen, below, np.inf).min(axis=-1, initial=np.inf)
    empty = x.keys == 0
    return np.where(empty, 0.0, high), np.where(empty, 0.0, low)

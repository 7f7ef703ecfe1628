"""Rotary positions: rows of q and k turned by their positions, in NumPy.

Su et al., arXiv 2104.09864. Column pairs of row i are turned by position_i base^(-2m / R); a pair is the columns m and
m + R/2 ("half") or 2m and 2m + 1 ("interleaved"). Angles are found in float32, or float64 for float64, cosines and
sines rounded to the dtype of what they turn, as Hugging Face's models do. The gradient of a turn is the turn back.
"""

import numpy as np

OPTIONS = ("rotary", "rotary_base", "rotary_dim", "rotary_query_positions", "rotary_key_positions")
#: The base where the caller gives none.
BASE = 10000.0


def turned_columns(D: int, rotary_dim: int | None) -> int:
    """Return R, the number of columns to turn: ``rotary_dim`` if it is given, else D, less 1 if D is odd."""
    return D - D % 2 if rotary_dim is None else rotary_dim


def pairs(rotary: str, R: int) -> tuple[slice, slice]:
    """Return the first and the second columns of all pairs."""
    return (slice(0, R // 2), slice(R // 2, R)) if rotary == "half" else (slice(0, R, 2), slice(1, R, 2))


def turned_array(
    x: np.ndarray,
    positions: np.ndarray,
    *,
    rotary: str | None,
    rotary_base: float | None,
    rotary_dim: int | None,
    back: bool = False,
) -> np.ndarray:
    """Turn the rows of x [.., S, D] by their positions [.., S]; without rotary positions they stay."""
    if rotary is None:
        return x
    D = x.shape[-1]
    R = turned_columns(D, rotary_dim)
    frequencies = np.power(rotary_base or BASE, -np.arange(0, R, 2, dtype=x.dtype) / x.dtype.type(R or 1))
    angles = positions[..., None].astype(x.dtype) * frequencies.astype(x.dtype)
    cos, sin = np.cos(angles), np.sin(-angles if back else angles)
    one, other = pairs(rotary, R)
    y = x.copy()
    y[..., one] = x[..., one] * cos - x[..., other] * sin
    y[..., other] = x[..., other] * cos + x[..., one] * sin
    return y


def places(given: np.ndarray | None, first: int | np.ndarray, S: int) -> np.ndarray:
    """Return integers that broadcast to [B, H, S]: ``given``, [B, 1, S, 1] or [B, 1, 1, S], else from ``first`` on.

    ``first`` is a number, or one for each batch entry, [B, 1, 1, 1].
    """
    if given is not None:
        return given.reshape(len(given), 1, -1)
    return np.arange(S) + (first if isinstance(first, int) else first[..., 0])


def first_position(alignment: str, Sq: int, Sk: int) -> int:
    """Return the key that query 0 is aligned with: queries count from there, keys from 0."""
    return Sk - Sq if alignment == "bottom_right" else 0

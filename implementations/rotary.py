"""Rotary positions: rows of q and k turned by their positions, in NumPy.

Su et al., arXiv 2104.09864. Column pairs of row i are turned by position_i base^(-2m / R); a pair is the columns m and
m + R/2 ("half") or 2m and 2m + 1 ("interleaved"). Angles are found in float32, or float64 for float64, cosines and
sines rounded to the dtype of what they turn, as Hugging Face's models do. The gradient of a turn is the turn back.
"""

import numpy as np

OPTIONS = ("rotary", "rotary_base", "rotary_dim")
#: The base where the caller gives none.
BASE = 10000.0


def turned_columns(D: int, rotary_dim: int | None) -> int:
    """R: all columns, less the last of an odd number, unless the caller says how many."""
    return D - D % 2 if rotary_dim is None else rotary_dim


def pairs(rotary: str, R: int) -> tuple[slice, slice]:
    """The first and the second columns of all pairs."""
    return (slice(0, R // 2), slice(R // 2, R)) if rotary == "half" else (slice(0, R, 2), slice(1, R, 2))


def turned_array(
    x: np.ndarray,
    first: int,
    *,
    rotary: str | None,
    rotary_base: float | None,
    rotary_dim: int | None,
    back: bool = False,
) -> np.ndarray:
    """Turn the rows of x [.., S, D], whose positions count from ``first``; without rotary positions they stay."""
    if rotary is None:
        return x
    S, D = x.shape[-2:]
    R = turned_columns(D, rotary_dim)
    frequencies = np.power(rotary_base or BASE, -np.arange(0, R, 2, dtype=x.dtype) / x.dtype.type(R or 1))
    angles = np.arange(first, first + S, dtype=x.dtype)[:, None] * frequencies.astype(x.dtype)
    cos, sin = np.cos(angles), np.sin(-angles if back else angles)
    one, other = pairs(rotary, R)
    y = x.copy()
    y[..., one] = x[..., one] * cos - x[..., other] * sin
    y[..., other] = x[..., other] * cos + x[..., one] * sin
    return y


def first_position(alignment: str, Sq: int, Sk: int) -> int:
    """The key that query 0 is aligned with: queries count from there, keys from 0."""
    return Sk - Sq if alignment == "bottom_right" else 0

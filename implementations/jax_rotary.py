"""Rotary positions in JAX, as operations that it differentiates; the formula is that of ``rotary``."""

import jax.numpy as jnp
from jax import Array

from .rotary import BASE, pairs, turned_columns


def turned(
    x: Array, positions: Array | None, *, rotary: str | None, rotary_base: float | None, rotary_dim: int | None
) -> Array:
    """Turn the rows of x [B, H, S, D] by positions [B, 1, S, 1] or [B, 1, 1, S], or counted from 0.

    Angles, tables and products are in float32, the turned rows in the dtype of x. Without rotary positions they stay.
    """
    if rotary is None:
        return x
    S, D = x.shape[2:]
    R = turned_columns(D, rotary_dim)
    frequencies = (rotary_base or BASE) ** (-jnp.arange(0, R, 2, dtype=jnp.float32) / max(R, 1))
    at = jnp.arange(S) if positions is None else positions.reshape(len(positions), 1, -1)
    angles = at[..., None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    one, other = pairs(rotary, R)
    a, b = x[..., one].astype(jnp.float32), x[..., other].astype(jnp.float32)
    y = x.at[..., one].set((a * cos - b * sin).astype(x.dtype))
    return y.at[..., other].set((b * cos + a * sin).astype(x.dtype))

"""Rotary positions in PyTorch, as operations that it differentiates; the formula is that of ``rotary``.

Cosines and sines are computed from positions, or are rows of tables that the caller has.
"""

from typing import Any

import torch
from torch import Tensor

from .rotary import BASE, pairs, turned_columns


def places(given: Tensor | None, first: int | Tensor, S: int, device: torch.device) -> Tensor:
    """Return integers that broadcast to [B, H, S]: ``given``, [B, 1, S, 1] or [B, 1, 1, S], else from ``first`` on.

    ``first`` is a number, or one for each batch entry, [B, 1, 1, 1].
    """
    if given is not None:
        return given.reshape(len(given), 1, -1)
    return torch.arange(S, device=device) + (first if isinstance(first, int) else first[..., 0])


def angles(positions: Tensor, R: int, rotary_base: float | None, dtype: torch.dtype) -> Tensor:
    """Compute the angle of each pair, [.., S, R/2] in ``dtype``, from positions [.., S]."""
    work: Any = {"dtype": dtype, "device": positions.device}
    frequencies = 1.0 / (rotary_base or BASE) ** (torch.arange(0, R, 2, **work) / max(R, 1))
    return positions[..., None].to(dtype) * frequencies


def turned(
    x: Tensor,
    positions: Tensor,
    *,
    rotary: str | None,
    rotary_base: float | None,
    rotary_dim: int | None,
    back: bool = False,
) -> Tensor:
    """Turn the rows of x [.., S, D] by their positions [.., S]; without rotary positions they stay."""
    if rotary is None:
        return x
    R = turned_columns(x.shape[-1], rotary_dim)
    theta = angles(positions, R, rotary_base, torch.promote_types(x.dtype, torch.float32))
    return turned_by(x, theta.cos().to(x.dtype), (-theta if back else theta).sin().to(x.dtype), rotary)


def turned_by(x: Tensor, cos: Tensor, sin: Tensor, rotary: str) -> Tensor:
    """Turn the rows of x [.., S, D] by cosines and sines [.., S, R/2] of the same dtype."""
    R = 2 * cos.shape[-1]
    a, b = (x[..., columns] for columns in pairs(rotary, R))
    both = a * cos - b * sin, b * cos + a * sin
    joined = torch.cat(both, -1) if rotary == "half" else torch.stack(both, -1).flatten(-2)
    return torch.cat([joined, x[..., R:]], -1)

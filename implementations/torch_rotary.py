"""Rotary positions in PyTorch, as operations that it differentiates; the formula is that of ``rotary``."""

from typing import Any

import torch
from torch import Tensor

from .rotary import BASE, pairs, turned_columns


def pair_angles(positions: Tensor, R: int, rotary_base: float | None) -> Tensor:
    """From positions [.., S], numbers of the arithmetic they are found in, to the angle of each pair [.., S, R/2]."""
    work: Any = {"dtype": positions.dtype, "device": positions.device}
    frequencies = 1.0 / (rotary_base or BASE) ** (torch.arange(0, R, 2, **work) / max(R, 1))
    return positions[..., None] * frequencies


def turned(
    x: Tensor, first: int, *, rotary: str | None, rotary_base: float | None, rotary_dim: int | None, back: bool = False
) -> Tensor:
    """Turn the rows of x [.., S, D], whose positions count from ``first``; without rotary positions they stay."""
    if rotary is None:
        return x
    S, D = x.shape[-2:]
    R = turned_columns(D, rotary_dim)
    work: Any = {"dtype": torch.promote_types(x.dtype, torch.float32), "device": x.device}
    theta = pair_angles(torch.arange(first, first + S, **work), R, rotary_base)
    cos, sin = theta.cos().to(x.dtype), (-theta if back else theta).sin().to(x.dtype)
    a, b = (x[..., columns] for columns in pairs(rotary, R))
    both = a * cos - b * sin, b * cos + a * sin
    joined = torch.cat(both, -1) if rotary == "half" else torch.stack(both, -1).flatten(-2)
    return torch.cat([joined, x[..., R:]], -1)

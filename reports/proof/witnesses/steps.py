"""Problems by their numbers, and roundings that ``adversary.arithmetic`` leaves out: of pieces, and by powers of 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_spec.emulation.split import NormalizedSplitAttention
from attn_spec.problem.problem import Problem

from ..adversary.arithmetic import Adversary


class Pieces(Adversary):
    """Products of pieces, which are rounded and added one by one."""

    def products(self, x: Any, y: Any) -> list[Tensor]:
        (product,) = super().products(x, y)
        count = self.c.multiplicand_pieces * (self.c.multiplicand_pieces + 1) // 2
        small = product * 2.0**-20  # pieces of a product may be as small as that
        return [product - (count - 1) * small, *[small] * (count - 1)]


class PowersUnderflow(Adversary):
    """Products with powers of 2 that underflow."""

    def times(self, x: Any, constant: Any, stage: str) -> Tensor:
        y = super().times(x, constant, stage)
        tiny = y.detach().abs() < self.c.format(stage).smallest_normal
        return torch.where(tiny, self.round(x * constant, stage), y)


class ManyParts(NormalizedSplitAttention):
    """Parts of one key each."""

    splits = 38


def given(q: Sequence[Any], k: Sequence[Any], v: Sequence[Any], **options: Any) -> Problem:
    """Return a problem of these queries, keys and values."""
    tensors = {name: np.array(x, dtype=np.float64)[None, None] for name, x in (("q", q), ("k", k), ("v", v))}
    return Problem(**tensors, dtypes="float64", **options)


def many_light(score: float, step: float = 0.0, value: float = 1024.0) -> Problem:
    """Make one key of value 0, and 40 of some value whose scores fall from ``score`` on."""
    scores = [[0.0], *([score - step * i] for i in range(40))]
    return given([[1]], scores, [[0, 0], *[[value, value / 2]] * 40], scale=1.0)

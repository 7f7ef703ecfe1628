"""Layouts of one tensor: the order of its axes, and the two maps between a layout and [B, H, S, D].

A layout that lacks the batch axis, or the batch and head axes, holds one batch entry or one head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Axes of q, k, v, the output and their gradients inside attn-spec: batch, heads, length, dimension.
AXES = "BHSD"


@dataclass(frozen=True)
class Layout:
    """The order of the axes of a tensor. Two letters in one name are one joined axis, the second varying fastest."""

    axes: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.axes)

    @property
    def lacks(self) -> str:
        """Axes of which the layout holds one entry: none, "B" or "BH"."""
        return "".join(axis for axis in AXES if axis not in "".join(self.axes))

    @property
    def joins_heads(self) -> bool:
        """True if heads and dimensions are one axis, so that the number of heads does not follow from a shape."""
        return "HD" in self.axes

    def places(self, names: str) -> tuple[int, ...]:
        """Return the indices of the named axes; axes that the layout lacks or joins are left out."""
        return tuple(self.axes.index(name) for name in names if name in self.axes)

    @property
    def _order(self) -> str:
        """Letters of all axes, those first of which the layout holds one entry."""
        return self.lacks + "".join(self.axes)

    def laid_out(self, x: Any) -> Any:
        """Return an array or tensor [B, H, S, D] in the layout; an axis that the layout lacks must have one entry."""
        return self.without_lacking(reordered(x, AXES, self._order)).reshape(self.shape(tuple(x.shape)))

    def read(self, x: Any, heads: int = 1) -> Any:
        """Return an array or tensor of the layout as [B, H, S, D]; the inverse of :meth:`laid_out`.

        ``heads`` is the number of heads, which is needed if they are joined. Raises :class:`ValueError` for an array
        with another number of axes.
        """
        lengths = dict.fromkeys(self.lacks, 1)
        for joined, length in zip(self.axes, x.shape, strict=True):
            lengths |= {"H": heads, "D": length // heads} if joined == "HD" else {joined: length}
        return reordered(x.reshape([lengths[axis] for axis in self._order]), self._order, AXES)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the layout of a tensor of shape [B, H, S, D]."""
        lengths = dict(zip(AXES, shape, strict=True))
        return tuple(math.prod(lengths[axis] for axis in joined) for joined in self.axes)

    def without_lacking(self, x: Any) -> Any:
        """Return an array [B, H, ..] without the axes that the layout lacks, each of which must have one entry."""
        return x[(0,) * len(self.lacks)]

    def with_lacking(self, x: Any) -> Any:
        """Return an array with the axes that the layout lacks; the inverse of :meth:`without_lacking`."""
        return x[(None,) * len(self.lacks)]

    def place(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the layout of the element at ``index`` [b, h, s, d]; the layout joins no axes."""
        return tuple(index[AXES.index(axis)] for axis in self.axes)

    def index(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index [b, h, s, d] of the element at ``place``; the inverse of :meth:`place`."""
        return tuple(dict(zip(self.axes, place, strict=True)).get(axis, 0) for axis in AXES)


def reordered(x: Any, given: Sequence[str], wanted: Sequence[str]) -> Any:
    """Return an array or tensor whose axes are named ``given``, with its axes in the order ``wanted``."""
    now = list(given)
    for place, axis in enumerate(wanted):
        other = now.index(axis)
        if other != place:
            x = x.swapaxes(place, other)
            now[place], now[other] = now[other], now[place]
    return x

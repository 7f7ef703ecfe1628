"""Presentations of q, k, v to a kernel, and of its output and gradients: the order and the number of their axes.

In a presentation without the batch axis, or without batch and head axes, the kernel is called once for each entry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem.problem import Problem

#: Axes of q, k, v, O and their gradients inside attn-spec.
AXES = "BHSD"


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """A row of the table of presentations."""

    #: Axes of the tensors that a kernel is given, in words.
    says: str
    #: Axes of a tensor in terms of AXES; two letters in one name are one joined axis, the second varying fastest.
    axes: tuple[str, ...]

    @property
    def looped(self) -> str:
        """Axes over which the kernel is called once per entry: none, "B" or "BH"."""
        return "".join(axis for axis in AXES if axis not in "".join(self.axes))

    @property
    def joins_heads(self) -> bool:
        """True if heads and dimensions are one axis, so that the kernel needs the numbers of heads as arguments."""
        return "HD" in self.axes

    def places(self, names: str) -> tuple[int, ...]:
        """Return the indices of the named axes; axes that a kernel does not see as axes of their own are left out."""
        return tuple(self.axes.index(name) for name in names if name in self.axes)

    @property
    def _order(self) -> str:
        """Letters of the axes, the looped ones first."""
        return self.looped + "".join(self.axes)

    def hand(self, x: Any) -> Any:
        """Return an array or tensor [B, H, S, D] in the presentation; each looped axis must have one entry."""
        return self.rows(_reordered(x, AXES, self._order)).reshape(self.shape(tuple(x.shape)))

    def rows(self, x: Any) -> Any:
        """Return an array [B, H, ..] without the looped axes, each of which must have one entry."""
        return x[(0,) * len(self.looped)]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the presentation of a tensor of shape [B, H, S, D]."""
        lengths = dict(zip(AXES, shape, strict=True))
        return tuple(math.prod(lengths[axis] for axis in joined) for joined in self.axes)

    def all_rows(self, x: Any) -> Any:
        """Return an array with the looped axes added, each with one entry; the inverse of :meth:`rows`."""
        return x[(None,) * len(self.looped)]

    def back(self, x: Any, heads: int) -> Any:
        """Return an array or tensor of the presentation as [B, H, S, D] with ``heads`` heads; the inverse of
        :meth:`hand`.
        """
        lengths = dict.fromkeys(self.looped, 1)
        for joined, length in zip(self.axes, x.shape, strict=True):
            lengths |= {"H": heads, "D": length // heads} if joined == "HD" else {joined: length}
        return _reordered(x.reshape([lengths[axis] for axis in self._order]), self._order, AXES)

    def parts(self, problem: Problem) -> Iterator[Problem]:
        """Yield the problems that a kernel is called for, in the order of batch entries and heads."""
        entries = range(problem.batch) if "B" in self.looped else [None]
        for entry in entries:
            one = problem if entry is None else problem.take("B", [entry])
            heads = range(problem.kv_heads) if "H" in self.looped else [None]
            yield from (one if head is None else one.take("H", [head]) for head in heads)

    def shares(self, name: str, problem: Problem) -> bool:
        """Return whether several calls share an option's tensor, so that its gradient is a sum over these calls."""
        broadcast = [axis for axis in problem.broadcast_axes(name) if axis < len(self.looped)]
        return any(problem.score_shape[axis] > 1 for axis in broadcast)

    def part(self, values: np.ndarray, number: int) -> np.ndarray:
        """Return the elements of an array [B, H, ..] that belong to the ``number``-th call."""
        if not self.looped:
            return values
        entry, head = divmod(number, values.shape[1]) if "H" in self.looped else (number, slice(None))
        return values[entry : entry + 1, head : head + 1] if isinstance(head, int) else values[entry : entry + 1]

    def whole(self, parts: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Return the parts of all calls joined to an array of ``shape`` [B, H, ..]."""
        return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape)


def _reordered(x: Any, given: str, wanted: str) -> Any:
    """Return an array or tensor whose axes are named ``given``, with its axes in the order ``wanted``."""
    now = list(given)
    for place, axis in enumerate(wanted):
        other = now.index(axis)
        if other != place:
            x = x.swapaxes(place, other)
            now[place], now[other] = now[other], now[place]
    return x


#: Every presentation by the name a kernel declares.
PRESENTATIONS: dict[str, Presentation] = {
    "BHSD": Presentation(says="batch, heads, length, dimension", axes=("B", "H", "S", "D")),
    "BSHD": Presentation(says="batch, length, heads, dimension", axes=("B", "S", "H", "D")),
    "BS(HD)": Presentation(says="batch, length, the dimensions of all heads side by side", axes=("B", "S", "HD")),
    "HSD": Presentation(says="one batch entry at a time: heads, length, dimension", axes=("H", "S", "D")),
    "SD": Presentation(says="one head at a time: length, dimension", axes=("S", "D")),
}

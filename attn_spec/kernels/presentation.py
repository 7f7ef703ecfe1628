"""Presentations of q, k, v to a kernel, and of its output and gradients: the order and the number of their axes.

A presentation without the axis of batch entries, or of heads too, is called for one of them after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.problem.problem import Problem

#: Axes of q, k, v, O and their gradients as attn-spec holds them.
AXES = "BHSD"


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """All that is known of one presentation."""

    #: What a kernel is given.
    says: str
    #: The axes of a tensor, in terms of AXES; two of them in one are joined, those of the second side by side.
    axes: tuple[str, ...]

    @property
    def looped(self) -> str:
        """The axes that a kernel is given one entry of: none, "B" or "BH"."""
        return "".join(axis for axis in AXES if axis not in "".join(self.axes))

    @property
    def joins_heads(self) -> bool:
        """Return whether a kernel needs the numbers of heads as arguments."""
        return "HD" in self.axes

    def places(self, names: str) -> tuple[int, ...]:
        """Return the places of axes named by letters of AXES, without those that a kernel does not see on their own."""
        return tuple(self.axes.index(name) for name in names if name in self.axes)

    @property
    def _order(self) -> str:
        """The axes one by one, the looped ones first."""
        return self.looped + "".join(self.axes)

    def hand(self, x: Any) -> Any:
        """An array or tensor [B, H, S, D] as a kernel is given it; a looped axis has one entry."""
        return self.rows(_reordered(x, AXES, self._order)).reshape(self.shape(tuple(x.shape)))

    def rows(self, x: Any) -> Any:
        """[B, H, ..] in that order of axes without those that a kernel is given one entry of."""
        return x[(0,) * len(self.looped)]

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which a kernel is given, and gives, a tensor of shape [B, H, S, D]."""
        lengths = dict(zip(AXES, shape, strict=True))
        return tuple(math.prod(lengths[axis] for axis in joined) for joined in self.axes)

    def all_rows(self, x: Any) -> Any:
        """The inverse of :meth:`rows`."""
        return x[(None,) * len(self.looped)]

    def back(self, x: Any, heads: int) -> Any:
        """The inverse of :meth:`hand` for an array or tensor of ``heads`` heads."""
        lengths = dict.fromkeys(self.looped, 1)
        for joined, length in zip(self.axes, x.shape, strict=True):
            lengths |= {"H": heads, "D": length // heads} if joined == "HD" else {joined: length}
        return _reordered(x.reshape([lengths[axis] for axis in self._order]), self._order, AXES)

    def parts(self, problem: Problem) -> Iterator[Problem]:
        """Cut a problem into those that a kernel is called for, in the order of entries and heads."""
        entries = range(problem.batch) if "B" in self.looped else [None]
        for entry in entries:
            one = problem if entry is None else problem.take("B", [entry])
            heads = range(problem.kv_heads) if "H" in self.looped else [None]
            yield from (one if head is None else one.take("H", [head]) for head in heads)

    def shares(self, name: str, problem: Problem) -> bool:
        """Return whether several calls share one option: its gradient is their sum, which the kernel does not make."""
        broadcast = [axis for axis in problem.broadcast_axes(name) if axis < len(self.looped)]
        return any(problem.score_shape[axis] > 1 for axis in broadcast)

    def part(self, values: np.ndarray, number: int) -> np.ndarray:
        """Return the elements of [B, H, ..] that belong to the part of that number."""
        if not self.looped:
            return values
        entry, head = divmod(number, values.shape[1]) if "H" in self.looped else (number, slice(None))
        return values[entry : entry + 1, head : head + 1] if isinstance(head, int) else values[entry : entry + 1]

    def whole(self, parts: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
        """Parts, each [1, H, ..], [1, 1, ..] or all there is, as an array of ``shape`` [B, H, ..]."""
        return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape)


def _reordered(x: Any, given: str, wanted: str) -> Any:
    """An array or tensor whose axes have these names, in the order wanted."""
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

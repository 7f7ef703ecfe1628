"""Arrays as a C function is passed them: an address, a shape, and strides in elements."""

from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from attn_spec.kernels.c_abi.fence import Fence


class Passed:
    """An array in memory that a C function may be passed, with all entries along its axes.

    The function is told the strides of some axes, each of which must be at most the number in ``told``. An array whose
    other strides are not those of a row-major array is copied. Row-major arrays lie inside a :class:`Fence`.
    """

    def __init__(self, array: np.ndarray, shape: Sequence[int], told: Mapping[int, int]) -> None:
        self._given = array[(None,) * (len(shape) - array.ndim)]
        whole = np.broadcast_to(self._given, shape)
        packed = packed_strides(shape)
        long = [axis for axis, length in enumerate(shape) if length > 1] if whole.size else []
        if not all(step == packed[axis] or abs(step) <= told.get(axis, -1) for axis, step in _steps(whole, long)):
            whole = np.ascontiguousarray(whole)
        self._array, self.shape = whole, tuple(shape)
        row_major = all(step == packed[axis] for axis, step in _steps(whole, long))
        #: Strides in elements; along an axis with one entry that of a row-major array.
        self.strides = tuple({**dict(enumerate(packed)), **dict(_steps(whole, long))}.values())
        self._fence = Fence(whole.nbytes) if row_major else None
        #: Address of the first element.
        self.address = whole.ctypes.data if self._fence is None else self._fence.address
        if self._fence is not None:
            ctypes.memmove(self.address, whole.ctypes.data, whole.nbytes)

    def overrun(self) -> str:
        """Return "before" or "behind" if the function wrote there, next to a row-major array; else an empty text."""
        return "" if self._fence is None else self._fence.overrun()

    def take_back(self) -> None:
        """Write into the given array what the function wrote into a copy of it."""
        if self._fence is None or not self._array.size:
            return
        now = np.frombuffer(ctypes.string_at(self.address, self._array.nbytes), self._array.dtype)
        now = now.reshape(self.shape)[tuple(map(slice, self._given.shape))]
        if now.tobytes() != self._given.tobytes():
            self._given[...] = now


def packed_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major array."""
    return tuple(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1]


def _steps(array: np.ndarray, axes: Sequence[int]) -> list[tuple[int, int]]:
    """Return some axes of an array, each with its stride in elements."""
    return [(axis, array.strides[axis] // array.itemsize) for axis in axes]

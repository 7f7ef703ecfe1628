"""Layouts of a tensor in memory that a caller may pass to a kernel; the values are unchanged.

Each function takes and returns a tensor with at least two axes, of a framework with strides. Memory that a kernel must
not read holds NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import strided
from attn_spec.kernels.limits import NotTaken

#: Offset in elements that a signed 32-bit integer cannot hold.
FAR = 2**31
#: Elements of which strides of :func:`far_apart` are multiples. A kernel that reads 16 bytes at a time needs rows that
#: begin at multiples of 16 bytes.
ALIGNED = 64


def unchanged(tensor: Any) -> Any:
    """Return the tensor itself."""
    return tensor


def swapped(tensor: Any, first: int = -3, second: int = -2) -> Any:
    """Return a tensor of the same values with two axes swapped in memory, as heads and lengths of a fused projection.

    The two axes of a matrix are swapped whatever ``first`` and ``second`` are.
    """
    first, second = (first, second) if tensor.ndim > 2 else (0, 1)
    return strided(tensor).packed(tensor.swapaxes(first, second)).swapaxes(first, second)


def sliced(tensor: Any) -> Any:
    """Return a tensor of the same values inside a larger buffer of NaN, as a slice of packed q, k, v."""
    *outer, S, D = tensor.shape
    inner = strided(tensor).of_nan(tensor, (*outer, S + 2, D + 32))[..., 1 : S + 1, 16 : D + 16]
    inner[...] = tensor
    return inner


def by_columns(tensor: Any) -> Any:
    """Return a tensor of the same values whose layout [.., S, D] is [.., D, S], as in a key cache with contiguous
    columns.
    """
    return swapped(tensor, -2, -1)


def spaced(tensor: Any) -> Any:
    """Return a tensor of the same values whose last axis has stride 2: a NaN follows each number in memory."""
    *outer, D = tensor.shape
    every_second = strided(tensor).of_nan(tensor, (*outer, 2 * D))[..., ::2]
    every_second[...] = tensor
    return every_second


#: Layouts with a stride of 1 along the last axis.
OF_LAST_STRIDE_ONE = (unchanged, swapped, sliced)
#: Layouts in which the last axis has another stride, except the first.
OF_OTHER_LAST_STRIDE = (unchanged, by_columns, spaced)


def each_its_own(
    rng: np.random.Generator, ways: Sequence[Callable[[Any], Any]] = OF_LAST_STRIDE_ONE
) -> Callable[[Any], Any]:
    """Return a function that draws one of the layouts ``ways`` for each tensor."""

    def arrange(tensor: Any) -> Any:
        return ways[int(rng.integers(len(ways)))](tensor)

    return arrange


def expanded(tensor: Any, axes: Iterable[int] = (0,)) -> Any:
    """Return the first entry along each of the axes, broadcast with stride 0; the rest of the buffer is NaN."""
    own = strided(tensor)
    buffer = own.of_nan(tensor, tensor.shape)
    chosen = set(axes)
    leading = tuple(slice(1) if axis in chosen else slice(None) for axis in range(tensor.ndim))
    buffer[leading] = tensor[leading]
    return own.expanded(buffer[leading], tensor.shape)


def expanded_whole(tensor: Any) -> Any:
    """Return the first element of the tensor, broadcast along every axis with stride 0."""
    return expanded(tensor, range(tensor.ndim))


def far_apart(tensor: Any, axis: int) -> Any:
    """Return a tensor of the same values whose last entry along an axis begins past FAR elements.

    A tensor with one entry along the axis is returned unchanged. Raises :class:`NotTaken` if the system refuses the
    memory.
    """
    length, shape = tensor.shape[axis], tuple(tensor.shape)
    if length < 2:
        return tensor
    packed = [
        math.prod(n for place, n in enumerate(shape) if place > own and place != axis) for own in range(len(shape))
    ]
    packed[axis] = (FAR // (length - 1) // ALIGNED + 1) * ALIGNED
    try:
        return strided(tensor).vast(tensor, packed)
    except (MemoryError, OSError, RuntimeError) as error:
        raise NotTaken(f"a buffer of {FAR} elements cannot be allocated: {str(error).splitlines()[0]}") from error


def of_two_axes(tensor: Any) -> Any:
    """Return a mask or bias as [Sq, Sk] if it is shared by all batch entries and heads, else unchanged."""
    leading = tuple(tensor.shape[:-2])
    return tensor[(0,) * len(leading)] if all(length == 1 for length in leading) else tensor


def in_the_same_place(tensors: int) -> Callable[[Any], Any]:
    """Return a function that copies each tensor of later calls into the buffer that the first call used.

    A call has ``tensors`` tensors.
    """
    kept: list[Any] = []
    turn = itertools.count()

    def arrange(tensor: Any) -> Any:
        place = next(turn) % tensors
        if place == len(kept):
            kept.append(tensor)
        kept[place][...] = tensor
        return kept[place]

    return arrange


def after_freed_nan(tensor: Any, shapes: Iterable[tuple[int, ...]]) -> Any:
    """Return the tensor itself, after buffers of NaN with these shapes were allocated and freed."""
    return strided(tensor).free_nan(tensor, list(shapes))

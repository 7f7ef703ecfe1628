"""Other ways for a tensor to lie in memory, values unchanged: what a kernel may be handed by a sound caller.

Each takes and gives a tensor of two axes or more, of a framework that lays tensors in strides. NaN lies wherever a
kernel must not read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import strided
from attn_spec.kernels.limits import NotTaken

#: Elements past which an offset of 32 bits with a sign has no room.
FAR = 2**31
#: Strides of :func:`far_apart` are multiples of this number of elements: a kernel that reads 16 bytes at a time needs
#: rows that begin at multiples of 16 bytes.
ALIGNED = 64


def unchanged(tensor: Any) -> Any:
    """The tensor as it lies."""
    return tensor


def swapped(tensor: Any, first: int = -3, second: int = -2) -> Any:
    """Return a tensor of the same values with two axes swapped in memory, as heads and lengths of a fused projection.

    A tensor of two axes has those two swapped.
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
    """Lay a tensor [.., S, D] in memory as [.., D, S], as a cache of keys does that stores columns together."""
    return swapped(tensor, -2, -1)


def spaced(tensor: Any) -> Any:
    """Lay a tensor so that the stride of its last axis is 2: a NaN follows each of its numbers in memory."""
    *outer, D = tensor.shape
    every_second = strided(tensor).of_nan(tensor, (*outer, 2 * D))[..., ::2]
    every_second[...] = tensor
    return every_second


#: Ways to lay a packed tensor that keep a stride of 1 along its last axis.
OF_LAST_STRIDE_ONE = (unchanged, swapped, sliced)
#: Ways to lay it of which all but the first give another stride there.
OF_OTHER_LAST_STRIDE = (unchanged, by_columns, spaced)


def each_its_own(
    rng: np.random.Generator, ways: Sequence[Callable[[Any], Any]] = OF_LAST_STRIDE_ONE
) -> Callable[[Any], Any]:
    """Make a way to lay tensors that draws one of these ways for each tensor."""

    def arrange(tensor: Any) -> Any:
        return ways[int(rng.integers(len(ways)))](tensor)

    return arrange


def expanded(tensor: Any, axes: Iterable[int] = (0,)) -> Any:
    """Broadcast the first entry along each of the axes with stride 0; the rest of the buffer is NaN."""
    own = strided(tensor)
    buffer = own.of_nan(tensor, tensor.shape)
    chosen = set(axes)
    leading = tuple(slice(1) if axis in chosen else slice(None) for axis in range(tensor.ndim))
    buffer[leading] = tensor[leading]
    return own.expanded(buffer[leading], tensor.shape)


def expanded_whole(tensor: Any) -> Any:
    """Broadcast the first entry along every axis with stride 0."""
    return expanded(tensor, range(tensor.ndim))


def far_apart(tensor: Any, axis: int) -> Any:
    """Return a tensor of the same values, so far apart along an axis that the last begins past FAR elements.

    One entry stays where it is. Raises :class:`NotTaken` where the system does not give so many addresses.
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
        raise NotTaken(f"no buffer of {FAR} elements can be had: {str(error).splitlines()[0]}") from error


def of_two_axes(tensor: Any) -> Any:
    """A mask or a bias that is one for all batch entries and heads, as [Sq, Sk]."""
    leading = tuple(tensor.shape[:-2])
    return tensor[(0,) * len(leading)] if all(length == 1 for length in leading) else tensor


def in_the_same_place(tensors: int) -> Callable[[Any], Any]:
    """Reuse memory: from the second call on, copy each tensor into the buffer that the first call used.

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
    """The tensor itself, after buffers of NaN of these shapes were allocated and freed again."""
    return strided(tensor).free_nan(tensor, list(shapes))

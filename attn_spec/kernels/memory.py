"""Other ways for a tensor to lie in memory, values unchanged: what a kernel may be handed by a sound caller.

Each takes and gives a NumPy array or a torch tensor of four axes. NaN lies wherever a kernel must not read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def of_nan(tensor: Any, shape: tuple[int, ...]) -> Any:
    """A buffer of NaN of the tensor's kind."""
    return np.full(shape, np.nan, tensor.dtype) if isinstance(tensor, np.ndarray) else tensor.new_full(shape, np.nan)


def unchanged(tensor: Any) -> Any:
    """The tensor as it lies."""
    return tensor


def swapped(tensor: Any, first: int = 1, second: int = 2) -> Any:
    """The same values with two axes swapped in memory; heads and lengths are, after a fused projection."""
    view = tensor.swapaxes(first, second)
    packed = np.ascontiguousarray(view) if isinstance(tensor, np.ndarray) else view.contiguous()
    return packed.swapaxes(first, second)


def sliced(tensor: Any) -> Any:
    """The same values inside a larger buffer of NaN, as a slice of packed q, k, v."""
    B, H, S, D = tensor.shape
    inner = of_nan(tensor, (B, H, S + 2, D + 32))[:, :, 1 : S + 1, 16 : D + 16]
    inner[...] = tensor
    return inner


def each_its_own(rng: np.random.Generator) -> Callable[[Any], Any]:
    """A way to lay tensors: packed, swapped or sliced, drawn for each one."""

    def arrange(tensor: Any) -> Any:
        return (unchanged, swapped, sliced)[rng.integers(3)](tensor)

    return arrange


def expanded(tensor: Any, axes: Iterable[int] = (0,)) -> Any:
    """The first entry along each of the axes in place of all, with stride 0; NaN lies behind it in memory."""
    buffer = of_nan(tensor, tuple(tensor.shape))
    chosen = set(axes)
    leading = tuple(slice(1) if axis in chosen else slice(None) for axis in range(tensor.ndim))
    buffer[leading] = tensor[leading]
    first = buffer[leading]
    return np.broadcast_to(first, tensor.shape) if isinstance(tensor, np.ndarray) else first.expand(tensor.shape)


def in_the_same_place(tensors: int) -> Callable[[Any], Any]:
    """A way to lay tensors: the first ``tensors`` as they are, and each later round into the memory of the first."""
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
    for shape in shapes:
        held = [of_nan(tensor, shape) for _ in range(4)]
        del held
    return tensor

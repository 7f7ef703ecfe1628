"""NumPy, with the dtypes of ml_dtypes: bfloat16, and those of 8 bits."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from attn_spec.kernels.frameworks.framework import UNUSED_INTEGERS, Strided


def array_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return exact values as a new array of ``dtype``; bool and integers keep their dtype."""
    if values.dtype != np.float64:
        return np.array(values, order="C")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=getattr(ml_dtypes, dtype, dtype), order="C")


def uncommitted(size: int) -> mmap.mmap:
    """Map ``size`` bytes of zeros, of which the system commits only pages that are touched. Raises OSError."""
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        raise OSError("the system cannot map memory without a file")
    # Python names MAP_NORESERVE since 3.13; it has this value in Linux on all common machines.
    lazily = getattr(mmap, "MAP_NORESERVE", 0x4000)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazily)


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements of the smallest buffer that holds a tensor of this shape and these strides."""
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def strided(buffer: np.ndarray, shape: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """Return a view of a buffer with these strides in bytes.

    NumPy makes none of ml_dtypes' float8_e5m2, which it takes for a float of its own, so bytes are viewed.
    """
    known = buffer.view(np.uint8) if buffer.dtype.itemsize == 1 else buffer
    return np.lib.stride_tricks.as_strided(known, shape, steps).view(buffer.dtype)


class NumPy(Strided):
    """NumPy arrays."""

    name = "numpy"
    usual = ("float64", "float32")
    abilities = frozenset({"strides", "in_place"})
    script_gives = (
        "if dtype == 'bfloat16' or dtype[:6] == 'float8':\n"
        "    import ml_dtypes  # gives NumPy this dtype\n"
        "return array.astype(dtype)"
    )
    script_takes = "return np.asarray(x, dtype=np.float64)"

    @property
    def tensor_type(self) -> type:
        return np.ndarray

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> np.ndarray:
        del device
        return array_of(values, dtype)

    def take(self, tensor: np.ndarray) -> np.ndarray:
        return tensor.astype(np.bool_ if tensor.dtype == np.bool_ else np.float64)

    def of_nan(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.full(shape, UNUSED_INTEGERS.get(self.dtype_of(tensor), np.nan), tensor.dtype)

    def packed(self, tensor: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(tensor)

    def vast(self, tensor: np.ndarray, strides: Sequence[int]) -> np.ndarray:
        size = tensor.itemsize
        buffer = np.frombuffer(uncommitted(size * reach(tensor.shape, strides)), np.uint8).view(tensor.dtype)
        made = strided(buffer, tensor.shape, [size * stride for stride in strides])
        made[...] = tensor
        return made

    def placed(self, buffer: np.ndarray, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        steps = [buffer.itemsize * stride for stride in strides]
        return strided(buffer.reshape(-1)[offset:], tuple(shape), steps)

    def expanded(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.broadcast_to(tensor, shape)


NUMPY = NumPy()

"""How a tensor travels to the worker: the bytes of the buffer it lies in, and where in that it lies.

The judge holds tensors as NumPy arrays, whatever their framework: laid in memory there, they lie so in the worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

#: Dtypes of the arrays that travel, by name.
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("float64", "float32", "float16", "bool", "int64")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
#: Times its own bytes that the buffer of a tensor may take to travel whole; a larger one is laid out in the worker.
WIDEST = 4
#: Bytes of a buffer that travels whole in any case.
SMALL = 2**20


class Places:
    """Numbers of the buffers that tensors lie in: a buffer that the call before used too has the number it had."""

    def __init__(self) -> None:
        self._last: list[tuple[weakref.ref[np.ndarray], int]] = []
        self._next = 0

    def described(self, arrays: Sequence[np.ndarray]) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
        """The descriptions of the tensors of one call, and the arrays whose bytes go with them."""
        now: list[tuple[weakref.ref[np.ndarray], int]] = []
        every, sent = [], []
        for array in arrays:
            found, blob, buffer = _described(array)
            known = [number for ref, number in (*now, *self._last) if ref() is buffer]
            found["place"] = known[0] if known else self._next
            self._next += not known
            now.append((weakref.ref(buffer), found["place"]))
            every.append(found)
            sent.append(blob)
        self._last = now
        return every, sent


def _described(array: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """What is said of a tensor, the array to send, and the buffer that it lies in."""
    shape, size = array.shape, array.itemsize
    found: dict[str, Any] = {"dtype": array.dtype.name, "shape": list(shape), "freed": getattr(array, "freed", [])}
    buffer = _buffer_of(array)
    span = _span(array)
    if array.flags.c_contiguous and buffer.nbytes == array.nbytes:
        return found, array, buffer
    strides = [stride // size for stride in array.strides]
    if span > max(WIDEST * array.nbytes, SMALL):
        return found | {"apart": strides}, array, buffer
    if not buffer.flags.c_contiguous or buffer.dtype != array.dtype or buffer.nbytes > max(WIDEST * span, SMALL):
        return found, array, buffer
    offset = (_address(array) - _address(buffer)) // size
    return found | {"strides": strides, "offset": offset}, buffer.reshape(-1), buffer


def _buffer_of(array: np.ndarray) -> np.ndarray:
    """The array whose memory this is a view of; ``as_strided`` puts an object in between."""
    while True:
        base = array.base if isinstance(array.base, np.ndarray) else getattr(array.base, "base", None)
        if not isinstance(base, np.ndarray):
            return array
        array = base


def _span(array: np.ndarray) -> int:
    """Bytes from the first to the last element, both with."""
    if not array.size:
        return 0
    return array.itemsize + sum((n - 1) * abs(stride) for n, stride in zip(array.shape, array.strides, strict=True))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def array_of(blob: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes as an array of one axis."""
    return blob.view(DTYPES[dtype])

"""Encoding of tensors for the worker: the bytes of the buffer, and the tensor's position and strides in it.

The judge holds tensors as NumPy arrays, whatever their framework. The worker gives each tensor the same memory layout.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from attn_spec.numbers.formats import FLOATS_OF_8_BITS

#: Dtypes of the arrays that are sent, by name.
DTYPES: dict[str, np.dtype[Any]] = {
    **{name: np.dtype(name) for name in ("float64", "float32", "float16", "bool", "int64", "int32", "int8")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", *FLOATS_OF_8_BITS)},
}
#: A buffer is sent whole up to this many times the tensor's own bytes; above that, the worker makes the layout.
WIDEST = 4
#: Size in bytes up to which a buffer is always sent whole.
SMALL = 2**20


class Places:
    """Numbers of buffers: a buffer that the previous call used too keeps its number."""

    def __init__(self) -> None:
        self._last: list[tuple[weakref.ref[np.ndarray], int]] = []
        self._next = 0

    def described(self, arrays: Sequence[np.ndarray]) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
        """Return the descriptions of the tensors of one call, and the arrays whose bytes go with them."""
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
    """Return the description of a tensor, the array to send, and the tensor's buffer."""
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
    """Return the array whose memory this one is a view of; ``as_strided`` puts an object in between."""
    while True:
        base = array.base if isinstance(array.base, np.ndarray) else getattr(array.base, "base", None)
        if not isinstance(base, np.ndarray):
            return array
        array = base


def _span(array: np.ndarray) -> int:
    """Return the number of bytes from the start of the first element to the end of the last; 0 without elements."""
    if not array.size:
        return 0
    return array.itemsize + sum((n - 1) * abs(stride) for n, stride in zip(array.shape, array.strides, strict=True))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def array_of(blob: np.ndarray, dtype: str) -> np.ndarray:
    """Return bytes as an array of this dtype with one axis."""
    return blob.view(DTYPES[dtype])

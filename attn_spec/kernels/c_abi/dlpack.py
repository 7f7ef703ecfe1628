"""Structures of DLPack, by which a C function is told the shape, the strides and the dtype of a tensor.

Source: ``dlpack.h`` of DLPack 1.2, its structures ``DLTensor`` and ``DLManagedTensor`` and the codes in them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

#: Code of the CPU.
CPU = 1
#: Code and number of bits of each dtype.
DTYPES = {
    "int8": (0, 8),
    "int32": (0, 32),
    "int64": (0, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "bool": (6, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
}


class Device(ctypes.Structure):
    """Device of a tensor."""

    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class DataType(ctypes.Structure):
    """Dtype of a tensor."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    """A tensor in memory of the caller; strides are in elements."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    """A tensor with a deleter, which is null here: the caller keeps the memory."""

    _fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


def structure(address: int, shape: Sequence[int], strides: Sequence[int], dtype: str) -> DLManagedTensor:
    """Return the structure of a tensor on the CPU, which begins with its ``DLTensor``."""
    lengths, steps = ((ctypes.c_int64 * len(every))(*every) for every in (shape, strides))
    code, bits = DTYPES[dtype]
    data = address if all(shape) else None  # DLPack asks for a null pointer to a tensor without elements
    tensor = DLTensor(data, Device(CPU, 0), len(shape), DataType(code, bits, 1), lengths, steps, 0)
    return DLManagedTensor(tensor, None, None)

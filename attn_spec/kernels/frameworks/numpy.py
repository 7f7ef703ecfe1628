"""NumPy, whose bfloat16 is that of ml_dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from attn_spec.kernels.frameworks.framework import NO_POSITION, Strided


def array_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Exact values as a new array of ``dtype``, bool and integers as they are."""
    if values.dtype != np.float64:
        return np.array(values, order="C")
    with np.errstate(over="ignore"):
        return np.array(values, dtype=ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype, order="C")


class NumPy(Strided):
    """Arrays."""

    name = "numpy"
    usual = ("float64", "float32")
    abilities = frozenset({"strides", "in_place"})
    script_gives = "if dtype == 'bfloat16':\n    import ml_dtypes  # gives NumPy this dtype\nreturn array.astype(dtype)"
    script_takes = "return np.asarray(x, dtype=np.float64)"

    @property
    def tensor_type(self) -> type:
        return np.ndarray

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> np.ndarray:
        del device
        return array_of(values, dtype)

    def take(self, tensor: np.ndarray) -> np.ndarray:
        return tensor if tensor.dtype == np.bool_ else tensor.astype(np.float64)

    def of_nan(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.full(shape, NO_POSITION if tensor.dtype == np.int64 else np.nan, tensor.dtype)

    def packed(self, tensor: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(tensor)

    def expanded(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.broadcast_to(tensor, shape)


NUMPY = NumPy()

"""Numbers of a format as exact values: rounding to it, spacing, bit equality, JSON.

Inside attn-spec a tensor is a float64 NumPy array whose entries are exactly representable in the problem's
dtype. Every format up to float64 embeds in float64 exactly, so nothing is lost; tensors of a framework are made and
read in ``kernels.frameworks`` alone.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np

from attn_spec.numbers.formats import FORMATS

#: The bits of a float64's exponent.
_EXPONENT = np.int64(0x7FF << 52)

#: Formats that NumPy has too.
_NATIVE: dict[str, type[np.floating[Any]]] = {"float64": np.float64, "float32": np.float32, "float16": np.float16}

#: What arrays are of: truth values, positions, numbers.
_KINDS = ("bool", "int64", "float64")

#: Numbers whose bits are looked at at a time: what is made of them meanwhile takes five times as much as they.
_AT_ONCE = 2**16

#: A tensor of exact values, see the module's docstring.
Values = np.ndarray[Any, np.dtype[np.float64]]


def nearest(x: np.ndarray, dtype: str) -> Values:
    """Round float64 values to ``dtype``, to nearest, ties to even, gradual underflow, overflow to infinity."""
    x = np.asarray(x, dtype=np.float64)
    form = FORMATS[dtype]
    if dtype == "float64":
        return x
    grid = spacing(x, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        y = np.rint(x / grid) * grid
        return np.where(np.abs(y) > form.largest, np.copysign(np.inf, x), y)


def spacing(x: np.ndarray, dtype: str) -> Values:
    """Distance between neighbouring numbers of ``dtype`` in the binade of each ``x`` (the ulp of ``x``).

    The smallest of all where x is not finite.
    """
    form = FORMATS[dtype]
    # A float64 without its sign and fraction is its power of 2; this is the innermost loop of emulated kernels.
    power = (np.asarray(x, dtype=np.float64).view(np.int64) & _EXPONENT).view(np.float64)
    power = np.where(np.isfinite(power), power, 0.0)
    return np.maximum(power, form.smallest_normal) * 2.0 ** (1 - form.precision)


def is_representable(x: np.ndarray, dtype: str) -> bool:
    """Whether every entry of ``x`` is a number of ``dtype`` (infinities and NaN count as numbers)."""
    if dtype == "float64":
        return True
    if dtype in _NATIVE:  # NumPy's cast rounds as nearest does, in a tenth of the time
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.all((x.astype(_NATIVE[dtype]) == x) | np.isnan(x)))
    if dtype == "bfloat16":  # the first half of a float32
        with np.errstate(over="ignore", invalid="ignore"):
            y = x.astype(np.float32)
        return bool(np.all(((y == x) & (y.view(np.uint32) & 0xFFFF == 0)) | np.isnan(x)))
    finite = x[np.isfinite(x)]
    return bool(np.array_equal(nearest(finite, dtype), finite))


def described(x: Any) -> str:
    """An array's type and shape, those of another library's tensor with its class, or the repr of what is neither."""
    if isinstance(x, np.ndarray):
        return f"{x.dtype} {x.shape}"
    shape = getattr(x, "shape", None)
    return repr(x) if shape is None else f"{type(x).__module__}.{type(x).__name__} {tuple(shape)}"


def with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    """A JSON document whose lists are tuples again."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in document.items()}


def lowest_bit_exponent(x: np.ndarray, axis: int) -> np.ndarray:
    """Exponent e of the largest grid 2**e that holds every entry of ``x`` along ``axis`` (5000 for all zeros)."""
    rows = np.moveaxis(x, axis, -1)
    flat, found = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]), np.empty(rows.shape[:-1])
    step = max(_AT_ONCE // max(rows.shape[-1], 1), 1)
    for start in range(0, len(flat), step):
        found.reshape(-1)[start : start + step] = _lowest_bit_exponents(flat[start : start + step])
    return found


def _lowest_bit_exponents(rows: np.ndarray) -> np.ndarray:
    significand, exponent = np.frexp(rows)
    integer = np.abs((significand * 2.0**53).astype(np.int64))
    lowest = integer & -integer
    bit = np.log2(np.maximum(lowest, 1).astype(np.float64)) + exponent - 53
    return np.where(integer != 0, bit, 5000.0).min(axis=-1, initial=5000.0)


def identical(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Elementwise equality of bits: 0.0 differs from -0.0, a NaN equals a NaN of any payload."""
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def encode(x: np.ndarray) -> dict[str, Any]:
    """A JSON document that holds the array bit for bit."""
    kind = x.dtype.name if x.dtype.name in _KINDS else "float64"
    data = zlib.compress(np.ascontiguousarray(x, dtype=kind).tobytes(), 1)  # fast: done for many problems tried
    return {"shape": list(x.shape), "kind": kind, "zlib": base64.b64encode(data).decode()}


def decode(document: dict[str, Any]) -> np.ndarray:
    """Inverse of :func:`encode`; ``ValueError`` or ``KeyError`` for a document it did not write."""
    if document["kind"] not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, not {document['kind']!r}")
    try:
        data = zlib.decompress(base64.b64decode(document["zlib"]))
    except zlib.error as error:
        raise ValueError(f"the array's data is not zlib-compressed: {error}") from error
    return np.frombuffer(data, dtype=document["kind"]).reshape(document["shape"]).copy()

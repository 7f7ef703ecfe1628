"""Numbers of a format as exact values: rounding, spacing, bit equality, JSON.

Inside attn-spec a tensor is a float64 NumPy array whose elements are exactly representable in the problem's dtype.
Float64 represents every number of every supported format, so the conversion loses nothing. Only ``kernels.frameworks``
makes and reads tensors of a framework.
"""

from __future__ import annotations

import base64
import math
import zlib
from typing import Any

import numpy as np

from attn_spec.numbers.formats import EVERY

#: Mask of a float64's exponent bits.
_EXPONENT = np.int64(0x7FF << 52)

#: NumPy types of the formats that NumPy implements too.
_NATIVE: dict[str, type[np.floating[Any]]] = {"float64": np.float64, "float32": np.float32, "float16": np.float16}

#: Element types of arrays in a JSON document: truth values, positions, numbers.
_KINDS = ("bool", "int64", "float64")

#: Elements per chunk of :func:`lowest_bit_exponent`: its temporaries take five times the memory of a chunk.
_AT_ONCE = 2**16

#: Type of a tensor of exact values, see the module's docstring.
Values = np.ndarray[Any, np.dtype[np.float64]]


def nearest(x: np.ndarray, dtype: str) -> Values:
    """Round float64 values to ``dtype``: to nearest, ties to even, gradual underflow, overflow as the format has it.

    A number above the largest, or an infinity, becomes what the format has: an infinity, NaN, or its largest number.
    NaN stays NaN, also where the format has none.
    """
    x = np.asarray(x, dtype=np.float64)
    if dtype == "float64":
        return x
    if dtype in _NATIVE:  # NumPy's cast rounds in the same way, in a tenth of the time
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            return x.astype(_NATIVE[dtype]).astype(np.float64)
    grid = spacing(x, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        y = as_stored(np.rint(x / grid) * grid, dtype)
    form = EVERY[dtype]
    return y if form.signed else np.where(x > 0, np.maximum(y, form.smallest_subnormal), np.nan)


def as_stored(y: np.ndarray, dtype: str) -> Values:
    """Return what ``dtype`` holds for numbers of its grid, of any size: see ``Format.above`` and ``negative_zero``."""
    form = EVERY[dtype]
    if form.above == "largest":
        stored = np.clip(y, -form.largest if form.least is None else form.least, form.largest)
        return stored if form.negative_zero else stored + 0.0
    beyond = np.copysign(np.inf, y) if form.above == "infinity" else np.nan
    stored = np.where(np.abs(y) > form.largest, beyond, y)
    return stored if form.negative_zero else stored + 0.0  # -0.0 + 0.0 is 0.0


def spacing(x: np.ndarray, dtype: str) -> Values:
    """Return the distance between neighbouring numbers of ``dtype`` in the binade of each ``x`` (the ulp of ``x``).

    Where ``x`` is not finite, the distance is the smallest of the format.
    """
    form = EVERY[dtype]
    if form.is_integer:
        return np.ones(np.shape(x))
    # A float64 without its sign and fraction is its power of 2. This function is the innermost loop of emulated
    # kernels.
    power = (np.asarray(x, dtype=np.float64).view(np.int64) & _EXPONENT).view(np.float64)
    power = np.where(np.isfinite(power), power, 0.0)
    return np.maximum(power, form.smallest_normal) * 2.0 ** (1 - form.precision)


def finite(dtype: str) -> Values:
    """Return the finite numbers of a format of 8 bits that are not negative, in ascending order."""
    found = [0.0]
    while found[-1] < EVERY[dtype].largest:
        found.append(found[-1] + spacing(np.array(found[-1]), dtype).item())
    return np.array(found)


def is_representable(x: np.ndarray, dtype: str) -> bool:
    """Return whether ``dtype`` has every element of ``x``: NaN, infinities and -0.0 unless it lacks them."""
    if dtype == "float64":
        return True
    if dtype in _NATIVE:
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.all((x.astype(_NATIVE[dtype]) == x) | np.isnan(x)))
    if dtype == "bfloat16":  # the first half of a float32
        with np.errstate(over="ignore", invalid="ignore"):
            y = x.astype(np.float32)
        return bool(np.all(((y == x) & (y.view(np.uint32) & 0xFFFF == 0)) | np.isnan(x)))
    known = x[~np.isnan(x)]
    if EVERY[dtype].is_integer and known.size < x.size:
        return False
    return bool(identical(nearest(known, dtype), known).all())


def described(x: Any) -> str:
    """Return text that describes ``x``: dtype and shape of an array, class and shape of another library's tensor.

    Anything without a shape is described by its repr.
    """
    if isinstance(x, np.ndarray):
        return f"{x.dtype} {x.shape}"
    shape = getattr(x, "shape", None)
    return repr(x) if shape is None else f"{type(x).__module__}.{type(x).__name__} {tuple(shape)}"


def with_tuples(document: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON document in which every list is replaced by a tuple."""
    return {name: tuple(x) if isinstance(x, list) else x for name, x in document.items()}


def lowest_bit_exponent(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the exponent e of the largest grid 2**e that holds all of ``x`` along ``axis`` (5000 if all are 0)."""
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
    """Compare two arrays bit by bit, for each element: 0.0 differs from -0.0, a NaN equals a NaN of any payload."""
    if a.dtype == b.dtype == np.float64:
        same = a.view(np.int64) == b.view(np.int64)
        return same if same.all() else same | (np.isnan(a) & np.isnan(b))
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))


def encode(x: np.ndarray) -> dict[str, Any]:
    """Return a JSON document that holds the array bit for bit."""
    kind = x.dtype.name if x.dtype.name in _KINDS else "float64"
    data = zlib.compress(np.ascontiguousarray(x, dtype=kind).tobytes(), 1)  # level 1: a run encodes many problems
    return {"shape": list(x.shape), "kind": kind, "zlib": base64.b64encode(data).decode()}


def decode(document: dict[str, Any]) -> np.ndarray:
    """Return the array of a document that :func:`encode` wrote; raise ``ValueError`` or ``KeyError`` for any other."""
    if document["kind"] not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(map(repr, _KINDS))}, not {document['kind']!r}")
    try:
        data = zlib.decompress(base64.b64decode(document["zlib"]))
    except zlib.error as error:
        raise ValueError(f"the array's data is not zlib-compressed: {error}") from error
    return np.frombuffer(data, dtype=document["kind"]).reshape(document["shape"]).copy()

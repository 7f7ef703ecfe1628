"""Tensors in the text of a script: exact numbers, and the functions of the script that read them."""

from __future__ import annotations

import base64
import zlib

import numpy as np

#: Arrays of up to this many elements are written as numbers, larger ones as compressed bytes.
READABLE = 256

#: Functions of a script, with placeholders for the lines of a framework that make a tensor, and that read one.
FUNCTIONS = '''\
def numbers(shape, data, kind="float64"):
    """Make an array of numbers, or of bools."""
    if isinstance(data, str):
        data = np.frombuffer(zlib.decompress(base64.b85decode(data)), dtype=kind)
    return np.array(data, dtype=kind).reshape(shape)


def tensor(shape, data, dtype):
    """Make a tensor of exact values in a dtype; "bool" counts as a dtype."""
    array = numbers(shape, data, "bool" if dtype == "bool" else "float64")
$give


def values(x):
    """Return the exact values of a tensor."""
$take
'''


def tensor_literal(values: np.ndarray, dtype: str) -> str:
    """Return an expression for a tensor of exact values, in terms of the script's ``tensor``."""
    return f"tensor({data(values)}, {dtype!r})"


def data(array: np.ndarray) -> str:
    """Return the shape and the numbers of an array as they are written in a script."""
    if array.size <= READABLE:
        listed = ", ".join(number(x) for x in array.ravel().tolist())
        return f"{array.shape}, [{listed}]"
    packed = base64.b85encode(zlib.compress(np.ascontiguousarray(array).tobytes())).decode()
    return f"{array.shape}, {packed!r}"


def number(x: float) -> str:
    """Return the shortest decimal that is exactly ``x``; a bool unchanged."""
    return repr(x) if np.isfinite(x) else f"float({str(x)!r})"

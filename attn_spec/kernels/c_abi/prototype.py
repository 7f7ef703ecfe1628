"""Prototypes of C functions: a name, the type that is returned, and the type and name of each parameter."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attn_spec.kernels.kernel import KernelError
from attn_spec.nearest_names import suggestion
from attn_spec.numbers.formats import FLOATS_OF_8_BITS


class PrototypeError(KernelError):
    """A prototype cannot be read, or no call can pass what its parameters ask for."""


#: Types of numbers that are real, by their names in C.
REALS: dict[str, Any] = {"float": ctypes.c_float, "double": ctypes.c_double}
#: Types of numbers that are integers, by their names in C.
INTEGERS: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint,
    "long": ctypes.c_long,
    "unsigned long": ctypes.c_ulong,
    "long long": ctypes.c_longlong,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "ptrdiff_t": ctypes.c_ssize_t,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "bool": ctypes.c_bool,
    "_Bool": ctypes.c_bool,
}
#: Structures of DLPack, by their names in C.
STRUCTURES = ("DLTensor", "DLManagedTensor")

_OF_1_BYTE, _OF_2_BYTES = ("bool", "int8", *FLOATS_OF_8_BITS), ("float16", "bfloat16")
#: Dtypes of the numbers that a pointer points to, by the type's name in C. No number of 2 bytes has a type of its own
#: in standard C, so that integers of 2 bytes stand for both formats. A pointer to void points to any dtype.
POINTED: dict[str, tuple[str, ...]] = {
    "float": ("float32",),
    "double": ("float64",),
    **dict.fromkeys(("_Float16", "__fp16", "half", "__half"), ("float16",)),
    **dict.fromkeys(("__bf16", "bfloat16", "nv_bfloat16", "__nv_bfloat16"), ("bfloat16",)),
    **dict.fromkeys(("uint16_t", "int16_t", "unsigned short", "short"), _OF_2_BYTES),
    **dict.fromkeys(("uint8_t", "int8_t", "unsigned char", "signed char", "char"), _OF_1_BYTE),
    **dict.fromkeys(("bool", "_Bool"), ("bool",)),
    **dict.fromkeys(("int32_t", "int"), ("int32",)),
    **dict.fromkeys(("int64_t", "long long", "long"), ("int64",)),
}

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_WHOLE = re.compile(r'\s*(?:extern\s+)?(?:"C"\s+)?([\w\s]+?)\s+(\w+)\s*\(([^()]*)\)\s*;?\s*', re.DOTALL)
_QUALIFIERS = {"const", "restrict", "__restrict", "__restrict__", "struct"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a C function."""

    #: Name, which says what a call passes.
    name: str
    #: Name of its type, or of the type that it points to, without qualifiers.
    type: str
    #: True if it is a pointer.
    points: bool

    def __str__(self) -> str:
        return f"{self.type} *{self.name}" if self.points else f"{self.type} {self.name}"


@dataclass(frozen=True)
class Prototype:
    """A C function as its header declares it."""

    #: Name by which the library exports the function.
    symbol: str
    #: Type of the status that the function returns; None if it returns nothing.
    status: Any
    parameters: tuple[Parameter, ...]

    def named(self, name: str) -> Parameter | None:
        """Return the parameter of this name; None if there is none."""
        return next((each for each in self.parameters if each.name == name), None)


def read(text: str) -> Prototype:
    """Read the prototype of one C function. Raises :class:`PrototypeError`."""
    if (found := _WHOLE.fullmatch(_COMMENT.sub(" ", text))) is None:
        raise PrototypeError(
            f"{' '.join(text.split())!r} is no prototype of one C function; write it as in a header: "
            "'int attention(const float *q, const float *k, const float *v, float *out, int64_t B)'"
        )
    returns, symbol, inside = " ".join(found[1].split()), found[2], found[3]
    if returns != "void" and returns not in INTEGERS:
        raise PrototypeError(
            f"{symbol} returns {returns}; it must return void, or a status of type int that is 0 for success"
        )
    return Prototype(symbol, INTEGERS.get(returns), tuple(_parameters(symbol, inside)))


def _parameters(symbol: str, inside: str) -> Iterator[Parameter]:
    """Yield the parameters between the parentheses of a prototype."""
    if inside.strip() in ("", "void"):
        return
    for text in inside.split(","):
        words = [word for word in text.replace("*", " * ").split() if word not in _QUALIFIERS]
        stars, plain = words.count("*"), [word for word in words if word != "*"]
        if stars > 1 or len(plain) < 2 or not all(word.isidentifier() for word in plain):
            raise PrototypeError(
                f"{symbol} has a parameter {' '.join(text.split())!r}; a parameter is a number or a pointer, "
                "with a type and a name"
            )
        made = Parameter(plain[-1], " ".join(plain[:-1]), bool(stars))
        _check_type(symbol, made)
        yield made


def _check_type(symbol: str, made: Parameter) -> None:
    """Raise :class:`PrototypeError` unless the type of a parameter is known."""
    known = (*STRUCTURES, *POINTED, "void") if made.points else (*REALS, *INTEGERS)
    if made.type not in known:
        near = suggestion(made.type, known, f"; known are {', '.join(known)}")
        what = "points to the type" if made.points else "has the type"
        raise PrototypeError(f"{symbol}: {made.name} {what} {made.type}, which is unknown{near}")

"""The floating-point environment of a thread: its rounding mode, and whether subnormal numbers are flushed to zero.

A library that is compiled with ``-ffast-math`` may change the environment of the process that loads it. Its functions
are called in that environment, and nothing else runs in it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

#: Bytes that hold an environment: 32 on x86-64, 8 on arm64, 16 on macOS.
_SIZE = 256

#: Functions of the C library that this process is linked with.
_PROCESS = ctypes.CDLL(None)

Environment = ctypes.Array[ctypes.c_char]


def current() -> Environment:
    """Return the environment of this thread."""
    kept = ctypes.create_string_buffer(_SIZE)
    _PROCESS.fegetenv(kept)
    return kept


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the environment of this thread behind the block."""
    before = current()
    try:
        yield
    finally:
        _PROCESS.fesetenv(before)


@contextlib.contextmanager
def entered(environment: Environment) -> Iterator[None]:
    """Run the block in an environment, and restore that of this thread behind it."""
    with restored():
        _PROCESS.fesetenv(environment)
        yield

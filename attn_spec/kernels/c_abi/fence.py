"""Memory between two pages that no process may touch, so that a function that leaves its tensor's memory crashes."""

from __future__ import annotations

import ctypes
import mmap
import os

#: Boundary at which the memory begins: no aligned load of a vector is wider, so that none touches the page behind.
ALIGNED = 64
#: Byte between the memory and the pages. Floating-point numbers of such bytes are NaN.
_FILLED = b"\xff"
_NO_ACCESS = 0
#: Functions of the C library that this process is linked with.
_PROCESS = ctypes.CDLL(None, use_errno=True)


class Fence:
    """``size`` bytes of memory, with a page without access before them and another one behind them.

    Fewer than ``ALIGNED`` bytes are left between the memory and the page behind it. Raises :class:`MemoryError`.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        inner = max(-(-size // page), 1) * page
        try:
            self._mapped = mmap.mmap(-1, inner + 2 * page)
        except OSError as error:
            raise MemoryError(f"{inner + 2 * page} bytes cannot be mapped: {error.strerror}") from error
        first = ctypes.addressof(ctypes.c_char.from_buffer(self._mapped))
        self._begin, self._end = first + page, first + page + inner
        ctypes.memset(self._begin, _FILLED[0], inner)
        _close(first, page)
        _close(self._end, page)
        self._size = size
        #: Address of the first byte.
        self.address = self._begin + (inner - size) // ALIGNED * ALIGNED

    def overrun(self) -> str:
        """Return where something was written between the memory and the pages, "before" or "behind"; else ""."""
        end = self.address + self._size
        for side, begin, stop in (("before", self._begin, self.address), ("behind", end, self._end)):
            if ctypes.string_at(begin, stop - begin).strip(_FILLED):
                return side
        return ""


def _close(address: int, size: int) -> None:
    """Forbid every access to some pages. Raises :class:`OSError`."""
    if _PROCESS.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), _NO_ACCESS):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

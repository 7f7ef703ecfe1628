"""Messages over two pipes: a header of JSON and the bytes of tensors. Nothing is unpickled at either end."""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Bytes of a header, at most.
MOST_HEADER = 2**24
#: Bytes of all the tensors of a message, at most.
MOST_BYTES = 2**36
#: Pieces that are written by one call of the system, of which it takes 1,024 at most.
MOST_AT_ONCE = 512
#: Bytes that a pipe holds, where the system grants so many.
PIPE = 2**20

Header = dict[str, Any]


class ChannelError(Exception):
    """A message that is none, or a channel that was closed; the text says what was wrong."""


class ClosedError(ChannelError):
    """A channel whose other end is closed."""


class Channel:
    """Two descriptors, to read messages from and to write them to."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self._deadline: float | None = None
        for end in (reading, writing):
            _widen(end)

    def send(self, header: Header, blobs: Sequence[np.ndarray] = ()) -> None:
        """Send a header of JSON values, and arrays as their bytes. Raises :class:`ClosedError`."""
        packed = [np.ascontiguousarray(blob) for blob in blobs]
        text = json.dumps(header | {"sizes": [blob.nbytes for blob in packed]}).encode()
        every = [memoryview(len(text).to_bytes(8, "little") + text)]
        self._write(every + [blob.reshape(-1).view(np.uint8).data for blob in packed if blob.size])

    def receive(self, seconds: float | None = None) -> tuple[Header, list[np.ndarray]]:
        """The next header, and the bytes that follow it, within so many seconds; memory grows as bytes come.

        Raises :class:`ChannelError`.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds
        length = int.from_bytes(self._read(8).tobytes(), "little")
        if length > MOST_HEADER:
            raise ChannelError(f"a header of {length} bytes, of {MOST_HEADER} at most")
        try:
            header = json.loads(self._read(length).tobytes())
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"a header that is no JSON: {error}") from None
        sizes = header.pop("sizes", None) if isinstance(header, dict) else None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise ChannelError("a header without the sizes of what follows")
        if sum(sizes) > MOST_BYTES:
            raise ChannelError(f"{sum(sizes)} bytes of tensors, of {MOST_BYTES} at most")
        return header, [self._read(size) for size in sizes]

    def _write(self, every: list[memoryview]) -> None:
        while every:
            try:
                written = os.writev(self.writing, every[:MOST_AT_ONCE])
            except OSError as error:
                raise ClosedError(f"nobody reads: {error.strerror}") from None
            while every and written >= len(every[0]):
                written -= len(every.pop(0))
            if written:
                every[0] = every[0][written:]

    def _read(self, size: int) -> np.ndarray:
        """So many bytes."""
        try:
            found = np.empty(size, np.uint8)
        except MemoryError:
            raise ChannelError(f"{size} bytes, for which there is no memory") from None
        left = found.data
        while left:
            self._wait()
            try:
                read = os.readv(self.reading, [left])
            except OSError as error:
                raise ClosedError(f"nothing can be read: {error.strerror}") from None
            if not read:
                raise ClosedError("the other end is closed")
            left = left[read:]
        return found

    def _wait(self) -> None:
        """Return when there is something to read."""
        if self._deadline is not None:
            left = max(self._deadline - time.monotonic(), 0)
            if not select.select([self.reading], [], [], left)[0]:
                raise ChannelError("no answer in time")


def _widen(pipe: int) -> None:
    """Let a pipe hold more; where the system does not, it holds what it did."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
    except (AttributeError, OSError):
        return

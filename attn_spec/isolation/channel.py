"""Messages over two pipes: a JSON header and the bytes of tensors. Neither end unpickles anything."""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Largest size of a header, in bytes.
MOST_HEADER = 2**24
#: Largest total size of the tensors of one message, in bytes.
MOST_BYTES = 2**36
#: Pieces written by one system call, which accepts 1,024 at most.
MOST_AT_ONCE = 512
#: Capacity to request for a pipe, in bytes; the system may grant less.
PIPE = 2**20

Header = dict[str, Any]


class ChannelError(Exception):
    """An invalid message, or a closed channel; the text says what was wrong."""


class ClosedError(ChannelError):
    """A channel whose other end is closed."""


class Channel:
    """Two file descriptors: one to read messages from, one to write them to."""

    def __init__(self, reading: int, writing: int) -> None:
        self.reading, self.writing = reading, writing
        self._deadline: float | None = None
        for end in (reading, writing):
            _widen(end)

    def send(self, header: Header, blobs: Sequence[np.ndarray] = ()) -> None:
        """Send a header of JSON values, followed by the bytes of arrays. Raises :class:`ClosedError`."""
        packed = [np.ascontiguousarray(blob) for blob in blobs]
        text = json.dumps(header | {"sizes": [blob.nbytes for blob in packed]}).encode()
        every = [memoryview(len(text).to_bytes(8, "little") + text)]
        self._write(every + [blob.reshape(-1).view(np.uint8).data for blob in packed if blob.size])

    def receive(self, seconds: float | None = None) -> tuple[Header, list[np.ndarray]]:
        """Receive the next header and the bytes that follow it, within ``seconds``. Memory grows only as bytes arrive.

        Raises :class:`ChannelError` for an invalid message, a closed channel, or if time runs out.
        """
        self._deadline = None if seconds is None else time.monotonic() + seconds
        length = int.from_bytes(self._read(8).tobytes(), "little")
        if length > MOST_HEADER:
            raise ChannelError(f"a header of {length} bytes, above the limit of {MOST_HEADER}")
        try:
            header = json.loads(self._read(length).tobytes())
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"the header is not valid JSON: {error}") from None
        sizes = header.pop("sizes", None) if isinstance(header, dict) else None
        if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
            raise ChannelError("the header does not give the sizes of the tensors that follow")
        if sum(sizes) > MOST_BYTES:
            raise ChannelError(f"{sum(sizes)} bytes of tensors, above the limit of {MOST_BYTES}")
        return header, [self._read(size) for size in sizes]

    def _write(self, every: list[memoryview]) -> None:
        while every:
            try:
                written = os.writev(self.writing, every[:MOST_AT_ONCE])
            except OSError as error:
                raise ClosedError(f"the other end does not read: {error.strerror}") from None
            while every and written >= len(every[0]):
                written -= len(every.pop(0))
            if written:
                every[0] = every[0][written:]

    def _read(self, size: int) -> np.ndarray:
        """Read ``size`` bytes."""
        try:
            found = np.empty(size, np.uint8)
        except MemoryError:
            raise ChannelError(f"there is no memory for {size} announced bytes") from None
        left = found.data
        while left:
            self._wait()
            try:
                read = os.readv(self.reading, [left])
            except OSError as error:
                raise ClosedError(f"the pipe cannot be read: {error.strerror}") from None
            if not read:
                raise ClosedError("the other end is closed")
            left = left[read:]
        return found

    def _wait(self) -> None:
        """Wait until there are bytes to read. Raises :class:`ChannelError` at the deadline."""
        if self._deadline is not None:
            left = max(self._deadline - time.monotonic(), 0)
            if not select.select([self.reading], [], [], left)[0]:
                raise ChannelError("no answer in time")


def _widen(pipe: int) -> None:
    """Request a larger capacity for a pipe; if the system refuses, the pipe keeps its own."""
    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
    except (AttributeError, OSError):
        return

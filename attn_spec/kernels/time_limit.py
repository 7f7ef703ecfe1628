"""Time limit of a block: an exception if Python signals reach it, the end of the process if they do not."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
from collections.abc import Iterator
from types import FrameType

#: Seconds past its time limit after which :func:`last_resort` ends the process of a call that hangs outside Python.
GRACE = 5.0
#: Largest factor by which a limit grows on a crowded machine.
MOST_CROWDED = 8.0
#: Factor on the seconds of a call of a kernel of few signatures, for each of which its first call compiles.
COMPILING = 5


def crowding() -> float:
    """Return how many processes have wanted each core in the last minute: 1 or more, and :data:`MOST_CROWDED` at most.

    A call that shares its core takes as many times as long, and does not hang.
    """
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 1.0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(load / cores, 1.0), MOST_CROWDED)


class OutOfTime(BaseException):
    """A call ran past its time limit; a BaseException, so that kernels do not swallow it."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the block after ``seconds``; no limit outside the main thread or on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def last_resort(seconds: float, stderr: int = 2) -> Iterator[None]:
    """End the process, with the stack on ``stderr``, if the block hangs where no Python signal reaches it."""
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def ended_after(log: str) -> float:
    """Return the limit of a call, in seconds, after which :func:`last_resort` ended a process with this ``log``.

    Return 0 if it did not.
    """
    found = re.search(r"^Timeout \((\d+):(\d+):(\d+(?:\.\d+)?)\)!", log, re.MULTILINE)
    if found is None:
        return 0.0
    hours, minutes, seconds = map(float, found.groups())
    return max(3600 * hours + 60 * minutes + seconds - GRACE, 0.0)

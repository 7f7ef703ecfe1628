"""Time limit of a block: an exception if Python signals reach it, the end of the process if they do not."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType

#: Seconds past its time limit after which :func:`last_resort` ends the process of a call that hangs outside Python.
GRACE = 5.0
#: Largest factor by which a limit grows on a crowded machine.
MOST_CROWDED = 8.0
#: Shortest time for which a limit is set again, in seconds.
SHORTEST = 0.001
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


def waited(processes: Collection[int]) -> float:
    """Return how many seconds the main threads of these processes have waited for a core; 0 if the system does not say.

    Source: the Linux kernel's documentation, *Scheduler Statistics*, second number of ``/proc/<pid>/schedstat``.
    """
    total = 0.0
    for process in processes:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int(Path(f"/proc/{process}/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    return total


class OutOfTime(BaseException):
    """A call ran past its time limit; a BaseException, so that kernels do not swallow it."""

    def __init__(self, allowed: float) -> None:
        super().__init__(f"{allowed:.3g} s have passed")
        #: Seconds after which the limit was found, all settings of it together.
        self.allowed = allowed


def _nothing(seconds: float) -> None:
    del seconds


@contextlib.contextmanager
def time_limit(
    seconds: float,
    plain: float | None = None,
    processes: Collection[int] = (),
    postpone: Callable[[float], None] = _nothing,
) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the block after ``seconds``; no limit outside the main thread or on Windows.

    The block has ``plain`` seconds (default: all of them) beside those in which its ``processes`` wait for a core. If
    it had fewer, the limit is set again for the rest, until :data:`MOST_CROWDED` times ``plain`` have passed, and
    ``postpone`` is called with the rest.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    plain, begun, before = seconds if plain is None else plain, time.monotonic(), waited(processes)
    allowed = seconds

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        nonlocal allowed
        passed, apart = time.monotonic() - begun, waited(processes) - before
        rest = min(plain - (passed - apart), MOST_CROWDED * plain - passed)
        if rest < SHORTEST:
            raise OutOfTime(allowed)
        allowed += rest
        postpone(rest)
        signal.setitimer(signal.ITIMER_REAL, rest)

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


#: Context manager entered around every call, with the seconds it may take. It gives a function that is called with the
#: seconds that it may take from now on.
Guard = Callable[[float], contextlib.AbstractContextManager[Callable[[float], None]]]


@contextlib.contextmanager
def no_guard(seconds: float) -> Iterator[Callable[[float], None]]:
    """Guard nothing: a kernel in a process of its own cannot stop this one."""
    del seconds
    yield _nothing


@contextlib.contextmanager
def last_resort(seconds: float, stderr: int = 2) -> Iterator[Callable[[float], None]]:
    """End the process, with the stack on ``stderr``, if the block hangs where no Python signal reaches it."""

    def end_after(seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)

    end_after(seconds)
    try:
        yield end_after
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

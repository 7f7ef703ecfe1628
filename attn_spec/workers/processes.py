"""Processes of this machine: each runs one task at a time, and a task whose process dies runs again in another.

Each process is a ``ProcessPoolExecutor`` of one process, so that a death concerns one task and names it. Processes are
spawned, because a forked process would inherit locks that threads of PyTorch hold. A process ends with its parent, for
whatever reason the parent ends: both hold one end of a pipe, the *lifeline*.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from . import threads
from .task import LostTaskError, Task

#: Largest number of processes that one task may bring down; a process that ran out of memory says nothing of the task.
TRIES = 3
#: Seconds that a task has, when its process must end, to end what it has begun.
GRACE = 5.0


class Processes:
    """A pool with one process for each concurrent call of :meth:`run`; processes are kept for later calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_Process] = []
        self._all: set[_Process] = set()
        self._ended = False

    def run(self, task: Task) -> Any:
        """Run a task and return what it returns. Raises what the task raises, and :class:`LostTaskError`.

        Raises ``BrokenProcessPool`` after :meth:`end`.
        """
        for _ in range(TRIES):
            process = self._take()
            try:
                return process.run(task)
            except BrokenProcessPool:
                self._drop(process)
            finally:
                self._give_back(process)
        raise LostTaskError(f"{task.name} was lost: each of {TRIES} processes that ran it died")

    def end(self) -> None:
        """End every process, and with it the task that it runs."""
        with self._lock:
            self._ended, every = True, list(self._all)
        for process in every:
            process.cut()
        for process in every:
            self._drop(process)

    def _take(self) -> _Process:
        with self._lock:
            if self._ended:
                raise BrokenProcessPool("the processes were ended")
            process = self._free.pop() if self._free else _Process()
            self._all.add(process)
            return process

    def _give_back(self, process: _Process) -> None:
        with self._lock:
            if process in self._all:
                self._free.append(process)

    def _drop(self, process: _Process) -> None:
        """End a process, unless another thread does."""
        with self._lock:
            known = process in self._all
            self._all.discard(process)
        if known:
            process.end()


@contextlib.contextmanager
def here(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """Yield an executor of tasks with ``jobs`` processes; the end of the block ends processes and tasks."""
    processes = Processes()
    threads = _Threads(jobs, processes)
    try:
        yield threads
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        processes.end()
        threads.shutdown()


class _Threads(ThreadPoolExecutor):
    """Threads that wait for processes."""

    def __init__(self, jobs: int, processes: Processes) -> None:
        super().__init__(jobs)
        self.processes = processes

    def submit(self, task: Task) -> Future[Any]:  # type: ignore[override]
        """Run a task in a process."""
        return super().submit(self.processes.run, task)


class _Process:
    """One process, which works in a folder of its own: cases in flight are written there."""

    def __init__(self) -> None:
        os.environ |= threads.share(threads.cores())  # as many processes run as there are cores
        spawned = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="attn-spec-", ignore_cleanup_errors=True)
        self._theirs, self._lifeline = spawned.Pipe(duplex=False)
        self._cutting = threading.Lock()
        given = (self._theirs, self._folder.name)
        self._engine = ProcessPoolExecutor(1, spawned, initializer=_begin, initargs=given)

    def run(self, task: Task) -> Any:
        """Run a task in the process and return what it returns. Raises ``BrokenProcessPool`` if the process dies."""
        return self._engine.submit(_run, task).result()

    def cut(self) -> None:
        """Tell the process to end; several threads may do so at the same time."""
        with self._cutting:
            self._lifeline.close()

    def end(self) -> None:
        """Wait until the process has ended, then remove its pipe and its folder."""
        self.cut()
        self._engine.shutdown(cancel_futures=True)
        self._theirs.close()
        self._folder.cleanup()


class _Ended(SystemExit):
    """Raised in the process when its lifeline is closed, so that what a task has begun is ended too."""


def _begin(lifeline: Connection, folder: str) -> None:
    """Prepare a new process: its folder, its signals and the thread that watches the lifeline."""
    os.chdir(folder)
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C reaches all processes; the first of them ends the others
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_hold, args=(lifeline,), daemon=True).start()


def _hold(lifeline: Connection) -> None:
    """Wait until the other end of the lifeline is closed, then end the process: by SIGTERM, and at once if it stays."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def _leave(*_: Any) -> NoReturn:
    raise _Ended(1)


def _run(task: Task) -> Any:
    try:
        return task()
    except _Ended:
        os._exit(1)  # else the pool would go on with the next call

"""Sweeps: run many tasks and return their results in the order of the tasks, whichever ends first.

A sweep therefore gives the same results in one process, in several, and on many machines. Every task is counted once: a
task that runs again, because a worker was lost, has returned nothing before.
"""

from __future__ import annotations

import argparse
import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import Any

from . import cluster
from .processes import here
from .task import Task, WorkersError

#: Help text of the option ``--scheduler``.
SCHEDULER = "Dask scheduler whose workers do the work, e.g. tcp://host:8786, instead of processes here."


def sweep(
    tasks: Iterable[Task], *, jobs: int = 1, scheduler: str | None = None, ahead: int | None = None, apart: bool = False
) -> Generator[Any, None, None]:
    """Yield what each task returns, in the order of the tasks; the first task that raises ends the sweep.

    Tasks run in ``jobs`` processes, or at the workers of the Dask ``scheduler`` at this address. A single job runs in
    this process, unless ``apart``. ``ahead`` is the number of tasks taken from an endless stream before the first has
    returned; None takes all. Close the iterator to end running tasks. Raises :class:`LostTaskError` and
    :class:`SchedulerError`.
    """
    if scheduler is None and jobs == 1 and not apart:
        for task in tasks:
            with _named(task):
                found = task()
            yield found
        return
    with here(jobs) if scheduler is None else cluster.at(scheduler) as executor:
        yield from _in_order(executor, tasks, ahead, remote=scheduler is not None)


def _in_order(executor: Executor, tasks: Iterable[Task], ahead: int | None, *, remote: bool) -> Iterator[Any]:
    tasks = iter(tasks)
    waiting = deque((task, executor.submit(task)) for task in islice(tasks, ahead))
    while waiting:
        task, future = waiting.popleft()
        with _named(task, remote=remote):
            found = future.result()
        yield found
        waiting += [(task, executor.submit(task)) for task in islice(tasks, 1)]


@contextlib.contextmanager
def _named(task: Task, *, remote: bool = False) -> Iterator[None]:
    """Add the name of the task to an error that it raises."""
    try:
        yield
    except Exception as error:
        told = cluster.explained(task, error) if remote else error
        if not isinstance(told, WorkersError):
            told.add_note(f"raised by {task.name}")
        if told is error:
            raise
        raise told from error


def add_options(parser: argparse.ArgumentParser, jobs: int = 1) -> None:
    """Add the options ``--jobs`` and ``--scheduler``, which exclude each other."""
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument("--jobs", type=_jobs, default=jobs, help=f"processes (default {jobs})")
    workers.add_argument("--scheduler", metavar="ADDRESS", help=SCHEDULER)


def _jobs(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")


@contextlib.contextmanager
def refusals(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End a command with status 2 and one line if the block raises :class:`WorkersError`."""
    try:
        yield
    except WorkersError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")

"""An executor that runs tasks at the workers of a Dask cluster.

Each worker runs a task in a process of its own (:mod:`.processes`). Dask runs tasks in threads, where a kernel's call
cannot be limited in time, and a kernel that crashes would end the worker. Workers need the same attn-spec.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from multiprocessing import util
from pathlib import Path
from typing import Any

from .processes import Processes
from .task import LostTaskError, SchedulerError, Task

#: Seconds in which a scheduler must answer, and in which it must have a worker.
PATIENCE = 5.0

#: Processes of this worker, kept for the next task of any client.
_PROCESSES = Processes()


@contextlib.contextmanager
def at(address: str, patience: float | None = None) -> Iterator[Executor]:
    """Yield an executor of tasks at the cluster of this scheduler. Raises :class:`SchedulerError`.

    At the end of the block, tasks that no worker has begun are cancelled. A worker finishes the task that it has begun,
    and its result is dropped.
    """
    patience = PATIENCE if patience is None else patience
    try:
        from distributed import Client
        from distributed.comm.addressing import resolve_address
    except ModuleNotFoundError as error:
        raise SchedulerError(f"--scheduler needs Dask: pip install 'attn-spec[dask]' ({error})") from None
    try:
        resolve_address(address)  # a client of an invalid address takes 20 s to close
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise SchedulerError(
            f"no Dask scheduler answers at {address!r}: {error}; `dask scheduler` starts one and prints its address"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError:
            raise SchedulerError(
                f"the Dask scheduler at {address} has no workers; `dask worker {address} --nthreads N` starts one of N"
            ) from None
        engine = _Cluster(address, client)
        try:
            yield engine
        finally:
            engine.shutdown(wait=False, cancel_futures=True)


class _Cluster(Executor):
    """The client of a cluster."""

    def __init__(self, address: str, client: Any) -> None:
        self.address = address
        self.source = source_digest()
        self._engine = client.get_executor(pure=False)  # of two equal tasks each is run

    def submit(self, task: Task) -> Future[Any]:  # type: ignore[override]
        """Run a task in a process of a worker; if the worker dies, Dask runs it at another, some times."""
        return self._engine.submit(_at_worker, task, self.source)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the executor; tasks that have not returned are cancelled unless it waits for them."""
        self._engine.shutdown(wait=wait and not cancel_futures)


def explained(task: Task, error: BaseException) -> BaseException:
    """Return the error of a task at a cluster, as an error of attn-spec where Dask has its own."""
    from distributed import KilledWorker

    match error:
        case KilledWorker():
            times = error.allowed_failures + 1
            return LostTaskError(f"{task.name} was lost: each of {times} workers that ran it died, as Dask counts")
        case CancelledError():
            return SchedulerError(f"the Dask scheduler is gone, and with it {task.name}; nothing of it was counted")
        case ModuleNotFoundError():
            return SchedulerError(f"a Dask worker cannot run {task.name}: {error}; install the same attn-spec there")
    return error


def _at_worker(task: Task, source: str) -> Any:
    """Run a task in a process of this worker. Raises :class:`SchedulerError` if attn-spec differs."""
    if source != source_digest():
        raise SchedulerError(
            "a Dask worker has another attn-spec than this process; install the same one there, and start it again"
        )
    _may_have_children()
    return _PROCESSES.run(task)


@functools.cache
def _may_have_children() -> None:
    """Let this worker start processes, and end them with it: a nanny makes it a daemon, which may have no children."""
    multiprocessing.current_process().daemon = False
    util.Finalize(None, _PROCESSES.end, exitpriority=0)


@functools.cache
def source_digest() -> str:
    """Return a digest of attn-spec's sources, wherever they are installed, computed at this process's first call."""
    files: dict[str, Path] = {}
    for name in ("", "implementations", "properties", "reports"):
        spec = importlib.util.find_spec(f"attn_spec.{name}".rstrip("."))
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            files |= {Path(name, path.relative_to(folder)).as_posix(): path for path in folder.rglob("*.py")}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()

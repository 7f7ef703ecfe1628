"""The workers of a Dask cluster, as an executor.

A worker gives each task to a process of its own (:mod:`.processes`): tasks of Dask run in threads, where no call of a
kernel can be limited in time, and a kernel that crashes would take the worker with it. Workers need the same attn-spec.
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

#: Seconds in which a scheduler must answer, and have a worker.
PATIENCE = 5.0

#: Of a worker: kept for the next task, from whomever.
_PROCESSES = Processes()


@contextlib.contextmanager
def at(address: str, patience: float | None = None) -> Iterator[Executor]:
    """An executor of tasks at the cluster of a scheduler. Raises :class:`SchedulerError`.

    With the block, tasks that no worker has begun are cancelled. What one has begun it finishes, for nobody.
    """
    patience = PATIENCE if patience is None else patience
    try:
        from distributed import Client
        from distributed.comm.addressing import resolve_address
    except ModuleNotFoundError as error:
        raise SchedulerError(f"--scheduler needs Dask: pip install 'attn-spec[dask]' ({error})") from None
    try:
        resolve_address(address)  # a client of what is no address takes 20 s to go away
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
        """Run a task in a process of a worker; Dask gives it to another when the worker dies, some times."""
        return self._engine.submit(_at_worker, task, self.source)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Forget the tasks that have not returned."""
        self._engine.shutdown(wait=wait and not cancel_futures)


def explained(task: Task, error: BaseException) -> BaseException:
    """The error of a task at a cluster, in words of ours where Dask has its own."""
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
    """Run a task in a process of this worker. Raises :class:`SchedulerError` where attn-spec is another one."""
    if source != source_digest():
        raise SchedulerError(
            "a Dask worker has another attn-spec than this process; install the same one there, and start it again"
        )
    _may_have_children()
    return _PROCESSES.run(task)


@functools.cache
def _may_have_children() -> None:
    """Let this worker start processes, and end them when it ends: a nanny makes it a daemon, which may have none."""
    multiprocessing.current_process().daemon = False
    util.Finalize(None, _PROCESSES.end, exitpriority=0)


@functools.cache
def source_digest() -> str:
    """A digest of the sources of attn-spec, wherever they lie, as they were when this process first asked."""
    files: dict[str, Path] = {}
    for name in ("", "implementations", "properties", "reports"):
        spec = importlib.util.find_spec(f"attn_spec.{name}".rstrip("."))
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            files |= {Path(name, path.relative_to(folder)).as_posix(): path for path in folder.rglob("*.py")}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()

"""Ranks in processes of their own, started by the first call, kept for all others and ended with the interpreter."""

import atexit
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from weakref import WeakSet

from attn_spec.emulation.ranks import Answer, Work

from .rank_process import packed, unpacked

#: Seconds until all ranks must have met, and until they must have answered.
START_LIMIT, ANSWER_LIMIT = 50.0, 20.0
#: Seconds to wait for the report of a rank's death, once another rank misses it.
GRACE = 1.0
#: Program of the process that forks ranks; not ``-m``, since classes that are sent must not be of ``__main__``.
COMMAND = "import sys; from attn_spec.implementations.rank_process import fork; fork(*sys.argv[1:])"
NEXT = "The ranks were ended, and the next call starts new ones."


class RankError(RuntimeError):
    """Error of a rank that died, raised or did not answer: its number, what happened and what to do next."""


class RankLostError(RankError):
    """Error of a rank that died, did not answer or did not start; its program or the machine may be the reason."""


class RankPool:
    """``pool(works)`` runs one work in each of the first ranks, and raises :class:`RankError` after ending all of them.

    If ranks are lost, new ones run all works once more, since the machine may have been the reason (memory, load).
    POSIX only. Threads take turns; a process that was forked from this one starts ranks of its own.
    """

    def __init__(self, ranks: int, *, limit: float = ANSWER_LIMIT) -> None:
        self.ranks = ranks
        self.limit = limit
        #: The ids of the processes of the ranks.
        self.pids: list[int] = []
        self._forker: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []
        self._lock = threading.Lock()
        _POOLS.add(self)

    def __call__(self, works: Sequence[Work]) -> list[Answer]:
        """Run the works, and return their answers in order.

        Raises ``ValueError`` for more works than ranks, and :class:`RankError` if a work fails or ranks are lost twice.
        """
        if len(works) > self.ranks:
            raise ValueError(f"there are {self.ranks} ranks, not {len(works)}; make a RankPool({len(works)})")
        data = [packed(work) for work in works]
        with self._lock:
            try:
                return self._attempt(data)
            except RankLostError:
                return self._attempt(data)

    def _attempt(self, data: Sequence[bytes]) -> list[Answer]:
        """Run the works once, in ranks that are there or new."""
        try:
            if self._forker is None:
                self._start()
            for rank, work in enumerate(data):
                self._send(rank, work)
            return self._answers(len(data), self.limit)
        except BaseException:  # the next call must not read answers of an interrupted one
            self.close()
            raise

    def close(self) -> None:
        """End the ranks, if there are any of this process."""
        forker, self._forker = self._forker, None
        if forker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(forker.pid, signal.SIGKILL)
            forker.wait()
            atexit.unregister(self.close)
        for connection in self._connections:
            connection.close()
        self._connections, self.pids = [], []

    def forget(self) -> None:
        """Leave the ranks, and a lock that another thread may hold, to the parent of this forked process."""
        self._forker, self._lock = None, threading.Lock()
        self.close()

    def _start(self) -> None:
        """Start the process that forks the ranks, and wait until they have met."""
        pairs = [socket.socketpair() for _ in range(1 + self.ranks)]
        for ours, _ in pairs:  # a transfer that stalls for longer than the limit raises OSError
            for way in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                ours.setsockopt(socket.SOL_SOCKET, way, struct.pack("ll", max(round(self.limit), 1), 0))
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        settings = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        settings |= {
            "GLOO_SOCKET_IFNAME": loopback,
            "TORCH_GLOO_LAZY_INIT": "0",
        }
        ends = [str(theirs.fileno()) for _, theirs in pairs]
        with tempfile.TemporaryDirectory(prefix="attn-spec-ranks-") as folder:
            patience = str(START_LIMIT + self.limit)  # ranks wait for one another longer than this process
            command = [sys.executable, "-P", "-c", COMMAND, str(Path(folder) / "store"), patience, *ends]
            self._forker = subprocess.Popen(  # noqa: S603 - the command is this interpreter
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # gloo prints there which ranks have met
                env={**os.environ, **settings},
                pass_fds=[int(end) for end in ends],
                start_new_session=True,  # one process group: it is killed as one, and Ctrl-C does not reach it
            )
            atexit.register(self.close)
            self._connections = [Connection(ours.detach()) for ours, _ in pairs]
            for _, theirs in pairs:
                theirs.close()
            if not self._reports.poll(START_LIMIT):
                raise RankLostError(f"no rank was started within {START_LIMIT:g} s; {NEXT}")
            self.pids = self._told()
            self._answers(self.ranks, START_LIMIT)

    @property
    def _reports(self) -> Connection:
        return self._connections[0]

    def _told(self) -> Any:
        """Receive the next report of the process that forks the ranks; raise :class:`RankLostError` if it has ended."""
        try:
            return self._reports.recv()
        except (EOFError, OSError) as error:
            raise RankLostError(
                f"the process that starts ranks has ended; its output on stderr says why. {NEXT}"
            ) from error

    def _send(self, rank: int, data: bytes) -> None:
        try:
            self._connections[1 + rank].send_bytes(data)
        except OSError as error:
            raise self._failure(rank, f"did not take its work ({type(error).__name__})") from error

    def _answers(self, count: int, limit: float) -> list[Any]:
        """Receive the next answer of ``count`` ranks; raise :class:`RankLostError` after ``limit`` seconds."""
        answers: dict[int, Any] = {}
        end = time.monotonic() + limit
        while len(answers) < count:
            asked = {self._connections[1 + rank]: rank for rank in range(count) if rank not in answers}
            ready = wait([*asked, self._reports], max(end - time.monotonic(), 0.0))
            if not ready:
                silent = ", ".join(map(str, asked.values()))
                raise RankLostError(
                    f"no answer within {limit:g} s from rank {silent} of {self.ranks}. {NEXT} If the problem is "
                    "large, make a RankPool with a larger limit"
                )
            if self._reports in ready:
                raise self._death()
            for connection in ready:
                rank = asked[connection]  # type: ignore[index]
                answers[rank] = self._answer(rank)
        return [answers[rank] for rank in range(count)]

    def _answer(self, rank: int) -> Any:
        try:
            answer, trouble = unpacked(self._connections[1 + rank].recv_bytes())
        except (EOFError, OSError) as error:
            raise self._failure(rank, f"broke off ({type(error).__name__})") from error
        if trouble is not None:
            raise self._failure(rank, f"raised {trouble}", RankError)
        return answer

    def _failure(self, rank: int, what: str, kind: type[RankError] = RankLostError) -> RankError:
        """Return the error of a rank, or of the rank whose death made it fail: ranks that wait for a dead one raise."""
        if self._reports.poll(GRACE):
            return self._death()
        first, _, rest = what.partition("\n")
        return kind(f"rank {rank} of {self.ranks} {first}. {NEXT}\n{rest}".strip())

    def _death(self) -> RankLostError:
        rank, code = self._told()
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            hint = "If no person or program killed it, check the system log for an out-of-memory kill"
        else:
            how, hint = f"ended with exit code {code}", "Its output on stderr says why"
        return RankLostError(f"rank {rank} of {self.ranks} {how}. {NEXT} {hint}")


#: All pools of this process: a forked child must not use their ranks.
_POOLS: WeakSet[RankPool] = WeakSet()


def _forget() -> None:
    for pool in list(_POOLS):
        pool.forget()


os.register_at_fork(after_in_child=_forget)

#: Ranks of the kernels of this folder: four, of which a kernel may use fewer.
POOL = RankPool(4)

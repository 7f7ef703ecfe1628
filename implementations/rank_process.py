"""Processes that are ranks: each runs the programs it is sent, and exchanges tensors by torch.distributed over gloo.

They are forked from a process that has imported torch and done nothing else, so that a rank costs milliseconds and not
seconds. That process reports how each of them ended. ``rank_pool`` starts it, and is the other end of all connections.
"""

import contextlib
import io
import os
import pickle
import traceback
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attn_spec.emulation.ranks import Answer, Program


def fork(store: str, limit: str, reports: str, *ends: str) -> None:
    """Fork a rank for each connection; send the ids of their processes, and the exit code of each that ends.

    ``store`` is the path of a file by which ranks find one another, and ``limit`` the seconds they wait for a tensor.
    ``reports`` and ``ends`` are file descriptors.
    """
    torch.set_num_threads(1)
    told, connections = Connection(int(reports)), [Connection(int(end)) for end in ends]
    children: dict[int, int] = {}
    for rank, own in enumerate(connections):
        pid = os.fork()
        if not pid:
            for other in (told, *connections):  # a connection ends when the last process closes it
                if other is not own:
                    other.close()
            code = 1
            try:
                join(store, float(limit), rank, len(ends))
                serve(own)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children[pid] = rank
    for connection in connections:
        connection.close()
    with contextlib.suppress(OSError):  # the parent may have ended
        told.send(list(children))
        while children:
            pid, status = os.wait()
            told.send((children.pop(pid), os.waitstatus_to_exitcode(status)))


def join(store: str, limit: float, rank: int, ranks: int) -> None:
    """Meet the other ranks."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(seconds=limit)
    )


def serve(connection: Connection) -> None:
    """Report that the rank is ready; then run each work that arrives, and send its answer or error, to the end."""
    said: tuple[Any, str | None] = (None, None)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send_bytes(packed(said))
            received = connection.recv_bytes()
            try:
                said = run(unpacked(received).begin()), None
            except Exception as error:
                said = None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"


def run(program: Program) -> Answer:
    """Run a program. What goes to one rank goes as one message: a message costs more than its bytes."""
    while True:
        try:
            exchange = next(program)
        except StopIteration as end:
            return end.value
        sent = {other: torch.cat([_bytes(x) for x in tensors]) for other, tensors in exchange.send.items()}
        places = {other: [_bytes(x) for x in tensors] for other, tensors in exchange.receive.items()}
        arriving = {other: torch.empty_like(torch.cat(own)) for other, own in places.items()}
        operations = [dist.P2POp(dist.isend, message, other) for other, message in sent.items() if len(message)]
        operations += [dist.P2POp(dist.irecv, message, other) for other, message in arriving.items() if len(message)]
        for request in dist.batch_isend_irecv(operations) if operations else ():
            request.wait()
        for other, own in places.items():
            for place, arrived in zip(own, arriving[other].split([len(x) for x in own]), strict=True):
                place.copy_(arrived)


def _bytes(x: Tensor) -> Tensor:
    """Return the bytes of a tensor, as a view if its memory has no gaps."""
    return x.detach().contiguous().flatten().view(torch.uint8)


class _Pickler(pickle.Pickler):
    """Tensors as their bytes; torch's own way writes an archive for each, at several times the cost."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return NotImplemented
        return _tensor, (_bytes(obj).numpy().tobytes(), obj.dtype, tuple(obj.shape))


def _tensor(data: bytes, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)


def packed(what: Any) -> bytes:
    """Pickle ``what``, with the tensors of the CPU in it."""
    file = io.BytesIO()
    _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(what)
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """Invert :func:`packed`."""
    return pickle.loads(data)  # noqa: S301 - the other end is this package too

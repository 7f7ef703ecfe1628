"""The judge's side of a kernel's process: it is started, asked, ended where it does not answer, and started again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from attn_spec.isolation import confinement
from attn_spec.isolation.channel import Channel, ChannelError, ClosedError, Header
from attn_spec.isolation.sources import Sources
from attn_spec.kernels.kernel import KernelError

#: What the new interpreter runs.
PROGRAM = "from attn_spec.isolation.worker import main; main()"
#: Seconds in which a kernel must load, and in which its process must answer what is no call of it.
LOADS, ANSWERS = 600.0, 60.0
#: Seconds in which a process that closed its pipes must end.
GRACE = 5.0
#: How lines begin that the interpreter prints of a crash, which its signal tells better.
OF_A_STACK = ("File ", "Thread ", "Extension modules", "Current thread", "Fatal Python error", "<no Python frame>")
#: Messages that are calls, whose time whoever sends them limits.
CALLS = ("call", "pull")
#: Bytes of what it printed that are kept, and of which the last are shown.
MOST_PRINTED, LAST_WORDS = 2**20, 2000


class DiedError(Exception):
    """A process that ended, or broke the rules of the channel and was ended; the text says how."""


class Process:
    """The process of one kernel. Nothing of this one is inherited but three pipes."""

    def __init__(self, spec: str, declared: Mapping[str, Any], memory: float | None, sources: Sources) -> None:
        self.sources = sources
        self.load = {"do": "load", "spec": spec, "declared": dict(declared), "memory": memory, "path": _path()}
        self._number = 0
        self._running: _Running | None = None
        #: What the kernel's process told of it when it began.
        self.told: Header | None = None

    def begin(self) -> None:
        """Start the process if there is none, without waiting until it has loaded the kernel.

        Raises :class:`ChangedError`.
        """
        if self._running is None:
            self.sources.check()
            confinement.hide_memory()
            self._running = _Running()
            self.told = None

    def ask(self, header: Header, blobs: Sequence[np.ndarray] = ()) -> tuple[Header, list[np.ndarray]]:
        """Send a message and wait for the answer to it.

        Raises :class:`DiedError`, and :class:`KernelError` for a kernel that does not load. After these, and whatever
        else is raised meanwhile, as where time is up, the process is ended, and another one begun.
        """
        self.loaded()
        return self._exchange(header, blobs, seconds=None if header["do"] in CALLS else ANSWERS)

    def loaded(self) -> Header:
        """What the process tells of the kernel, once it has loaded it. Raises :class:`KernelError`."""
        self.begin()
        if self.told is None:
            try:
                answer, _ = self._exchange(self.load, (), again=False, seconds=LOADS)
            except DiedError as error:
                raise KernelError(f"{error} while the kernel was loaded") from None
            if "kernel" not in answer:
                self.end()
                raise KernelError(str(answer.get("refused", "the kernel's process tells nothing of it")))
            self.told = answer["kernel"]
        assert self.told is not None
        return self.told

    def _exchange(
        self, header: Header, blobs: Sequence[np.ndarray], *, seconds: float | None, again: bool = True
    ) -> tuple[Header, list[np.ndarray]]:
        assert self._running is not None
        running, self._number = self._running, self._number + 1
        try:
            running.forget_prints()
            running.channel.send(header | {"number": self._number}, blobs)
            answer, found = running.channel.receive(seconds)
            if answer.pop("number", None) != self._number:
                raise ChannelError("an answer to nothing that was asked")  # noqa: TRY301 -- told as all of these are
        except ChannelError as error:
            try:
                raise DiedError(running.cause(error)) from None
            finally:
                self._replace(again=again)
        except BaseException:  # time is up, or somebody presses Ctrl-C
            self._replace(again=again)
            raise
        return answer, found

    def _replace(self, *, again: bool) -> None:
        self.end()
        if again:
            self.begin()

    def end(self) -> None:
        """End the process, and those that it started."""
        if self._running is not None:
            self._running.end()
            self._running = None


class _Running:
    """One process, in a session and a folder of its own."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp()
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        self.process = subprocess.Popen(  # noqa: S603 -- this interpreter, and a program of ours
            [sys.executable, "-P", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.printed,
            bufsize=0,
            cwd=folder,
            env=confinement.environment(),
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.channel = Channel(self.process.stdout.fileno(), self.process.stdin.fileno())
        self._end = weakref.finalize(self, _ended, self.process, folder, self.printed)

    def forget_prints(self) -> None:
        """Keep what it prints from growing without end."""
        if os.fstat(self.printed.fileno()).st_size > MOST_PRINTED:
            self.printed.truncate(0)

    def cause(self, error: ChannelError) -> str:
        """Say how the process ended, in a sentence; if it did not, what it sent."""
        try:
            code = self.process.wait(GRACE if isinstance(error, ClosedError) else 0)
        except subprocess.TimeoutExpired:
            return f"the kernel's process broke the channel: {error}"
        words = self._last_words()
        said = f"; its last words: {words}" if words else ""
        with contextlib.suppress(ValueError):
            return f"the kernel crashed the process ({signal.Signals(-code).name}){said}"
        return f"the kernel ended the process (exit code {code}){said}"

    def _last_words(self) -> str:
        """The last line that it printed, of an error rather than of a stack."""
        size = os.fstat(self.printed.fileno()).st_size
        text = os.pread(self.printed.fileno(), LAST_WORDS, max(size - LAST_WORDS, 0)).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith(OF_A_STACK)]
        return "".join(x if x.isprintable() else "?" for x in told[-1])[:200] if told else ""

    def end(self) -> None:
        """End it."""
        self._end()


def _ended(process: subprocess.Popen[bytes], folder: str, printed: IO[bytes]) -> None:
    """End a process with its session, and clean up after it."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, printed):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    shutil.rmtree(folder, ignore_errors=True)


def _path() -> list[str]:
    """The folder that this process works in, and those in which it finds modules."""
    return [os.path.abspath(folder) for folder in ["", *sys.path]]  # noqa: PTH100 -- "" is the working folder

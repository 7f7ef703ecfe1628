"""The judge's side of a kernel's process: start it, ask it, end it if it does not answer, and start it again."""

from __future__ import annotations

import contextlib
import os
import re
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

#: Program that the new interpreter runs.
PROGRAM = "from attn_spec.isolation.worker import main; main()"
#: Time limits in seconds: for loading a kernel, and for an answer to a message that is not a call.
LOADS, ANSWERS = 600.0, 60.0
#: Seconds in which a process that closed its pipes must end.
GRACE = 5.0
#: Beginning of what the interpreter prints after a crash: a stack, and a list of modules. The signal's name says more.
OF_A_CRASH = "Fatal Python error: "
#: Messages that are calls; the sender of a call limits its time.
CALLS = ("call", "pull")
#: Largest number of printed bytes that are kept, and number of last bytes that an error message is taken from.
MOST_PRINTED, LAST_WORDS = 2**20, 2**16
#: Beginning of a line that names an error, and number of last lines among which such a line is looked for.
_ERROR, _NEAR = re.compile(r"[\w.]*(Error|Exception)\b"), 6


class DiedError(Exception):
    """A process that ended, or that broke the rules of the channel and was ended; the text says how."""


class Process:
    """The process of one kernel, which inherits nothing from this process but three pipes."""

    def __init__(self, spec: str, declared: Mapping[str, Any], memory: float | None, sources: Sources) -> None:
        self.sources = sources
        self.load = {"do": "load", "spec": spec, "declared": dict(declared), "memory": memory, "path": _path()}
        self._number = 0
        self._running: _Running | None = None
        #: Declaration that the kernel's process sent when it began.
        self.told: Header | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """The number of the process, if it runs."""
        return () if self._running is None else (self._running.process.pid,)

    def begin(self) -> None:
        """Start the process unless it runs, without waiting until it has loaded the kernel.

        Raises :class:`ChangedError`.
        """
        if self._running is None:
            self.sources.check()
            confinement.hide_memory()
            self._running = _Running()
            self.told = None

    def ask(self, header: Header, blobs: Sequence[np.ndarray] = ()) -> tuple[Header, list[np.ndarray]]:
        """Send a message and wait for the answer to it.

        Raises :class:`DiedError`, and :class:`KernelError` if the kernel does not load, which ends the process. After
        any other exception, such as the end of the caller's time limit, the process is ended and another one started.
        """
        self.loaded()
        return self._exchange(header, blobs, seconds=None if header["do"] in CALLS else ANSWERS)

    def loaded(self) -> Header:
        """Return the process's declaration of the kernel, waiting until it has loaded. Raises :class:`KernelError`."""
        self.begin()
        if self.told is None:
            try:
                answer, _ = self._exchange(self.load, (), again=False, seconds=LOADS)
            except DiedError as error:
                raise KernelError(f"{error} while the kernel was loaded") from None
            if "kernel" not in answer:
                self.end()
                raise KernelError(str(answer.get("refused", "the kernel's process sent no declaration")))
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
                raise ChannelError("its answer has another number than the message")  # noqa: TRY301 -- caught below
        except ChannelError as error:
            try:
                raise DiedError(running.cause(error)) from None
            finally:
                self._replace(again=again)
        except BaseException:  # time is up, or the user pressed Ctrl-C
            self._replace(again=again)
            raise
        return answer, found

    def _replace(self, *, again: bool) -> None:
        self.end()
        if again:
            self.begin()

    def end(self) -> None:
        """End the process, and the processes that it started."""
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
        """Empty the file of printed output if it is above its limit."""
        if os.fstat(self.printed.fileno()).st_size > MOST_PRINTED:
            self.printed.truncate(0)

    def cause(self, error: ChannelError) -> str:
        """Return a sentence on how the process ended or, if it still runs, on what it sent."""
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
        """Return the last line that was printed before a crash, or a line near it that names an error; or "".

        It has at most 200 printable characters. Errors of CUDA end with lines on what to do next.
        """
        size = os.fstat(self.printed.fileno()).st_size
        text = os.pread(self.printed.fileno(), LAST_WORDS, max(size - LAST_WORDS, 0)).decode(errors="replace")
        told = [line.strip() for line in text.partition(OF_A_CRASH)[0].splitlines() if line.strip()]
        words = [line for line in told[-_NEAR:] if _ERROR.match(line)] or told
        return "".join(x if x.isprintable() else "?" for x in words[-1])[:200] if words else ""

    def end(self) -> None:
        """End the process, and remove its folder and output."""
        self._end()


def _ended(process: subprocess.Popen[bytes], folder: str, printed: IO[bytes]) -> None:
    """End a process with its session, close its pipes and remove its folder."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, printed):
        with contextlib.suppress(OSError):
            pipe.close()  # type: ignore[union-attr]
    shutil.rmtree(folder, ignore_errors=True)


def _path() -> list[str]:
    """Return the working folder of this process, and the folders in which it finds modules, as absolute paths."""
    return [os.path.abspath(folder) for folder in ["", *sys.path]]  # noqa: PTH100 -- "" is the working folder

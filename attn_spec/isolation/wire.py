"""Calls of a kernel in another process: what is sent, and what is returned or raised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from attn_spec.isolation.answer import Result, StandIn, change, line, returned
from attn_spec.isolation.channel import Header
from attn_spec.isolation.plain import encoded
from attn_spec.isolation.process import DiedError, Process
from attn_spec.isolation.tensors import Places
from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Crashed, OutOfMemory, Raised


class Wire:
    """A kernel's process, and what later calls refer to of its last call."""

    def __init__(self, process: Process) -> None:
        self.process, self.device = process, "cpu"
        self._places, self._calls = Places(), 0
        #: Number of the call whose results the process holds, and of those that it keeps besides, the latest last.
        self._current = 0
        self._kept: list[int] = []
        #: Library whose arrays stand for the kernel's tensors.
        self.library: Framework | None = None
        #: Names of the tensors that the current call records for differentiation, by identity.
        self.recording: dict[int, str] = {}
        #: Global state of the kernel's process that calls have changed, as the process reports it.
        self.noted: dict[str, None] = {}

    def call(self, what: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call the kernel's "call" or "backward". Raises :class:`CallFailed` and :class:`NotTaken`."""
        arrays: list[np.ndarray] = []

        def sent(x: Any) -> Header:
            if isinstance(x, StandIn) and x.origin is not None and x.origin[0] == self._current:
                return {"returned": x.origin[1]}
            if not isinstance(x, np.ndarray):
                return {"plain": encoded(x)}
            known = [number for number, array in enumerate(arrays) if array is x]
            arrays.extend([] if known else [x])
            return {"tensor": known[0] if known else len(arrays) - 1}

        header: Header = {"do": "call", "what": what, "device": self.device}
        header["arguments"] = [sent(x) for x in arguments]
        header["options"] = {name: sent(x) for name, x in options.items()}
        numbers = {id(x): number for number, x in enumerate(arrays)}
        header["recorded"] = {name: numbers[x] for x, name in self.recording.items() if x in numbers}
        if what == "call":
            self._calls += 1
            self._current = self._calls
        return self._answered(what, header, arrays)

    @contextmanager
    def last_call_kept(self) -> Iterator[Callable[[], Any]]:
        """Keep the last call's results while others are made; yield a function that reads them and ends that.

        The last call is then the one that was kept, so that cotangents may be pulled back through it.
        """
        self._answered("call", {"do": "keep", "device": self.device, "depth": len(self._kept)}, [])
        self._kept.append(self._current)

        def again() -> Any:
            self._current = self._kept[-1]
            return self._answered("call", {"do": "resume", "device": self.device, "depth": len(self._kept) - 1}, [])

        try:
            yield again
        finally:
            self._kept.pop()

    def pull(self, cotangents: Sequence[np.ndarray], *, again: bool) -> Any:
        """Pull cotangents back through the last recorded call. Raises as :meth:`call` does."""
        return self._answered("backward", {"do": "pull", "device": self.device, "again": again}, cotangents)

    def _not_taken(self, reason: str, header: Header) -> Exception:
        """Return the exception for a process that has no memory for the tensors.

        :class:`NotTaken` if the user limited the memory, or it is that of a device, and a tensor has elements far
        apart; :class:`OutOfMemory` otherwise, so that a kernel cannot avoid a problem this way.
        """
        limited = self.process.load["memory"] is not None or self.device != "cpu"
        if limited and any("apart" in tensor for tensor in header["tensors"]):
            return NotTaken(line(reason))
        return OutOfMemory(f"the kernel's process has no room for the tensors: {line(reason)}")

    def _answered(self, what: str, header: Header, arrays: Sequence[np.ndarray]) -> Any:
        header["tensors"], sent = self._places.described(arrays)
        try:
            answer, blobs = self.process.ask(header, sent)
            result = Result.model_validate(answer)
            self.noted |= dict.fromkeys(map(line, result.noted))
            if result.not_taken is not None:
                raise self._not_taken(result.not_taken, header)
            if result.raised is not None:
                kind = OutOfMemory if result.starved else Raised
                raise kind(f"the kernel's {what}{line(result.raised)}")
            found = returned(result, blobs, self.library, self._current if what == "call" else None)
            change(arrays, result.changed, blobs)
        except DiedError as error:
            raise Crashed(str(error)) from None
        except KernelError as error:
            raise CallFailed(f"the kernel does not load again: {error}") from None
        except ValueError as error:  # pydantic's ValidationError is a ValueError
            self.process.end()
            told = line(str(error).splitlines()[0])
            raise CallFailed(f"the kernel's process sent an invalid answer to its {what}: {told}") from None
        return found

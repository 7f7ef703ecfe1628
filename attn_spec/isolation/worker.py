"""The process that a kernel runs in: load the kernel, receive tensors, call the kernel, and send its result.

The process receives nothing about problems, properties, seeds, truths or reports. The judge trusts none of its answers.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec.isolation import confinement
from attn_spec.isolation.answer import MOST_NOTED
from attn_spec.isolation.channel import Channel, ClosedError, Header
from attn_spec.isolation.declared import told
from attn_spec.isolation.handed import Handed
from attn_spec.isolation.imported import files, packages
from attn_spec.isolation.plain import decoded
from attn_spec.kernels.flashinfer_trace import sources
from attn_spec.kernels.frameworks.framework import Differentiating, Framework, FrameworkError, Pull, framework
from attn_spec.kernels.global_state import GlobalState
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import OutOfMemory, end_process, failed
from attn_spec.kernels.resolve import attribute_of, resolve
from attn_spec.kernels.results.returned import parts as returned_parts

#: Second results with more axes than this are sent without values: no log-sum-exp has more, so nobody reads them.
MOST_AXES = 3

Blobs = list[np.ndarray]


def main() -> None:
    """Serve the judge at the other end of stdin and stdout until it closes them."""
    channel = _own_channel()
    confinement.end_with_parent()
    faulthandler.enable()
    serving = Serving()
    try:
        while True:
            header, blobs = channel.receive()
            answer, parts = serving.answer(header, blobs)
            channel.send(answer | {"number": header["number"]}, parts)
    except ClosedError:
        os._exit(0)


def _own_channel() -> Channel:
    """Return a channel over stdin and stdout, and replace both: the kernel reads nothing, and prints to a log."""
    pipes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    sys.argv = [""]
    return Channel(*pipes)


class Serving:
    """A kernel, and what later messages may refer to of its last call."""

    def __init__(self) -> None:
        self.kernel: Kernel | None = None
        self.handed = Handed()
        #: Result of the last forward call.
        self.returned: Any = None
        #: Function that pulls cotangents back through the last recorded call.
        self.pull: Pull | None = None
        #: Result of the last forward or backward pass, and whether every value of it is sent.
        self.last: tuple[Any, bool] = None, False
        #: The three above of calls that are kept while others are made.
        self.kept: list[tuple[Any, Pull | None, tuple[Any, bool]]] = []
        self.state = GlobalState()
        #: Folder of this process, which sources of a solution are written into.
        self.home = Path.cwd()

    def answer(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Do what a message asks for, and return the answer's header and arrays."""
        tasks: dict[str, Callable[[Header, Blobs], tuple[Header, Blobs]]] = {
            "load": self._load,
            "give": self._give,
            "missing": self._missing,
            "call": self._call,
            "pull": self._pull,
            "keep": self._keep,
            "resume": self._resume,
            "imported": lambda header, blobs: ({"files": files(self.home), "packages": packages()}, []),
        }
        return tasks[header["do"]](header, blobs)

    @property
    def own(self) -> Framework:
        """Library of the kernel's tensors."""
        assert self.kernel is not None
        return framework(self.kernel.framework)

    def _load(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Find the kernel and return its declaration."""
        del blobs
        sys.path[:0] = header["path"][:1]
        sys.path += [folder for folder in header["path"] if folder not in sys.path]
        confinement.limit_memory(header["memory"])
        sources.write_below(self.home)  # the judge removes this folder with the process
        try:
            self.kernel = resolve(header["spec"], **header["declared"])
            return {"kernel": told(self.kernel, attribute_of(self.kernel))}, []
        except KernelError as error:
            return {"refused": str(error)}, []
        except BaseException as error:
            return {"refused": str(failed(f"loading {header['spec']}", error))}, []

    def _give(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Answer whether the library has tensors of a dtype."""
        del blobs
        try:
            self.own.give(np.zeros(1), header["dtype"], header["device"])
        except FrameworkError as error:
            return {"refused": str(error)}, []
        return {}, []

    def _missing(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Answer why nothing can run on a device; empty text if something can."""
        del blobs
        return {"missing": self.own.missing(header["device"])}, []

    def _call(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Call the kernel or its backward function; keep the pull-back of a recorded call."""
        assert self.kernel is not None
        try:
            tensors = self.handed.tensors(self.own, header["device"], header["tensors"], blobs)
        except (MemoryError, NotTaken) as error:
            return {"not_taken": str(error) or "there is no memory for its tensors"}, []
        arguments = [self._argument(one, tensors) for one in header["arguments"]]
        options = {name: self._argument(one, tensors) for name, one in header["options"].items()}
        function = self.kernel.backward_function if header["what"] == "backward" else self.kernel
        assert function is not None

        def call() -> Any:
            if not header["recorded"]:
                return function(*arguments, **options)
            return self._record(function, arguments, options, {n: tensors[i] for n, i in header["recorded"].items()})

        if header["what"] == "call":
            self.returned = self.pull = None
        answer, parts = self._guarded(header["device"], call, keep=header["what"] == "call")
        changed = self.handed.changed(self.own)
        self.handed.forget(recorded=bool(header["recorded"]))
        return answer | {"changed": list(changed)}, [*parts, *changed.values()]

    def _pull(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Pull cotangents back through the last recorded call."""
        assert self.pull is not None
        pull = self.pull
        try:
            cotangents = Handed().tensors(self.own, header["device"], header["tensors"], blobs)
        except (MemoryError, NotTaken) as error:
            return {"not_taken": str(error) or "there is no memory for its tensors"}, []
        return self._guarded(header["device"], lambda: pull(cotangents, again=header["again"]), keep=False)

    def _keep(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Keep the last call; calls at the same depth and above, whose reading failed, are forgotten."""
        del blobs
        self.kept[header["depth"] :] = [(self.returned, self.pull, self.last)]
        return {"parts": [], "kind": "list"}, []

    def _resume(self, header: Header, blobs: Blobs) -> tuple[Header, Blobs]:
        """Make a call that was kept the last call again, and send the values that its results have now."""
        del blobs
        self.returned, self.pull, self.last = self.kept[header["depth"]]
        del self.kept[header["depth"] :]
        returned, every_value = self.last
        return self._guarded(header["device"], lambda: returned, keep=not every_value)

    def _record(
        self, function: Callable[..., Any], arguments: list[Any], options: dict[str, Any], asked: Mapping[str, Any]
    ) -> Any:
        own = self.own
        assert isinstance(own, Differentiating)

        def call(inputs: Mapping[str, Any]) -> Any:
            swapped = {id(asked[name]): x for name, x in inputs.items()}
            given = [swapped.get(id(x), x) for x in arguments]
            return function(*given, **{name: swapped.get(id(x), x) for name, x in options.items()})

        returned, self.pull = own.differentiate(call, asked)
        return returned

    def _argument(self, one: Any, tensors: list[Any]) -> Any:
        match one:
            case {"tensor": number}:
                return tensors[number]
            case {"returned": number}:
                return self.returned[number] if isinstance(self.returned, tuple) else self.returned
        return decoded(one["plain"])

    def _guarded(self, device: str, call: Callable[[], Any], *, keep: bool) -> tuple[Header, Blobs]:
        """Return what a call returned, copied at once, or what it raised."""
        try:
            with self.state.restoring():
                returned = call()
                self.own.wait(device, returned)
                answer = self._shown(returned, every_value=not keep)
        except BaseException as error:
            told = failed("", error)
            if self.own.lost(device):
                end_process(f"the kernel{told}; no call of this process can use {device} any more")
            return {"raised": str(told), "starved": isinstance(told, OutOfMemory), **self._noted()}, []
        self.last = returned, not keep
        if keep:
            self.returned = returned
        return answer[0] | self._noted(), answer[1]

    def _noted(self) -> Header:
        return {"noted": list(self.state.changes)[:MOST_NOTED]}

    def _shown(self, returned: Any, *, every_value: bool) -> tuple[Header, Blobs]:
        """Return a result as its parts: the type of each part, and the values of tensors that the judge may read."""
        kinds = {"dict": Mapping, "tuple": tuple, "list": list}
        kind = next((name for name, own in kinds.items() if isinstance(returned, own)), "one")
        every = returned_parts(returned)
        parts, blobs = [], []
        for place, x in every.items():
            part: Header = {"type": type(x).__name__, "module": type(x).__module__}
            if x is not None and self.own.is_own(x):
                part |= {"dtype": self.own.dtype_of(x), "device": self.own.device_of(x), "shape": list(x.shape)}
                part["values"] = every_value or place == 0 or len(part["shape"]) <= MOST_AXES
                blobs += [self.own.take(x).astype(np.float64)] if part["values"] else []
            parts.append(part)
        names = list(every) if kind == "dict" else None
        return {"kind": kind, "parts": parts, "names": names}, blobs

"""The judge's view of a kernel in another process: a declaration, calls that are sent, and NumPy arrays for tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from attn_spec.isolation.answer import StandIn, line
from attn_spec.isolation.process import DiedError
from attn_spec.isolation.wire import Wire
from attn_spec.kernels.frameworks.framework import Call, Differentiating, FrameworkError, Pull, Strided
from attn_spec.kernels.frameworks.framework import framework as framework_named
from attn_spec.kernels.frameworks.numpy import NUMPY
from attn_spec.kernels.kernel import KernelError

#: Attributes that are copied from a kernel's framework, because each kernel has its own.
FACTS = ("name", "usual", "abilities", "script_gives", "script_takes", "script_differentiates")


class Remote(Strided):
    """The framework of a kernel in another process: its tensors are NumPy arrays here, and its own tensors there."""

    def __init__(self, name: str, wire: Wire) -> None:
        self.there = framework_named(name)
        self.wire = wire
        self._can_give: set[tuple[str, str]] = set()
        vars(self).update({fact: getattr(self.there, fact) for fact in FACTS})

    @property
    def processes(self) -> tuple[int, ...]:
        return (*super().processes, *self.wire.process.numbers)

    @property
    def tensor_type(self) -> type:
        return self.there.tensor_type

    def is_own(self, tensor: Any) -> bool:
        return isinstance(tensor, StandIn) and tensor.named is not None

    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> StandIn:
        """Return the array that stands for a new tensor. Raises :class:`FrameworkError` for unknown dtypes."""
        self.wire.device = device
        if values.dtype == np.float64 and (dtype, device) not in self._can_give:
            try:
                answer, _ = self.wire.process.ask({"do": "give", "dtype": dtype, "device": device})
            except DiedError as error:
                raise FrameworkError(str(error)) from None
            if "refused" in answer:
                raise FrameworkError(line(str(answer["refused"])))
            self._can_give.add((dtype, device))
        found = NUMPY.give(values, dtype).view(StandIn)
        found.framework = self
        return found

    def take(self, tensor: Any) -> np.ndarray:
        return NUMPY.take(np.asarray(tensor))

    def held(self, tensor: Any) -> StandIn:
        found = tensor.view(StandIn)
        found.named, found.device = str(tensor.dtype), self.wire.device.partition(":")[0]
        return found

    @contextmanager
    def kept(self, returned: Any) -> Iterator[Callable[[], Any]]:
        """Have the worker keep its last call, which the last call is again after the results were read."""
        del returned
        with self.wire.last_call_kept() as again:
            yield again

    def dtype_of(self, tensor: Any) -> str:
        return getattr(tensor, "named", None) or str(tensor.dtype)

    def device_of(self, tensor: Any) -> str:
        return tensor.device

    def missing(self, device: str) -> str:
        try:
            answer, _ = self.wire.process.ask({"do": "missing", "device": device})
        except DiedError as error:
            return str(error)
        return line(str(answer.get("missing", "")))

    def end(self) -> None:
        """End the process; the next call begins another."""
        self.wire.process.end()

    def imported(self) -> tuple[list[str], dict[str, str]]:
        """Return the files and packages that the process reports as imported; both are empty if it does not answer."""
        try:
            answer, _ = self.wire.process.ask({"do": "imported"})
        except (DiedError, KernelError):
            return [], {}
        files, packages = answer.get("files"), answer.get("packages")
        named = [name for name in files if isinstance(name, str)] if isinstance(files, list) else []
        known = packages.items() if isinstance(packages, dict) else ()
        return named, {line(name): line(text) for name, text in known if isinstance(text, str)}

    def device_name(self, device: str) -> str:
        return self.there.device_name(device)

    def of_nan(self, tensor: Any, shape: Sequence[int]) -> np.ndarray:
        return NUMPY.of_nan(tensor, shape)

    def packed(self, tensor: Any) -> np.ndarray:
        return NUMPY.packed(tensor)

    def expanded(self, tensor: Any, shape: Sequence[int]) -> np.ndarray:
        return NUMPY.expanded(tensor, shape)

    def vast(self, tensor: Any, strides: Sequence[int]) -> np.ndarray:
        return NUMPY.vast(tensor, strides)

    def placed(self, buffer: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray:
        return NUMPY.placed(buffer, shape, strides, offset)

    def free_nan(self, tensor: Any, shapes: Sequence[Sequence[int]]) -> Any:
        """Return the tensor with a note of the buffers to free, since they must be freed in the worker's memory."""
        noted = tensor.view(StandIn)
        noted.freed = [list(shape) for shape in shapes]
        return noted


class RemoteDifferentiating(Remote, Differentiating):
    """The framework of a kernel in another process, for frameworks that differentiate."""

    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        self.wire.recording = {id(x): name for name, x in inputs.items()}
        try:
            returned = call(inputs)
        finally:
            self.wire.recording = {}

        def pull(cotangents: Sequence[Any], *, again: bool = False) -> dict[str, Any]:
            found = self.wire.pull(cotangents, again=again)
            return dict(found) if isinstance(found, Mapping) else {}

        return returned, pull


class RemoteFunction:
    """A function of the kernel's process, as a callable of this process."""

    def __init__(self, wire: Wire, what: str, name: str) -> None:
        self.wire, self.what = wire, what
        self.__name__ = name

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Call the function in the kernel's process and return its result."""
        return self.wire.call(self.what, tensors, options)


def remote_framework(name: str, wire: Wire) -> Remote:
    """Return the framework of this name in another process. Raises :class:`FrameworkError`."""
    kind: Callable[[str, Wire], Remote] = Remote
    if isinstance(framework_named(name), Differentiating):
        kind = RemoteDifferentiating
    wire.library = kind(name, wire)
    return wire.library

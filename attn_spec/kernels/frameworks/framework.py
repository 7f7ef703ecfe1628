"""Facts about a library of tensors, and its look-up by name or by one of its tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

import numpy as np

from attn_spec.faults import with_article
from attn_spec.numbers import bits


class FrameworkError(Exception):
    """A framework that is unknown, not installed, or without what is asked of it; the text says what to do next."""


#: A function of tensors by name that returns a tensor or a tuple of tensors.
Call = Callable[[Mapping[str, Any]], Any]
#: From cotangents to gradients by name; ``again=True`` says that it is going to be called once more.
Pull = Callable[..., dict[str, Any]]

#: An integer that is nobody's position.
NO_POSITION = -(2**62)


class Framework(ABC):
    """A library of tensors. Its module is imported when a kernel or a tensor names it."""

    #: The library's name, which is that of its package too.
    name: ClassVar[str]
    #: Formats that an undecorated callable is tried with.
    usual: ClassVar[tuple[str, ...]]
    #: Abilities that its tensors give to any kernel: names of ``problem.abilities``.
    abilities: ClassVar[frozenset[str]]
    #: Statements of a script without attn-spec. The tensor of ``array``, float64 or bool, in ``dtype`` on DEVICE; and
    #: the float64 array of a tensor ``x``.
    script_gives: ClassVar[str]
    script_takes: ClassVar[str]
    #: Likewise: what ``call(inputs)`` returns, as a list, and the gradients in ``inputs``, a list of tensors, that
    #: ``passes`` passes back give for ``cotangents`` of what was returned first.
    script_differentiates: ClassVar[str] = "raise NotImplementedError"

    @property
    @abstractmethod
    def tensor_type(self) -> type:
        """The type of its tensors; a kernel may return no other."""

    @abstractmethod
    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> Any:
        """Exact values as a new tensor of ``dtype``; bool as bool, integers as the library's own."""

    @abstractmethod
    def take(self, tensor: Any) -> np.ndarray:
        """The exact values of a tensor, float64 or bool, in memory of their own."""

    def is_own(self, tensor: Any) -> bool:
        """Return whether ``tensor`` is of the type that a kernel may return."""
        return type(tensor) is self.tensor_type

    def dtype_of(self, tensor: Any) -> str:
        """Name of the tensor's dtype, e.g. ``"bfloat16"``."""
        return str(tensor.dtype)

    def device_of(self, tensor: Any) -> str:
        """Kind of the device that the tensor is on: "cpu", "cuda"."""
        del tensor
        return "cpu"

    def unreadable(self, tensor: Any) -> str:
        """The kind of a tensor whose values are no dense array, as "a nested tensor"; empty for a dense tensor."""
        del tensor
        return ""

    def missing(self, device: str) -> str:
        """Why nothing can run on ``device``; empty when it can."""
        return "" if device == "cpu" else f"{self.name} has no device {device}; choose device cpu"

    def device_name(self, device: str) -> str:
        """What a device other than "cpu" is called by its maker. Raises :class:`FrameworkError`."""
        raise FrameworkError(self.missing(device))

    def wait(self, device: str, returned: Any) -> None:
        """Return when what was returned is there, so that what goes wrong is told by the call that began it."""
        del device, returned

    def lost(self, device: str) -> bool:
        """Return whether the device answers no call of this process any more, as after an illegal memory access."""
        del device
        return False


class Strided(Framework):
    """A framework with the ability "strides": a tensor may lie in memory in any of them."""

    @abstractmethod
    def of_nan(self, tensor: Any, shape: Sequence[int]) -> Any:
        """A buffer of NaN, or of :data:`NO_POSITION`, of the tensor's kind."""

    @abstractmethod
    def packed(self, tensor: Any) -> Any:
        """Return a tensor of the same values, row by row in memory."""

    @abstractmethod
    def expanded(self, tensor: Any, shape: Sequence[int]) -> Any:
        """The tensor broadcast to ``shape`` with strides of 0."""

    @abstractmethod
    def vast(self, tensor: Any, strides: Sequence[int]) -> Any:
        """A tensor like this one with these strides, in elements; memory of the CPU is committed where it is touched.

        Raises MemoryError, OSError or RuntimeError where the system refuses.
        """

    @abstractmethod
    def placed(self, buffer: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        """The view of a packed buffer that has this shape, strides and offset, in elements."""

    def free_nan(self, tensor: Any, shapes: Sequence[Sequence[int]]) -> Any:
        """The tensor itself, after buffers of NaN of these shapes were allocated and freed again."""
        for shape in shapes:
            held = [self.of_nan(tensor, shape) for _ in range(4)]
            del held
        return tensor


class Differentiating(Framework):
    """A framework with the ability "autograd"."""

    @abstractmethod
    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        """Return what ``call`` returns for ``inputs`` by name, and the function that pulls cotangents back to them.

        That takes the cotangents of the first tensors returned, and whether it is called again after this pass. It
        gives the gradients by name: None or no entry where an input has no influence.
        """


@cache
def known() -> tuple[str, ...]:
    """Names of all frameworks."""
    return tuple(sorted(entry_points(group="attn_spec.frameworks").names))


@cache
def framework(name: str) -> Framework:
    """The framework of that name. Raises :class:`FrameworkError`."""
    found = [entry for entry in entry_points(group="attn_spec.frameworks") if entry.name == name]
    if not found:
        raise FrameworkError(f"framework must be one of {', '.join(known())}, not {name!r}")
    try:
        return found[0].load()
    except ImportError as error:
        raise FrameworkError(f"{name} is not installed ({error}); pip install 'attn-spec[{name}]'") from error


def of(tensor: Any) -> Framework:
    """The framework whose tensor this is. Raises :class:`FrameworkError`."""
    if isinstance(own := getattr(tensor, "framework", None), Framework):
        return own  # an array that stands for a tensor of another process
    for parent in type(tensor).__mro__:
        package = parent.__module__.partition(".")[0].removesuffix("lib")  # jaxlib holds the arrays of jax
        if package in known():
            return framework(package)
    raise FrameworkError(f"{with_article(type(tensor).__name__)} is a tensor of none of {', '.join(known())}")


def strided(tensor: Any) -> Strided:
    """The framework whose tensor this is, which lays it in memory. Raises :class:`FrameworkError`."""
    own = of(tensor)
    if not isinstance(own, Strided):
        raise FrameworkError(f"{own.name} does not say how its tensors lie in memory")
    return own


def values_of(tensor: Any) -> bits.Values:
    """The exact values of a tensor of any framework, as float64."""
    return of(tensor).take(tensor).astype(np.float64, copy=False)

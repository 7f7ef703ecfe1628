"""Interface to a library of tensors, and its look-up by name or by one of its tensors."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar

import numpy as np

from attn_spec.faults import with_article
from attn_spec.numbers import bits


class FrameworkError(Exception):
    """A framework is unknown, not installed, or lacks a feature; the message says what to do next."""


#: Function of tensors by name that returns a tensor or a tuple of tensors.
Call = Callable[[Mapping[str, Any]], Any]
#: Function from cotangents to gradients by name; ``again=True`` says that it will be called once more.
Pull = Callable[..., dict[str, Any]]

#: Integers that no sound call reads, by dtype: one that is no position, and one that symmetric quantisers leave out.
UNUSED_INTEGERS = {"int64": -(2**62), "int8": -128}


class Framework(ABC):
    """A library of tensors. Its module is imported when a kernel or a tensor names it."""

    #: Name of the library and of its package.
    name: ClassVar[str]
    #: Dtypes with which an undecorated callable is tried.
    usual: ClassVar[tuple[str, ...]]
    #: Abilities that the library's tensors give to any kernel: names of ``problem.abilities``.
    abilities: ClassVar[frozenset[str]]
    #: Statements for a script without attn-spec that return the tensor of ``array``, float64 or bool, in ``dtype`` on
    #: DEVICE.
    script_gives: ClassVar[str]
    #: Statements for a script without attn-spec that return the float64 array of a tensor ``x``.
    script_takes: ClassVar[str]
    #: Statements for a script without attn-spec that return the list ``call(inputs)`` and the gradients in the list
    #: ``inputs``. The gradients come from ``passes`` backward passes with ``cotangents`` of the first results.
    script_differentiates: ClassVar[str] = "raise NotImplementedError"

    @property
    def processes(self) -> tuple[int, ...]:
        """Numbers of the processes that a call keeps busy."""
        return (os.getpid(),)

    @property
    @abstractmethod
    def tensor_type(self) -> type:
        """Type of the library's tensors; a kernel may return no other."""

    @abstractmethod
    def give(self, values: np.ndarray, dtype: str, device: str = "cpu") -> Any:
        """Return exact values as a new tensor of ``dtype``; bool stays bool, integers become the library's integers."""

    @abstractmethod
    def take(self, tensor: Any) -> np.ndarray:
        """Return the exact values of a tensor, float64 or bool, in memory of their own."""

    def is_own(self, tensor: Any) -> bool:
        """Return whether ``tensor`` has the type that a kernel may return."""
        return type(tensor) is self.tensor_type

    def dtype_of(self, tensor: Any) -> str:
        """Return the name of the tensor's dtype, e.g. ``"bfloat16"``."""
        return str(tensor.dtype)

    def device_of(self, tensor: Any) -> str:
        """Return the type of the tensor's device: "cpu" or "cuda"."""
        del tensor
        return "cpu"

    def unreadable(self, tensor: Any) -> str:
        """Return the kind of a tensor without dense values, such as "a nested tensor"; an empty text for a dense
        tensor.
        """
        del tensor
        return ""

    def indexable(self, tensor: Any) -> Any:
        """Return a tensor of the same values and dtype that arrays of integers index; it may be a NumPy array."""
        return tensor

    def repeated(self, tensor: Any, axis: int, count: int) -> Any:
        """Return a tensor in which the one entry along an axis, counted from the first axis, stands ``count`` times."""
        return tensor[(slice(None),) * axis + (np.zeros(count, dtype=np.int64),)]

    def cast(self, tensor: Any, dtype: str) -> Any:
        """Return a tensor of the same values in another dtype."""
        return tensor.astype(dtype)

    def held(self, tensor: Any) -> Any:
        """Return a tensor that a call was given to write into, as one that the call returned."""
        return tensor

    def release(self) -> None:  # noqa: B027 -- most frameworks keep none
        """Give memory of devices that the framework keeps for later tensors back to the system."""

    def missing(self, device: str) -> str:
        """Return why nothing can run on ``device``; an empty text if it can be used."""
        return "" if device == "cpu" else f"{self.name} has no device {device}; choose device cpu"

    def device_name(self, device: str) -> str:
        """Return the manufacturer's name of a device other than "cpu". Raises :class:`FrameworkError`."""
        raise FrameworkError(self.missing(device))

    @contextmanager
    def kept(self, returned: Any) -> Iterator[Callable[[], Any]]:
        """Keep what the last call returned while other calls are made; yield a function that reads it after them.

        It gives the same results, with the values that they have by then.
        """
        yield lambda: returned

    def wait(self, device: str, returned: Any) -> None:
        """Wait until the returned tensors are computed, so that an asynchronous error is raised by the call that caused
        it.
        """
        del device, returned

    def lost(self, device: str) -> bool:
        """Return whether the device can serve no further call of this process, as after an illegal memory access."""
        del device
        return False


class Strided(Framework):
    """A framework with the ability "strides": its tensors may have any strides."""

    @abstractmethod
    def of_nan(self, tensor: Any, shape: Sequence[int]) -> Any:
        """Return a buffer of NaN, or of ``UNUSED_INTEGERS``, with the dtype and device of ``tensor``."""

    @abstractmethod
    def packed(self, tensor: Any) -> Any:
        """Return a tensor of the same values in row-major layout."""

    @abstractmethod
    def expanded(self, tensor: Any, shape: Sequence[int]) -> Any:
        """Return the tensor broadcast to ``shape`` with strides of 0."""

    @abstractmethod
    def vast(self, tensor: Any, strides: Sequence[int]) -> Any:
        """Return a tensor of the same values with these strides, in elements; CPU memory is committed only where
        touched.

        Raises MemoryError, OSError or RuntimeError if the system refuses.
        """

    @abstractmethod
    def placed(self, buffer: Any, shape: Sequence[int], strides: Sequence[int], offset: int) -> Any:
        """Return the view of a packed buffer with this shape, strides and offset, in elements."""

    def free_nan(self, tensor: Any, shapes: Sequence[Sequence[int]]) -> Any:
        """Return the tensor itself, after buffers of NaN of these shapes were allocated and freed."""
        for shape in shapes:
            held = [self.of_nan(tensor, shape) for _ in range(4)]
            del held
        return tensor


class Differentiating(Framework):
    """A framework with the ability "autograd"."""

    @abstractmethod
    def differentiate(self, call: Call, inputs: Mapping[str, Any]) -> tuple[Any, Pull]:
        """Return ``call(inputs)`` for ``inputs`` by name, and the function that pulls cotangents back to the inputs.

        The function takes the cotangents of the first returned tensors, and whether it is called again after this pass.
        It returns gradients by name, with None or no entry for an input without influence.
        """


@cache
def known() -> tuple[str, ...]:
    """Return the names of all frameworks."""
    return tuple(sorted(entry_points(group="attn_spec.frameworks").names))


@cache
def framework(name: str) -> Framework:
    """Return the framework with this name. Raises :class:`FrameworkError`."""
    found = [entry for entry in entry_points(group="attn_spec.frameworks") if entry.name == name]
    if not found:
        raise FrameworkError(f"framework must be one of {', '.join(known())}, not {name!r}")
    try:
        return found[0].load()
    except ImportError as error:
        raise FrameworkError(f"{name} is not installed ({error}); pip install 'attn-spec[{name}]'") from error


def of(tensor: Any) -> Framework:
    """Return the framework of a tensor. Raises :class:`FrameworkError`."""
    if isinstance(own := getattr(tensor, "framework", None), Framework):
        return own  # an array that stands for a tensor of another process
    for parent in type(tensor).__mro__:
        package = parent.__module__.partition(".")[0].removesuffix("lib")  # jaxlib holds the arrays of jax
        if package in known():
            return framework(package)
    raise FrameworkError(f"{with_article(type(tensor).__name__)} is a tensor of none of {', '.join(known())}")


def strided(tensor: Any) -> Strided:
    """Return the framework of a tensor if it has strides. Raises :class:`FrameworkError`."""
    own = of(tensor)
    if not isinstance(own, Strided):
        raise FrameworkError(f"tensors of {own.name} have no strides; use a framework with the ability strides")
    return own


def values_of(tensor: Any) -> bits.Values:
    """Return the exact values of a tensor of any framework, as float64."""
    return of(tensor).take(tensor).astype(np.float64, copy=False)

"""What a kernel's process answers to a call, every field of it checked, as values of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.misbehaviour import Misbehaviour

#: Axes of a tensor, and the length of one, at most.
MOST_AXES, LONGEST = 16, 2**40
#: Changes of global state that are told, at most.
MOST_NOTED = 100


class StandIn(np.ndarray):
    """An array that stands for a tensor of the worker: one it is to be given, or one that it returned."""

    #: The library of the tensor, as ``framework.of`` finds it.
    framework: Framework | None = None
    #: Shapes of buffers of NaN that are allocated and freed before the call.
    freed: Sequence[Sequence[int]] = ()
    #: Of what was returned: the library's name of its dtype, the kind of its device, its number in the result, and of
    #: which call that was.
    named: str | None = None
    device: str = "cpu"  # type: ignore[assignment] -- that of the tensor, not of the array
    origin: tuple[int, int] | None = None

    def __array_finalize__(self, other: Any) -> None:
        """A view stands for a tensor of the same library."""
        self.framework = getattr(other, "framework", None)


class Part(BaseModel):
    """One part of a result."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = Field(max_length=200)
    module: str = Field(default="", max_length=200)
    dtype: str | None = Field(default=None, max_length=100)
    device: str = Field(default="", max_length=100)
    shape: list[int] = Field(default=[], max_length=MOST_AXES)
    #: Whether its values follow, as float64.
    values: bool = False


class Result(BaseModel):
    """An answer of the worker to a call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = "one"
    parts: list[Part] = Field(default=[], max_length=1000)
    names: list[str] | None = None
    #: Numbers of the tensors that the call changed, whose values follow too.
    changed: list[int] = []
    raised: str | None = None
    #: Whether that was for want of memory.
    starved: bool = False
    not_taken: str | None = None
    #: What of the state of its process calls have changed so far.
    noted: list[str] = Field(default=[], max_length=MOST_NOTED)


def returned(result: Result, blobs: list[np.ndarray], library: Framework | None, call: int | None) -> Any:
    """What the call of that number returned, None for one to whose result nobody refers.

    Its values are taken from the front of ``blobs``. Raises ``ValueError`` for what cannot be.
    """
    parts = [_part(part, blobs, library) for part in result.parts]
    for place, part in enumerate(parts):
        if call is not None and isinstance(part, StandIn):
            part.origin = call, place
    match result.kind:
        case "one" if len(parts) == 1:
            return parts[0]
        case "tuple":
            return tuple(parts)
        case "list":
            return parts
        case "dict" if result.names is not None and len(set(result.names)) == len(parts):
            return dict(zip(result.names, parts, strict=True))
    raise ValueError(f"a {result.kind} of {len(parts)} parts")


def _part(part: Part, blobs: list[np.ndarray], library: Framework | None) -> Any:
    if part.dtype is None:
        return None if part.type == "NoneType" else _foreign(part.type, part.module)()
    if not all(0 <= length < LONGEST for length in part.shape):
        raise ValueError(f"a tensor of shape {part.shape}")
    array = _values(blobs, part.shape) if part.values else np.broadcast_to(np.array(np.nan), part.shape)
    found = array.view(StandIn)
    found.framework, found.named, found.device = library, part.dtype, part.device
    return found


def change(arrays: Sequence[np.ndarray], changed: Sequence[int], blobs: list[np.ndarray]) -> None:
    """Give arrays the values that the call has left in their tensors; all of ``blobs`` are theirs.

    Raises ``ValueError`` for what cannot be, and :class:`Misbehaviour` where an array cannot be written to.
    """
    for number in changed:
        if not 0 <= number < len(arrays):
            raise ValueError(f"a change of tensor {number}")
        values = _values(blobs, arrays[number].shape)
        if not arrays[number].flags.writeable:
            raise Misbehaviour("the kernel changed an expanded input in place; it must leave its inputs alone")
        arrays[number][...] = values
    if blobs:
        raise ValueError("bytes of nothing that was returned")


def _values(blobs: list[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """The next bytes as float64 numbers of that shape. Raises ``ValueError``."""
    if not blobs:
        raise ValueError("a tensor without values")
    return blobs.pop(0).view(np.float64).reshape(shape)


@cache
def _foreign(name: str, module: str) -> type:
    """A type of that name and module, for what is none of the framework's tensors."""
    return type(name if name.isidentifier() else "object", (), {"__module__": module})


def line(text: str) -> str:
    """What the worker says, as one line that can be printed."""
    return "".join(x if x.isprintable() else " " for x in text)[:500]

"""Answers of a kernel's process to a call: every field is checked before it becomes a value of this process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.misbehaviour import Misbehaviour

#: Largest number of axes of a tensor, and largest length of an axis.
MOST_AXES, LONGEST = 16, 2**40
#: Largest number of changes of global state that an answer may report.
MOST_NOTED = 100


class StandIn(np.ndarray):
    """An array that stands for a tensor of the worker: a tensor to send, or a tensor that the kernel returned."""

    #: Library of the tensor, read by ``framework.of``.
    framework: Framework | None = None
    #: Shapes of buffers filled with NaN that the worker allocates and frees before the call.
    freed: Sequence[Sequence[int]] = ()
    #: Facts about a returned tensor: its library's name of the dtype, its device kind, and its call and place in the
    #: result.
    named: str | None = None
    device: str = "cpu"  # type: ignore[assignment] -- device of the tensor, not of the array
    origin: tuple[int, int] | None = None

    def __array_finalize__(self, other: Any) -> None:
        """Give a view the same library as the array it was made from."""
        self.framework = getattr(other, "framework", None)


class Part(BaseModel):
    """Description of one part of a result."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = Field(max_length=200)
    module: str = Field(default="", max_length=200)
    dtype: str | None = Field(default=None, max_length=100)
    device: str = Field(default="", max_length=100)
    shape: list[int] = Field(default=[], max_length=MOST_AXES)
    #: True if the part's values follow the header, as float64.
    values: bool = False


class Result(BaseModel):
    """Header of the worker's answer to a call."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = "one"
    parts: list[Part] = Field(default=[], max_length=1000)
    names: list[str] | None = None
    #: Numbers of the input tensors that the call changed, whose new values follow too.
    changed: list[int] = []
    raised: str | None = None
    #: True if the call raised because memory ran out.
    starved: bool = False
    not_taken: str | None = None
    #: Global state of the worker's process that calls have changed so far.
    noted: list[str] = Field(default=[], max_length=MOST_NOTED)


def returned(result: Result, blobs: list[np.ndarray], library: Framework | None, call: int | None) -> Any:
    """Return the result of a call as values of this process; ``call`` numbers it if later calls may refer to it.

    The values are taken from the front of ``blobs``. Raises ``ValueError`` if the header is not consistent.
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
    raise ValueError(f"the header announces a {result.kind} of {len(parts)} parts, which is not a valid result")


def _part(part: Part, blobs: list[np.ndarray], library: Framework | None) -> Any:
    if part.dtype is None:
        return None if part.type == "NoneType" else _foreign(part.type, part.module)()
    if not all(0 <= length < LONGEST for length in part.shape):
        raise ValueError(f"the header announces a tensor of the impossible shape {part.shape}")
    array = _values(blobs, part.shape) if part.values else np.broadcast_to(np.array(np.nan), part.shape)
    found = array.view(StandIn)
    found.framework, found.named, found.device = library, part.dtype, part.device
    return found


def change(arrays: Sequence[np.ndarray], changed: Sequence[int], blobs: list[np.ndarray]) -> None:
    """Write the values that the call left in its tensors into ``arrays``; all of ``blobs`` belong to them.

    Raises ``ValueError`` if header and bytes are not consistent, and :class:`Misbehaviour` if an array cannot be
    written to.
    """
    for number in changed:
        if not 0 <= number < len(arrays):
            raise ValueError(f"the header reports a change of tensor {number}, but the call had {len(arrays)} tensors")
        values = _values(blobs, arrays[number].shape)
        if not arrays[number].flags.writeable:
            raise Misbehaviour("the kernel changed an expanded input in place; it must leave its inputs alone")
        arrays[number][...] = values
    if blobs:
        raise ValueError("the kernel's process sent more bytes than its header announced")


def _values(blobs: list[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Return the next bytes as float64 numbers of this shape. Raises ``ValueError`` if there are none, or too few."""
    if not blobs:
        raise ValueError("the header announces a tensor whose values did not follow")
    return blobs.pop(0).view(np.float64).reshape(shape)


@cache
def _foreign(name: str, module: str) -> type:
    """Return a type of this name and module, to stand for a value that is no tensor of the framework."""
    return type(name if name.isidentifier() else "object", (), {"__module__": module})


def line(text: str) -> str:
    """Return text from the worker as one printable line of at most 500 characters."""
    return "".join(x if x.isprintable() else " " for x in text)[:500]

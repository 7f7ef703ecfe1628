"""Tensors that a worker makes of received bytes: with the judge's memory layout, in buffers that calls reuse."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_spec.isolation.channel import Header
from attn_spec.isolation.tensors import array_of
from attn_spec.kernels.frameworks.framework import Framework, Strided
from attn_spec.kernels.frameworks.numpy import strided
from attn_spec.kernels.limits import NotTaken
from attn_spec.numbers import bits


@dataclass
class Made:
    """A tensor, the buffer that holds it, and the values it was given."""

    tensor: Any
    buffer: Any
    #: Dtype, device and shape of the buffer: a buffer is reused only if all of these are equal.
    kind: tuple[Any, ...]
    values: np.ndarray


class Handed:
    """The tensors of the last call, by the numbers of their places."""

    def __init__(self) -> None:
        self._made: list[Made] = []
        self._places: dict[int, Made] = {}
        #: True if a tensor of the last call has elements far apart, and so gigabytes of a device's memory.
        self._has_vast = False

    def tensors(self, own: Framework, device: str, every: list[Header], blobs: list[np.ndarray]) -> list[Any]:
        """Make the tensors of a call, in the buffers of the call before if places and kinds are equal.

        Memory of tensors whose elements are far apart goes back to the system, since other processes share a device.
        Raises ``MemoryError``, and :class:`NotTaken` if the system has no memory for such a tensor.
        """
        used = {described["place"] for described in every}
        self._places = {place: made for place, made in self._places.items() if place in used}
        self._made = []
        if self._has_vast:
            own.release()
        self._has_vast = any("apart" in described for described in every)
        for described, blob in zip(every, blobs, strict=True):
            made = self._one(own, device, described, array_of(blob, described["dtype"]))
            self._places[described["place"]] = made
            self._made.append(made)
            if described["freed"]:
                assert isinstance(own, Strided)
                own.free_nan(made.tensor, [tuple(shape) for shape in described["freed"]])
        return [made.tensor for made in self._made]

    def _one(self, own: Framework, device: str, described: Header, sent: np.ndarray) -> Made:
        shape, dtype = tuple(described["shape"]), described["dtype"]
        if "apart" in described:
            assert isinstance(own, Strided)
            values = sent.reshape(shape)
            try:
                tensor = own.vast(_given(own, values, dtype, device), described["apart"])
            except (MemoryError, OSError, RuntimeError) as error:
                raise NotTaken(f"no buffer can be allocated with elements this far apart: {error}") from error
            return Made(tensor, None, (), values)
        whole = shape if "strides" not in described else sent.shape
        kind = (dtype, device, whole)
        before = self._places.get(described["place"])
        if before is not None and before.kind == kind and "in_place" in own.abilities:
            buffer = before.buffer
            buffer[...] = _given(own, sent.reshape(whole), dtype, device)
        else:
            buffer = _given(own, sent.reshape(whole), dtype, device)
        if "strides" not in described:
            return Made(buffer, buffer, kind, sent.reshape(shape))
        assert isinstance(own, Strided)
        strides, offset = described["strides"], described["offset"]
        places = strided(sent[offset:], shape, [sent.itemsize * step for step in strides])
        return Made(own.placed(buffer, shape, strides, offset), buffer, kind, places)

    def changed(self, own: Framework) -> dict[int, np.ndarray]:
        """Return the values, as float64, of the tensors that the call has changed, by their numbers.

        A tensor whose shape has changed is reported as NaN in its old shape.
        """
        found = {}
        for number, made in enumerate(self._made):
            now, before = own.take(made.tensor).astype(np.float64), made.values.astype(np.float64)
            if now.shape != before.shape or not bits.identical(now, before).all():
                found[number] = now if now.shape == before.shape else np.full(before.shape, math.nan)
        return found

    def forget(self, *, recorded: bool) -> None:
        """Forget the tensors of this call, and the buffers if ``recorded``: a graph keeps recorded tensors."""
        self._places = {} if recorded else self._places
        self._made = []


def _given(own: Framework, values: np.ndarray, dtype: str, device: str) -> Any:
    """Return a new tensor of these values."""
    exact = values if values.dtype.kind in "bi" else values.astype(np.float64)
    return own.give(exact, dtype, device)

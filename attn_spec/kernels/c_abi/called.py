"""A C function, called as attn-spec calls kernels."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from attn_spec.kernels.c_abi.dlpack import structure
from attn_spec.kernels.c_abi.passed import Passed
from attn_spec.kernels.c_abi.prototype import INTEGERS, REALS, STRUCTURES, Parameter, Prototype
from attn_spec.kernels.c_abi.words import COUNTS, INPUTS, NUMBERS, RESULTS, STRIDE, letters, supported
from attn_spec.kernels.presentations.presentation import Presentation
from attn_spec.problem.options import OPTIONS


class StatusError(RuntimeError):
    """A C function returned a status other than 0."""


class OverrunError(RuntimeError):
    """A C function wrote outside the memory of its tensors."""


class Called:
    """A C function that is passed arrays of NumPy, and writes into those for its results.

    ``entry`` is the function of the library, ``shown`` the presentation in which it is given tensors.
    """

    def __init__(self, prototype: Prototype, entry: Callable[..., Any], shown: Presentation) -> None:
        self.prototype, self.shown, self._entry = prototype, shown, entry
        self.__name__ = prototype.symbol
        self.__signature__ = inspect.Signature(list(self._signature()))

    def __call__(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> None:
        """Call the function. Raises :class:`StatusError` or :class:`OverrunError`."""
        given = {"q": q, "k": k, "v": v, **options}
        lengths = self._lengths(given)
        passed = {
            name: self._passed(name, given[name], lengths) for name in self._tensors if given.get(name) is not None
        }
        status = self._entry(*(self._value(each, given, lengths, passed) for each in self.prototype.parameters))
        symbol = self.prototype.symbol
        for name, each in passed.items():
            if side := each.overrun():
                raise OverrunError(f"{symbol} wrote {side} the memory of {name}, of shape {each.shape}")
            each.take_back()
        if status:
            raise StatusError(f"{symbol} returned the status {status}; 0 is success")

    def _lengths(self, given: Mapping[str, Any]) -> dict[str, int]:
        """Return the lengths of the axes of a call, by the words of counts."""
        q, k, v = (self.shown.read(name, given[name], **given) for name in INPUTS)
        batch, heads, queries, width = q.shape
        own = (batch, heads, k.shape[1], queries, k.shape[2], width, v.shape[3])
        return dict(zip(COUNTS, own, strict=True))

    def _passed(self, name: str, array: np.ndarray, lengths: Mapping[str, int]) -> Passed:
        """Return a tensor in memory for the function."""
        shape = array.shape
        if name in OPTIONS:
            by_letter = {letter: lengths[word] for letter, word in _WORDS_OF_AXES.items()}
            shape = self.shown.shape_of_option(name, by_letter)
        return Passed(array, shape, self._told(name, len(shape)))

    def _told(self, name: str, axes: int) -> dict[int, int]:
        """Return the axes of a tensor whose strides the function is told, each with the largest stride it can have."""
        if (own := self.prototype.named(name)) is not None and own.type in STRUCTURES:
            return dict.fromkeys(range(axes), 2**63 - 1)
        return {
            axis: _largest(each) for word, axis in self._strides[name].items() if (each := self.prototype.named(word))
        }

    @cached_property
    def _tensors(self) -> list[str]:
        return [each.name for each in self.prototype.parameters if each.points]

    @cached_property
    def _strides(self) -> dict[str, dict[str, int]]:
        """Axis of each word of a stride, by tensor."""
        return {
            name: {f"{name}{STRIDE}{letter}": axis for axis, letter in enumerate(letters(name, self.shown))}
            for name in self._tensors
        }

    def _value(
        self, parameter: Parameter, given: Mapping[str, Any], lengths: Mapping[str, int], passed: Mapping[str, Passed]
    ) -> Any:
        """Return what a call passes in a parameter."""
        name = parameter.name
        if parameter.points:
            return self._pointer(parameter, passed.get(name), given)
        if name in COUNTS:
            return lengths[name]
        if name in NUMBERS:
            number = NUMBERS[name]
            return _number(parameter, number.value(given.get(number.option), lengths["D"]))
        tensor = name.partition(STRIDE)[0]
        own = passed.get(tensor)
        return 0 if own is None else own.strides[self._strides[tensor][name]]

    def _pointer(self, parameter: Parameter, own: Passed | None, given: Mapping[str, Any]) -> Any:
        """Return a pointer to a tensor, or to its structure; a null pointer for an option that is not used."""
        if own is None or parameter.type not in STRUCTURES:
            return None if own is None else own.address
        made = structure(own.address, own.shape, own.strides, given[parameter.name].dtype.name)
        return ctypes.cast(ctypes.pointer(made), ctypes.c_void_p)

    def _signature(self) -> Iterator[inspect.Parameter]:
        """Yield the parameters of calls as attn-spec makes them."""
        yield from (inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in INPUTS)
        results = [name for name in RESULTS if self.prototype.named(name)]
        heads = self.shown.says_heads
        yield from (inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*results, *heads))
        for name in sorted(supported(self.prototype, self.shown) & set(OPTIONS)):
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=OPTIONS[name].off)


#: Words of counts, by the letters of axes in rows of options.
_WORDS_OF_AXES = {"B": "B", "H": "Hq", "Q": "Sq", "K": "Sk"}


def _largest(parameter: Parameter) -> int:
    """Return the largest integer that the type of a parameter has."""
    kind = INTEGERS[parameter.type]
    signed = kind(-1).value < 0
    return 2 ** (8 * ctypes.sizeof(kind) - signed) - 1


def _number(parameter: Parameter, value: float) -> float:
    """Return a number for a parameter, in the type of Python that ctypes asks for."""
    return float(value) if parameter.type in REALS else int(value)

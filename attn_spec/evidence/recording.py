"""Recordings of a kernel's calls: arguments, outputs, and gradients of either kind."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import FrameworkError, Pull, of, values_of
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentations.packing.argument_names import keyword_of
from attn_spec.kernels.presentations.presentation import Handed
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results import promised
from attn_spec.kernels.results.destinations import written
from attn_spec.kernels.subject import Subject
from attn_spec.problem.dtypes import spelled
from attn_spec.problem.options import FACTORS
from attn_spec.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that the kernel was given: exact values, and its dtype."""

    values: np.ndarray
    dtype: str


@dataclass
class Call:
    """One call of the kernel: what it was given, and what it returned if it returned."""

    #: Called function: "forward", "backward", or "differentiated" for a forward call that the framework differentiates.
    do: str
    tensors: list[Given]
    options: dict[str, Any]
    #: Arguments to differentiate in: places of tensors, and names of options.
    wrt: list[int | str] = field(default_factory=list)
    cotangents: list[Given] = field(default_factory=list)
    #: Number of backward passes through the recorded call.
    passes: int = 0
    #: Returned tensors; returned values of other types are left out.
    parts: list[np.ndarray] = field(default_factory=list)
    #: Place of each gradient in ``parts``, by its name.
    gradients: dict[str, int] = field(default_factory=dict)
    #: Values after the call of the tensors that it must change, by their places, and by the names of options.
    promised: dict[int | str, np.ndarray] = field(default_factory=dict)
    #: Allowed distances from these values, by the same; tensors that are left out must be equal.
    allowed: dict[int | str, np.ndarray] = field(default_factory=dict)
    #: Values that the call left in these tensors.
    left: list[np.ndarray] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Digest of the bits of all returned tensors, and of those that the call must change."""
        return hashlib.sha256(b"".join(part.tobytes() for part in (*self.parts, *self.left))).hexdigest()[:16]

    def add(self, name: str, tensor: Any) -> None:
        """Append a gradient to the returned tensors, unless it is no tensor."""
        with contextlib.suppress(FrameworkError):
            self.parts.append(values_of(tensor))
            self.gradients[name] = len(self.parts) - 1


@dataclass
class Recorder:
    """A callable that calls a kernel, and records what the kernel was given and what it returned."""

    kernel: Kernel
    calls: list[Call] = field(default_factory=list)
    #: True while a framework records a call, whose tensors may be stand-ins.
    is_inside: bool = False

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Call the kernel."""
        if self.is_inside:
            return self.kernel(*tensors, **options)
        call = self.begin("forward", tensors, options)
        call.promised, call.allowed = _promised(self.kernel, call)
        returned = self.kernel(*tensors, **options)
        buffers = {quantity: options[name] for quantity, name in self.kernel.destinations.items()}
        call.parts += _parts(written(returned, buffers))
        given = dict(enumerate(tensors)) | options
        call.left = [values_of(given[place]) for place in call.promised]
        return returned

    def backward(self, *tensors: Any, **options: Any) -> Any:
        """Call the kernel's backward function."""
        assert self.kernel.backward_function is not None
        call = self.begin("backward", tensors, options)
        returned = self.kernel.backward_function(*tensors, **options)
        names = [f"d{name}" for name in PRESENTATIONS[self.kernel.presentation].differentiable]
        named = returned if isinstance(returned, Mapping) else dict(zip(names, returned, strict=False))
        for name, tensor in named.items():
            call.add(name, tensor)
        return returned

    def begin(self, do: str, tensors: Iterable[Any], options: Mapping[str, Any]) -> Call:
        """Return a new recorded call, without results yet."""
        given = {name: _plain(value) for name, value in options.items()}
        self.calls.append(call := Call(do, [_plain(tensor) for tensor in tensors], given))
        return call

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Pass calls through unrecorded while a framework records them."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False


@dataclass(frozen=True)
class Recorded(Subject):
    """A subject whose calls are recorded."""

    recorder: Recorder | None = None

    def _record(
        self, part: Problem, tensors: Mapping[str, Any], options: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> tuple[Any, Pull]:
        assert self.recorder is not None
        call = self.recorder.begin("differentiated", tensors.values(), options)
        call.wrt = [list(tensors).index(name) if name in tensors else self.kernel.keyword(name) for name in asked]
        with self.recorder.inside():
            result, pull = super()._record(part, tensors, options, asked)
        call.parts += _parts(result)

        def pulled(cotangents: Sequence[Any], *, again: bool = False) -> dict[str, Any]:
            found = pull(cotangents, again=again)
            del call.parts[len(call.parts) - len(call.gradients) :]
            call.gradients.clear()
            call.passes, call.cotangents = call.passes + 1, [_given(x) for x in cotangents]
            for name in asked:
                call.add(f"d{name}", found.get(name))
            return found

        return result, pulled


def recorded(subject: Subject) -> tuple[Recorded, list[Call]]:
    """Return a copy of the subject that records its calls, and the list that the calls are appended to."""
    recorder = Recorder(subject.kernel)
    kernel = subject.kernel.wrapped(recorder)
    if kernel.backward_function is not None:
        kernel = replace(kernel, backward_function=recorder.backward)
    given = {item.name: getattr(subject, item.name) for item in fields(Subject)}
    return Recorded(**{**given, "kernel": kernel}, recorder=recorder), recorder.calls


def _promised(kernel: Kernel, call: Call) -> tuple[dict[int | str, np.ndarray], dict[int | str, np.ndarray]]:
    """Return the values after a call of the tensors that it must change, and how far from these they may be.

    Both are by the places of the tensors, and by the names of options.
    """
    shown = PRESENTATIONS[kernel.presentation]
    if not shown.appends:
        return {}, {}
    places = {name: place for place, name in enumerate(shown.tensors)}
    given = {name: call.tensors[place].values for name, place in places.items()}
    said = (*shown.says_where, *(name for names in shown.passes.values() for name in names))
    words = {name: call.options.get(keyword_of(name, kernel.parameters) or name) for name in said}
    where = {name: x.values if isinstance(x, Given) else x for name, x in words.items() if x is not None}
    words = {name: kernel.keyword(name) for name in FACTORS}
    given |= {name: x.values for name, word in words.items() if isinstance(x := call.options.get(word), Given)}
    dtypes = {shown.input_of(name): call.tensors[place].dtype for name, place in reversed(places.items())}
    contract = kernel.contract_for(spelled(dtypes))
    at: dict[str, int | str] = {**words, **places}
    every = promised.values(shown, Handed(given, where), contract, spelled(dtypes))
    first, second = ({at[name]: x for name, x in each.items()} for each in every)
    return first, second


def _parts(returned: Any) -> list[np.ndarray]:
    found = []
    for part in returned if isinstance(returned, tuple) else (returned,):
        with contextlib.suppress(FrameworkError):
            found.append(values_of(part))
    return found


def _given(tensor: Any) -> Given:
    own = of(tensor)
    return Given(own.take(tensor), own.dtype_of(tensor))


def _plain(value: Any) -> Any:
    """Return a tensor as :class:`Given`, and any other value unchanged."""
    try:
        return _given(value)
    except FrameworkError:
        return value

"""A subject is a kernel at one dtype on one device: called with a problem, it returns exact values.

Every call passes fresh tensors to the kernel, under a time limit. A call is refused if it raises, if it changes its
inputs in place, or if a result has another type, shape, dtype or device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.frameworks.framework import Differentiating, Framework, Pull
from attn_spec.kernels.global_state import restoring
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import CallFailed, Misbehaviour, end_process, failed
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.presentations.appending import quantised_writes
from attn_spec.kernels.presentations.packing.argument_names import keyword_of
from attn_spec.kernels.presentations.placement import EMPTY_STATES, PAGE_SIZES, TAILS, Placement
from attn_spec.kernels.presentations.presentation import Handed, Presentation, shape_of
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results import destinations, promised, returned
from attn_spec.kernels.results.overwritten import after_another_call
from attn_spec.kernels.time_limit import COMPILING, Guard, OutOfTime, crowding, no_guard, time_limit
from attn_spec.numbers import bits
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.dtypes import Dtypes, dtype_of
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import DIFFERENTIABLE
from attn_spec.problem.shape_spec import AskedShape
from attn_spec.problem.used_places import used_places

#: Function that gives a tensor another layout in memory, see ``memory``.
Arrange = Callable[[Any], Any]
#: Seconds that one kernel call may take, and those for each batch entry if these are more: a kernel may take tens of
#: thousands of sequences one after the other.
CALL_LIMIT, SECONDS_OF_ENTRY = 60.0, 0.005

#: Answer of a kernel as exact values by name: "output" [B, Hq, Sq, Dv] and, if it returns one, "lse" [B, Hq, Sq]. The
#: output is the real one that the stored numbers stand for, o_scale times these. What a kernel returns for queries and
#: keys that are not there is left out, unless a convention decides it.
Answer = dict[str, bits.Values]


@dataclass(frozen=True)
class Subject:
    """A kernel at one dtype on one device. Its calls raise :class:`Misbehaviour`."""

    kernel: Kernel
    dtype: str
    device: str = "cpu"
    call_limit: float = CALL_LIMIT
    #: Guard of every call; a search passes :func:`last_resort`.
    guard: Guard = no_guard
    #: Number of backward passes through the graph of one forward call; the gradients are from the last pass.
    passes: int = 1
    #: Function that makes another call of the subject: before results are read, and so between the passes of a call.
    between: Callable[[Subject], object] | None = None
    #: Shapes that a user asks for, at which the kernel is examined too.
    shapes: tuple[AskedShape, ...] = ()
    #: Choices of a packed call that change no answer, by the fields of ``placement.Placement``.
    choices: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def contract(self) -> ResolvedContract:
        """Contract for this dtype, with a format for every stage."""
        return self.kernel.contract_for(self.dtype)

    @cached_property
    def dtypes(self) -> Dtypes:
        """Dtypes of the tensors that the kernel is given, as :class:`Problem` has them."""
        return self.kernel.dtypes_at(self.dtype)

    @property
    def conventions(self) -> Conventions:
        return self.kernel.conventions

    @property
    def seconds(self) -> float:
        """Seconds that one call of few batch entries may take, in which a kernel of few signatures may compile."""
        return self.call_limit * (1 if self.kernel.signatures is None else COMPILING)

    def keeping(self, **conventions: Any) -> Subject:
        """Return the subject with some conventions of its kernel changed."""
        return replace(self, kernel=replace(self.kernel, conventions=replace(self.conventions, **conventions)))

    @cached_property
    def for_gradients(self) -> Subject:
        """Subject of the problems whose gradients the kernel gives; this one if these are all."""
        narrowed = self.kernel.for_gradients
        return self if narrowed is self.kernel else replace(self, kernel=narrowed)

    @property
    def framework(self) -> Framework:
        """Library whose tensors the kernel takes."""
        return self.kernel.library

    @cached_property
    def presentation(self) -> Presentation:
        """Presentation in which the kernel is given its tensors."""
        sizes, tails = self.kernel.limits.page_sizes or PAGE_SIZES, TAILS[self.conventions.table_tail]
        drawn = {"page_sizes": sizes, "tails": tails, "empty_states": EMPTY_STATES[self.conventions.empty_state]}
        drawn |= {"tight": self.kernel.limits.tight_buffers, "lse_base": self.conventions.lse_base}
        drawn |= {"may_be_tight": self.kernel.signatures is None}  # whose calls need no lengths that recur
        drawn |= {"descales_by_key": "descale_by_key" in self.kernel.supports}
        drawn |= {"saturates": self.conventions.cache_overflow == "saturates"}
        placement = Placement(**{**drawn, **self.choices})
        return PRESENTATIONS[self.kernel.presentation].placed(placement)

    def supports(self, *options: str) -> bool:
        """Return whether the kernel declares every one of ``options``, or its framework provides it as an ability.

        No framework differentiates a call that writes into tensors it is given, and no kernel of contiguous tensors is
        given others.
        """
        return self._able.issuperset(options)

    @cached_property
    def _able(self) -> frozenset[str]:
        given = self.framework.abilities - ({"autograd"} if self.kernel.destinations else set())
        given -= {"strides"} if self.kernel.limits.contiguous else set()
        return frozenset(self.kernel.supports | given)

    def __call__(
        self, problem: Problem, *, arrange: Arrange = memory.unchanged, arrange_options: Arrange = memory.unchanged
    ) -> Answer:
        """Run the kernel on a problem and return its answer.

        ``arrange`` may change the layout of q, k and v in memory, ``arrange_options`` that of option tensors; values
        stay unchanged. Both receive the kernel's own tensors, with the axes of the presentation. Raises
        :class:`NotTaken` for a problem beyond the kernel's limits.
        """

        def answer(part: Problem) -> Answer:
            handed = self._handed(part)
            tensors, options = self._tensors(handed, arrange), self._options(part, handed, arrange_options)
            return self._answer(part, handed, tensors, options, self._call(part, tensors, options))

        return self._joined(problem, answer)

    def in_turn(self, problems: Sequence[Problem]) -> list[tuple[Problem, Answer]]:
        """Return the answers of calls that append, one after the other, to the caches of the first call.

        The problems have equal buffers of keys, see ``Placement.shapes``, and each begins with the keys of the one
        before it. A call finds the caches as the call before has left them. Beside each answer is the problem that it
        solves. If calls quantise what they append, this has tokens as the caches have them then, and is one of
        :attr:`of_caches`.
        """
        found: list[tuple[Problem, Answer]] = []
        values: dict[str, np.ndarray] = {}
        caches: dict[str, Any] = {}
        for given in problems:
            problem = self.presentation.as_left(given, values, after=False)
            part = self._merged(problem)
            fresh = self._handed(part)
            handed = replace(fresh, tensors=fresh.tensors | values)
            tensors, options = self._tensors(fresh), self._options(part, handed)
            words = {self.kernel.keyword(name): name for name in caches.keys() - tensors.keys()}
            tensors |= {name: cache for name, cache in caches.items() if name in tensors}
            options |= {word: caches[name] for word, name in words.items()}
            answer = self._answer(part, handed, tensors, options, self._call(part, tensors, options))
            changed = promised.values(self.presentation, handed, self.contract, self.dtypes)[0]
            caches = {n: tensors[n] if n in tensors else options[self.kernel.keyword(n)] for n in changed}
            values = {name: self.framework.take(cache).astype(np.float64) for name, cache in caches.items()}
            solved = self.presentation.as_left(problem, values, after=True)
            found.append((solved, self._whole(problem, [answer])))
        return found

    @cached_property
    def of_caches(self) -> Subject:
        """Subject of problems with tokens as caches have them, whose contract quantises none that a call appends."""
        if not quantised_writes.of_contract(self.contract):
            return self
        contract = quantised_writes.attending(self.kernel.contract_declared(self.dtype))
        return replace(self, kernel=replace(self.kernel, contract=contract))

    def recorded(self, problem: Problem) -> Answer:
        """Return the answer of a call that the framework records for differentiation; the framework must have
        "autograd".
        """

        def answer(part: Problem) -> Answer:
            handed = self._handed(part)
            tensors, options = self._tensors(handed), self._options(part, handed)
            result, _ = self._record(part, tensors, options, tensors)
            return self._answer(part, handed, tensors, options, result)

        return self._joined(problem, answer)

    def sums_gradient_of(self, name: str, problem: Problem) -> bool:
        """Return whether the gradient of an option is a sum, made here, of several gradients from the kernel."""
        merged = self._merged(problem)
        return getattr(problem, name) is not None and (
            self.presentation.shares(name, problem) or merged.broadcast_axes(name) != problem.broadcast_axes(name)
        )

    def _merged(self, problem: Problem) -> Problem:
        """Return the problem with the options that the callable takes. Raises :class:`NotTaken`."""
        if reason := self.kernel.limits.refusal(problem):
            raise NotTaken(f"{self.kernel.name} does not take the problem: {reason}")
        into, alignment = self.kernel.merge, self.conventions.causal_alignment
        return problem if into is None else problem.merged(into).replace(causal_alignment=alignment)

    def _joined(self, problem: Problem, answer: Callable[[Problem], Answer]) -> Answer:
        """Return the answers of all calls that the presentation makes, joined to one answer."""
        return self._whole(problem, [answer(part) for part in self.presentation.parts(self._merged(problem))])

    def _whole(self, problem: Problem, answers: list[Answer]) -> Answer:
        names = ("output", "lse") if self.supports("lse") else ("output",)
        found = {name: self.presentation.whole(problem, name, [one[name] for one in answers]) for name in names}
        return {name: self._used(problem, name, x) for name, x in found.items()}

    def _used(self, problem: Problem, name: str, x: bits.Values) -> bits.Values:
        """Return a quantity with 0, or -inf for an LSE, where no query or key is and no convention decides."""
        if not problem.has_lengths or (self.conventions.unused_rows == "zero" and name != "lse"):
            return x
        return np.where(used_places(problem, name, x.shape), x, -np.inf if name == "lse" else 0.0)

    def _answer(
        self, problem: Problem, handed: Handed, tensors: dict[str, Any], options: dict[str, Any], result: Any
    ) -> Answer:
        out, lse = returned.out_and_lse(result)
        if not self.supports("lse"):
            lse = None  # a second result may be anything, weights for instance
        elif lse is None:
            raise Misbehaviour("the kernel declares lse but returned no (out, lse) pair")
        self._check_inputs_untouched(handed, tensors, options)
        stored = self._taken(problem, "output", out, self.contract.output)
        output = {"output": stored if problem.output_unit == 1 else stored * problem.output_unit}
        return output if lse is None else output | {"lse": self._taken(problem, "lse", lse, None)}

    def gradients(self, problem: Problem, cotangent: np.ndarray, **further: Any) -> dict[str, bits.Values]:
        """Return the gradients of :meth:`both_passes`, which describes the arguments."""
        return self.both_passes(problem, cotangent, **further)[1]

    def both_passes(
        self,
        problem: Problem,
        cotangent: np.ndarray,
        *,
        lse_cotangent: np.ndarray | None = None,
        wrt: tuple[str, ...] | None = None,
        arrange: Arrange = memory.unchanged,
        arrange_inputs: Arrange = memory.unchanged,
    ) -> tuple[Answer, dict[str, bits.Values]]:
        """Return the answer, and dQ, dK, dV and gradients of options for the cotangents dO [B, Hq, Sq, Dv] and dL [B,
        Hq, Sq]. Raises :class:`NotTaken` for a problem of which the kernel gives no gradients.

        ``wrt`` names the inputs that require a gradient; None means all. ``arrange`` may change the layout of dO in
        memory, ``arrange_inputs`` that of q, k and v; values stay unchanged. Answer and gradients come from one call,
        so that a kernel with dropout by chance uses one mask.
        """
        if reason := self.kernel.refusal_of_gradients(problem):
            raise NotTaken(f"{self.kernel.name} does not take the problem: {reason}")
        options = [name for name in DIFFERENTIABLE if name in OPTIONS and getattr(problem, name) is not None]
        able = [name for name in options if not self.sums_gradient_of(name, problem)]
        names = [name for name in (*self.presentation.inputs, *able) if wrt is None or name in wrt]
        found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        answers = []
        for number, part in enumerate(self.presentation.parts(self._merged(problem))):
            handed = self._handed(part)
            tensors, options = self._tensors(handed, arrange_inputs), self._options(part, handed)
            dO = self.presentation.cotangent(part, "output", cotangent, number, unread=self._is_unread)
            cotangents = [arrange(self._given(dO, self.contract.output))]
            if lse_cotangent is not None:
                dL = self.presentation.cotangent(part, "lse", lse_cotangent, number, unread=self._is_unread)
                cotangents.append(self._given(dL, self.contract.lse))
            holds = self.presentation.holds
            holding = {name: next((n for n in tensors if name in holds(n)), name) for name in names}
            holders = list(dict.fromkeys(holding.values()))
            result, gradients = self._gradients(part, tensors, options, holders, cotangents)
            answers.append(self._answer(part, handed, tensors, options, result))
            for name, holder in holding.items():
                found[name].append(self._gradient(part, name, holder, gradients.get(holder)))
        whole = {f"d{name}": self.presentation.whole(problem, f"d{name}", parts) for name, parts in found.items()}
        return self._whole(problem, answers), {name: self._used(problem, name, x) for name, x in whole.items()}

    def _gradients(
        self,
        part: Problem,
        tensors: dict[str, Any],
        options: dict[str, Any],
        names: Sequence[str],
        cotangents: list[Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Return the results of a call and the gradients in ``names``, from the kernel's own function or from its
        framework.
        """
        if self.kernel.backward_function is not None:
            return self._by_function(part, tensors, options, names, cotangents)
        inputs = dict(tensors) | {name: options[self.kernel.keyword(name)] for name in names if name in OPTIONS}
        result, pull = self._record(part, tensors, options, {name: inputs[name] for name in names})
        returned.out_and_lse(result)
        result = self._after_another("an output that was recorded", result)
        with self._guarded("backward", part):
            found = [pull(cotangents, again=turn < self.passes) for turn in range(1, self.passes + 1)][-1]
            self.framework.wait(self.device, found)
        return result, self._after_another("a gradient", found)

    def _after_another(self, what: str, result: Any) -> Any:
        """Return the results of a call, read after another call if the subject has one between."""
        if (between := self.between) is None:
            return result
        return after_another_call(self.framework, what, result, lambda: between(replace(self, between=None)))

    def _record(
        self, part: Problem, tensors: Mapping[str, Any], options: Mapping[str, Any], asked: Mapping[str, Any]
    ) -> tuple[Any, Pull]:
        """Call the kernel while its framework records the tensors ``asked``; return the result and the pullback."""
        own = self.framework
        if not isinstance(own, Differentiating):
            raise KernelError(
                f"{self.kernel.name} has no @NAME.backward, and {own.name} differentiates nothing; define one"
            )

        def call(inputs: Mapping[str, Any]) -> Any:
            given = {name: inputs.get(name, tensor) for name, tensor in tensors.items()}
            changed = {self.kernel.keyword(name): x for name, x in inputs.items() if name in OPTIONS}
            return self.kernel(*given.values(), **{**options, **changed})

        with self._guarded("call", part):
            result, pull = own.differentiate(call, asked)
            own.wait(self.device, result)
            return result, pull

    def _by_function(
        self,
        part: Problem,
        tensors: dict[str, Any],
        options: dict[str, Any],
        names: Sequence[str],
        cotangents: list[Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Return the results of a call and the gradients from the kernel's own backward function, which returns all of
        them.
        """
        out, lse = returned.out_and_lse(result := self._call(part, tensors, options))
        extra = {"dlse": cotangents[1]} if len(cotangents) > 1 else {}
        backward, given = self.kernel.backward_function, (cotangents[0], *tensors.values(), out, lse)
        with self._guarded("backward", part):
            found = [backward(*given, **options, **extra) for _ in range(self.passes)][-1]  # type: ignore[misc]
            self.framework.wait(self.device, found)
        found = self._after_another("a gradient", found)
        return result, returned.gradients(found, names, self.presentation.differentiable)

    def _gradient(self, problem: Problem, name: str, holder: str, tensor: Any) -> bits.Values:
        """Return the values of a gradient, of which the tensor of ``holder`` is the gradient or holds it.

        They are zeros for None, which a framework returns for an input without influence.
        """
        if tensor is None:
            return np.zeros(shape_of(problem, f"d{name}"))
        values = self._returned(problem, f"d{holder}", tensor, dtype_of(self.dtypes, name, self.contract.gradients))
        member = values if name == holder else self.presentation.member(name, values)
        return self.presentation.taken(problem, f"d{name}", member)

    def _call(self, part: Problem, tensors: dict[str, Any], options: dict[str, Any]) -> Any:
        buffers = self._buffers(part)
        named = {self.kernel.destinations[quantity]: x for quantity, x in buffers.items()}
        with self._guarded("call", part):
            result = self.kernel(*tensors.values(), **options, **named)
            self.framework.wait(self.device, list(buffers.values()) or result)
        held = {quantity: self.framework.held(x) for quantity, x in buffers.items()}
        return destinations.written(result, held) if held else self._after_another("an output", result)

    def _buffers(self, part: Problem) -> dict[str, Any]:
        """Return new tensors for the results that the kernel writes into tensors it is given, by quantity."""
        formats = {"output": self.contract.output, "lse": self.contract.lse}
        poison = destinations.poison(self.conventions)
        return {
            quantity: self._given(np.full(self.presentation.shape(part, quantity), poison), formats[quantity])
            for quantity in self.kernel.destinations
        }

    @contextlib.contextmanager
    def _guarded(self, what: str, part: Problem) -> Iterator[None]:
        crowded, plain = crowding(), max(self.seconds, SECONDS_OF_ENTRY * part.batch)
        limit, processes = plain * crowded, self.framework.processes
        try:
            with restoring(self.kernel), self.guard(limit) as postpone, time_limit(limit, plain, processes, postpone):
                yield
        except OutOfTime as error:
            told = f"the kernel's {what} {_LATE} {plain:.3g} s"
            if error.allowed > plain:
                shared = f"{crowded:.2g} processes" if crowded > 1 else "others"
                told += f", nor within {error.allowed:.3g} s, as {shared} shared each core"
            slow = "" if self.kernel.slowness > 1 else ", or declare slowness=100 for smaller problems"
            raise CallFailed(f"{told}; if calls are slow and do not hang, raise --call-limit{slow}") from error
        except (Exception, SystemExit) as error:
            if self.kernel.isolated and isinstance(error, Misbehaviour | NotTaken):
                raise
            reason = failed(f"the kernel's {what}", error)
            if self.framework.lost(self.device):
                end_process(f"{reason}; no call of this process can use {self.device} any more")
            raise reason from error

    def _options(self, problem: Problem, handed: Handed, arrange: Arrange = memory.unchanged) -> dict[str, Any]:
        """Return the keyword arguments that differ from their defaults, under the callable's own spellings; dropout is
        off.
        """
        active = {}
        for name, row in OPTIONS.items():
            value, default = getattr(problem, name), getattr(self.conventions, name, row.off)
            taken = (self.supports(name) or name == self.kernel.merge) and not self.presentation.is_passed(name)
            if not taken or value is None or (row.tensor is None and value == default):
                continue
            if row.tensor is not None:
                value = self._given(handed.tensors[name], dtype_of(self.dtypes, name))
                value = arrange(value) if value.ndim > 1 else value  # a list has one layout
            active[name] = value
        spelled = {self.kernel.keyword(name): value for name, value in active.items()} | self._gqa_flag(problem)
        off = self.kernel.passed_off(problem.options())
        further = {
            keyword: self._argument(name, x) if isinstance(x, np.ndarray) else x
            for name, x in handed.further.items()
            if (keyword := keyword_of(name, self.kernel.parameters)) is not None
        }
        return {**self.kernel.without_dropout, **off, **spelled, **further}

    def _gqa_flag(self, problem: Problem) -> dict[str, bool]:
        grouped = problem.group != 1 and not problem.projects
        return {"enable_gqa": True} if grouped and "enable_gqa" in self.kernel.parameters else {}

    @property
    def _is_unread(self) -> bool:
        """True if anything may lie where no query or key of a sequence is."""
        return self.conventions.unused == "unread"

    def _handed(self, part: Problem) -> Handed:
        """Return the arguments of one call, in the presentation of the kernel."""
        return self.presentation.handed(part, unread=self._is_unread)

    def _tensors(self, handed: Handed, arrange: Arrange = memory.unchanged) -> dict[str, Any]:
        names = self.presentation.tensors
        dtypes = {n: self.presentation.dtype(n, self.dtypes) for n in names}
        return {n: arrange(self._given(handed.tensors[n], dtype)) for n, dtype in dtypes.items()}

    def _given(self, values: np.ndarray, dtype: str) -> Any:
        """Return a new tensor of the kernel's framework."""
        return self.framework.give(values, dtype, self.device)

    def _argument(self, name: str, values: np.ndarray) -> Any:
        """Return a new tensor of an argument of the presentation.

        Integers, which say where sequences lie, are in the dtype that the kernel declares, and tables in that of q.
        """
        if values.dtype.kind == "f":
            return self._given(values, dtype_of(self.dtypes, "q"))
        dtype = self.kernel.index_dtypes.get(name, "int32")
        return self._given(values.astype(dtype), dtype)

    def _taken(self, problem: Problem, name: str, tensor: Any, dtype: str | None) -> bits.Values:
        """Return the values [B, H, ..] of a quantity that the kernel returned. Raises :class:`Misbehaviour`."""
        return self.presentation.taken(problem, name, self._returned(problem, name, tensor, dtype))

    def _returned(self, problem: Problem, name: str, tensor: Any, dtype: str | None) -> bits.Values:
        """Return the values of a tensor that the kernel returned, as it returned them. Raises :class:`Misbehaviour`."""
        shape, called = self.presentation.shape(problem, name), "out" if name == "output" else name
        return returned.values(called, tensor, shape=shape, dtype=dtype, own=self.framework, device=self.device)

    def _check_inputs_untouched(self, handed: Handed, tensors: dict[str, Any], options: dict[str, Any]) -> None:
        arrays = {name: x for name, x in handed.further.items() if isinstance(x, np.ndarray)}
        now = {}
        for name in handed.tensors | arrays:
            option = name in OPTIONS and name not in arrays
            given, keyword = (tensors, name) if name in tensors else (options, name)
            keyword = self.kernel.keyword(name) if option else keyword
            keyword = keyword_of(name, self.kernel.parameters) if name in arrays else keyword
            if keyword in given:
                now[name] = self.framework.take(given[keyword]).astype(np.float64)
        promised.check(self.presentation, handed, now, self.contract, self.dtypes)


#: Words by which the message on a call that was out of time is known.
_LATE = "did not return within"


def was_late(message: str) -> bool:
    """Return whether a message on a failed call says that the call was out of time."""
    return _LATE in message

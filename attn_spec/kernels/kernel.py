"""Kernels: a callable and its declarations."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from attn_spec.attention.terms import DESCALES
from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.contract.coverage import silence_of_gradients
from attn_spec.kernels.defects import Defect
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.dtypes import Dtypes, simplified, with_options
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem

#: Options and abilities that a kernel may declare in ``supports``, each with its meaning. Every declaration is
#: mandatory: the kernel must handle all problems that use it.
DECLARABLE: dict[str, str] = {
    **{name: row.says for name, row in OPTIONS.items()},
    **{name: row.says for name, row in ABILITIES.items() if not row.of_framework},
}

#: Fields of a kernel that its author does not write: those that its declaration fills, and those of an isolated kernel.
FOUND = {"function", "limits", "built", "declared", "spec", "module", "given", "backward_function"} | {
    *("source", "attribute", "source_digest", "source_class", "host"),
}


class KernelError(Exception):
    """A kernel cannot be found, imported or declared; the message says what to do next."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A callable ``fn(q, k, v, **options) -> out | (out, lse)`` and its declarations."""

    #: Callable that computes attention.
    function: Callable[..., Any]
    #: Name in reports, e.g. ``torch_sdpa:flash``.
    name: str
    #: Framework of the tensors that the kernel takes, a name of ``kernels.frameworks`` (Triton kernels take torch
    #: tensors).
    framework: str
    #: Input dtypes that the kernel accepts: one for q, k and v, or theirs as ``problem.dtypes`` spells them,
    #: "q:float32,kv:bfloat16", which a declaration may give as a mapping, {"q": "float32", "kv": "bfloat16"}.
    dtypes: tuple[str, ...]
    #: Arithmetic that the kernel declares: one contract for all dtypes, or one for each dtype.
    contract: Contract | Mapping[str, Contract]
    #: Options and abilities that the kernel declares, names from DECLARABLE.
    supports: frozenset[str]
    #: Choices of the kernel where sound systems differ.
    conventions: Conventions = field(default_factory=Conventions)
    #: Device types that the kernel runs on; the type that it is made for comes first.
    devices: tuple[str, ...] = ("cpu", "cuda")
    #: Order of the axes of q, k, v, out and their gradients, a name of ``presentations.PRESENTATIONS``. A presentation
    #: that joins heads passes the numbers of heads as ``query_heads`` and ``kv_heads``.
    presentation: str = "BHSD"
    #: Signature of a library's function, a name of ``signatures.table.SIGNATURES``, that the function has; empty for a
    #: function that is called as attn-spec calls kernels. The declaration has the presentation and conventions of the
    #: signature, and the options that it says.
    signature: str = ""
    #: Limits of the problems that the kernel takes.
    limits: Limits = field(default_factory=Limits)
    #: Limits of calls whose gradients are asked for, beside those of all calls: ``{"equal_lengths": True}``. A backward
    #: pass may take fewer problems than the forward pass.
    backward_limits: Limits = field(default_factory=Limits)
    #: Options and abilities that calls have only if no gradients are asked for: ``("softcap", "dv")``.
    forward_only: tuple[str, ...] = ()
    #: Dtypes of option tensors that differ from the dtype of q, k, v, by option: ``{"bias": "float32"}``.
    option_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: Dtypes of the integers that say where sequences lie, where they are not int32, by the names that the presentation
    #: gives them: ``{"kv_indices": "int64"}``.
    index_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: "mask" or "bias": the one tensor into which all masking options are written, for a callable that takes no other.
    #: With "mask" a bias stays separate. None passes each option on its own.
    merge: str | None = None
    #: Parameters for tensors that the kernel writes its results into, by quantity: ``{"output": "out", "lse": "lse"}``.
    #: Each call gives it new ones, which hold NaN. It returns nothing, or the same results, and has no autograd.
    destinations: Mapping[str, str] = field(default_factory=dict)
    #: True if the function is ``build(shapes, dtypes, options) -> call(q, k, v, **tensors)``, called once for each
    #: signature. Shapes and dtypes are by the names of all tensors, options are the plain values by name.
    builds: bool = False
    #: Arguments for options that a problem does not use, by option, ``{"causal": False}`` for a function with
    #: ``causal=True`` as its default; other unused options are left out.
    when_off: Mapping[str, Any] = field(default_factory=dict)
    #: Callables that the function built, by signature.
    built: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False, compare=False)
    #: Number of signatures (shapes with sets of options) that each strategy draws for a property; None is any number.
    #: It is for compiled kernels, for which each signature costs seconds. Problems that a property derives, for
    #: instance with fewer rows, may have others.
    signatures: int | None = None
    #: Refutations that the kernel's author expects.
    known_defects: tuple[Defect, ...] = ()
    #: Run time of a call as a multiple of that on ordinary hardware (interpreters, simulators); larger values get
    #: smaller problems.
    slowness: float = 1.0
    #: False for an undecorated callable, whose abilities are found by trying them.
    declared: bool = True
    #: Text by which the user named the kernel.
    spec: str = ""
    #: Name of the module that defines the kernel.
    module: str = ""
    #: File that defines an isolated kernel, as its own process reports it; empty for a kernel of this process, which
    #: ``module`` locates.
    source: str = ""
    #: Name of an isolated kernel in its file; empty for a kernel of this process.
    attribute: str = ""
    #: SHA-256 of that file before the kernel's process started.
    source_digest: str = ""
    #: Result of :func:`class_of` in the process of an isolated kernel.
    source_class: str = ""
    #: Library of an isolated kernel's tensors; None: the library of ``framework`` in this process.
    host: Framework | None = field(default=None, repr=False, compare=False)
    #: Declarations that the user added to the name of an undecorated callable.
    given: Mapping[str, Any] = field(default_factory=dict)
    #: ``(dout, q, k, v, out, lse, **options) -> (dq, dk, dv[, dbias])``, or a dict of these by name. None: the
    #: framework differentiates.
    backward_function: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Narrow the limits to those of the presentation. Raises :class:`KernelError` if nothing is within both."""
        if (shown := PRESENTATIONS.get(self.presentation)) is None:
            return  # the declaration tells which names there are
        try:
            object.__setattr__(self, "limits", self.limits.within(shown.limits))
        except ValueError as error:
            raise KernelError(
                f"{self.name}: {error}, which calls in the presentation {self.presentation} have"
            ) from error

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare ``function`` as this kernel's backward pass; a decorator: ``@attention.backward``.

        The function is called with the cotangent ``dout``, the inputs and outputs of the forward call, and the same
        options. ``lse`` is None if the forward call returns none. ``dlse`` is passed if the cotangent of the LSE is not
        zero (ability "lse_backward"). Raises :class:`KernelError` if calls in the presentation have no gradients, or
        if the contract says nothing of them.
        """
        shown = PRESENTATIONS.get(self.presentation)
        if shown is not None and (reason := shown.refusal("backward")):
            raise KernelError(f"{self.name}: a call in the presentation {self.presentation} has no gradients, {reason}")
        for reason in map(silence_of_gradients, map(self.contract_declared, self.dtypes)):
            if reason:
                raise KernelError(f"{self.name}: {reason}; declare another contract, or no backward pass")
        object.__setattr__(self, "backward_function", function)
        object.__setattr__(self, "supports", self.supports | {"backward"})
        self.check_backward()
        return function

    @cached_property
    def for_gradients(self) -> Kernel:
        """Kernel as calls with gradients find it: within ``backward_limits``, without what is ``forward_only``.

        Raises :class:`KernelError` if no number is within the limits of both passes.
        """
        if not self.forward_only and self.backward_limits == Limits():
            return self
        try:
            limits = self.limits.within(self.backward_limits)
        except ValueError as error:
            raise KernelError(f"{self.name}: {error}, which backward_limits allow") from error
        lost = {*self.forward_only, *(("cross",) if limits.equal_lengths else ())}
        narrowed = {"limits": limits, "supports": self.supports - lost}
        return replace(self, **narrowed, backward_limits=Limits(), forward_only=())

    def refusal_of_gradients(self, problem: Problem) -> str:
        """Return why the kernel gives no gradients of a problem; an empty text if it does."""
        if alone := sorted(problem.options().intersection(self.forward_only)):
            return f"it gives no gradients beside {', '.join(alone)}"
        return self.for_gradients.limits.refusal(problem)

    def check_backward(self) -> None:
        """Raise :class:`KernelError` if no theorem bounds gradients beside the scales that the kernel declares."""
        if "o_scale" in self.supports:
            raise KernelError(f"{self.name}: no theorem bounds gradients beside o_scale; leave o_scale or backward out")
        descales = [name for name in DESCALES if name in self.supports]
        for dtype in self.dtypes:
            if descales and self.contract_declared(dtype).descale_on == "operands":
                raise KernelError(
                    f"{self.name}: a contract with descale_on='operands' says nothing of gradients beside "
                    f"{' and '.join(descales)}; declare descale_on='scores', or leave backward out"
                )

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Call the function; with ``builds``, call the callable that it built for this signature."""
        if not self.builds:
            return self.function(*tensors, **options)
        given = {name: x for name, x in options.items() if hasattr(x, "shape")}
        every = {**dict(zip(PRESENTATIONS[self.presentation].tensors, tensors, strict=True)), **given}
        dtype_of = frameworks.framework(self.framework).dtype_of
        shapes, dtypes = ({name: fact(x) for name, x in every.items()} for fact in (_shape_of, dtype_of))
        plain = {name: value for name, value in options.items() if name not in given}
        signature = repr((shapes, dtypes, sorted(plain.items())))
        if signature not in self.built:
            self.built[signature] = self.function(shapes, dtypes, plain)
        return self.built[signature](*tensors, **given)

    @property
    def library(self) -> Framework:
        """Library whose tensors the kernel takes. Raises :class:`FrameworkError`."""
        return frameworks.framework(self.framework) if self.host is None else self.host

    @property
    def of_class(self) -> str:
        """Result of :func:`class_of` for the kernel's function."""
        return self.source_class if self.isolated else class_of(self.function)

    @property
    def isolated(self) -> bool:
        """True if the kernel runs in a process of its own."""
        return self.host is not None

    def dtypes_at(self, dtype: str) -> Dtypes:
        """Return the dtypes of the tensors of a problem whose inputs are of ``dtype``, as :class:`Problem` has them."""
        return simplified(with_options(dtype, self.option_dtypes))

    def contract_declared(self, dtype: str) -> Contract:
        """Return the declared contract for inputs of ``dtype``."""
        return self.contract[dtype] if isinstance(self.contract, Mapping) else self.contract

    def contract_for(self, dtype: str) -> ResolvedContract:
        """Return the contract for inputs of ``dtype``, with a format for every stage.

        A framework that differentiates chooses the format of dP. It may also store weights that the contract calls
        recomputed. A written backward pass keeps the format of scores. What a presentation hands over for rotary
        positions is rounded as the presentation says. Raises :class:`ContractError` if the contract excludes that.
        """
        written = self.backward_function is not None or self.of_class == "autograd"
        contract = self.contract_declared(dtype).at(dtype)
        if "rotary" in self.supports and self.presentation in PRESENTATIONS:
            contract = PRESENTATIONS[self.presentation].contract(contract, dtype)
        return (
            _of_backward_pass(contract, written=written)
            if "backward" in self.supports or not self.declared
            else contract
        )

    def wrapped(self, around: Callable[..., Any]) -> Kernel:
        """Return the kernel with ``around`` as its callable, which may call ``kernel(q, k, v, **options)``."""
        # Only __wrapped__ is set, by which parameters are found: other attributes of a function may have any name.
        around.__wrapped__ = self.function  # type: ignore[attr-defined]
        return replace(self, function=around, builds=False)

    def keyword(self, name: str) -> str:
        """Return the callable's parameter name for an option, or for the request of an ability."""
        spellings = (OPTIONS[name] if name in OPTIONS else ABILITIES[name]).spellings
        usual = name if name in OPTIONS else spellings[0]
        return next((spelling for spelling in spellings if spelling in self.parameters), usual)

    def passed_off(self, used: Collection[str]) -> dict[str, Any]:
        """Return the arguments for options that are off; a parameter of another option is passed only if ``used`` has
        that option.
        """
        told = [name for name in self.when_off if not OPTIONS[name].of or OPTIONS[name].of in used]
        return {self.keyword(name): self.when_off[name] for name in told}

    @cached_property
    def without_dropout(self) -> Mapping[str, Any]:
        """Keyword arguments that turn dropout off: p = 0 unless that is the default, and a seed if one is required.

        Undecorated callables are included, since their abilities are unknown before the first call.
        """
        if self.declared and "dropout_by_chance" not in self.supports:
            return {}
        parameter, seed = (self.parameters.get(self.keyword(name)) for name in ("dropout_by_chance", "dropout_seed"))
        given: dict[str, Any] = {parameter.name: 0.0} if parameter is not None and parameter.default else {}
        takes_seed = parameter is not None and seed is not None and seed.default is seed.empty
        return given | {seed.name: 0} if seed is not None and takes_seed else given

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the callable, by name. Raises :class:`KernelError`."""
        return parameters_of(self.function)

    @property
    def digest(self) -> str:
        """SHA-256 of the file that defines the kernel, or of its bytecode if there is no file.

        For an isolated kernel the hash was computed before its process started.
        """
        if self.source_digest:
            return self.source_digest
        code = getattr(getattr(self.function, "__code__", None), "co_code", b"")
        return hashlib.sha256(self.file.read_bytes() if self.file else code).hexdigest()

    @property
    def file(self) -> Path | None:
        """File that defines the kernel; None if there is no file."""
        named = self.source or getattr(sys.modules.get(self.module), "__file__", None)
        return Path(named) if named else None


@lru_cache(256)
def _of_backward_pass(contract: ResolvedContract, *, written: bool) -> ResolvedContract:
    """Return a contract and its alternatives for a backward pass that is written, or that a framework derives."""
    alternatives = tuple(_of_backward_pass(other, written=written) for other in contract.alternatives)
    if written and contract.weight_gradients == "either":
        contract = replace(contract, weight_gradients=contract.stored_scores)
    if not written and contract.backward_weights == "recomputed":
        contract = replace(contract, backward_weights="either")
    return replace(contract, alternatives=alternatives)


def class_of(function: Callable[..., Any]) -> str:
    """Return "autograd" for an autograd function, a class with ``apply``; "class" for another class; else an empty
    text.
    """
    if not inspect.isclass(function):
        return ""
    return "autograd" if hasattr(function, "apply") and hasattr(function, "backward") else "class"


def _shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable, by name. Raises :class:`KernelError` for a callable without a signature."""
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise KernelError(
            f"{error}; wrap it in a Python function that names its options, as "
            "attn_spec.implementations.torch_sdpa does"
        ) from error

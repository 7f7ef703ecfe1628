"""A kernel: a callable plus what it declares."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from attn_spec.contract.contract import Contract, ResolvedContract
from attn_spec.kernels.defects import Defect
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.frameworks.framework import Framework
from attn_spec.kernels.limits import Limits
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.options import OPTIONS

#: What a kernel may declare in ``supports``, options and abilities, with one sentence each. What is declared is
#: mandatory.
DECLARABLE: dict[str, str] = {
    **{name: row.says for name, row in OPTIONS.items()},
    **{name: row.says for name, row in ABILITIES.items() if not row.of_framework},
}


class KernelError(Exception):
    """A kernel that cannot be found, imported or declared; the text says what to do next."""


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A callable ``fn(q, k, v, **options) -> out | (out, lse)`` and its declarations."""

    function: Callable[..., Any]
    #: How reports call it, e.g. ``torch_sdpa:flash``.
    name: str
    #: Whose tensors it takes, a name of ``kernels.frameworks`` (Triton kernels take those of torch).
    framework: str
    #: Input formats it accepts.
    dtypes: tuple[str, ...]
    #: The arithmetic it declares, one contract for all dtypes or one for each.
    contract: Contract | Mapping[str, Contract]
    #: Names from DECLARABLE.
    supports: frozenset[str]
    #: Its choices where sound systems differ.
    conventions: Conventions = field(default_factory=Conventions)
    #: Device types it runs on; the one that it is made for comes first.
    devices: tuple[str, ...] = ("cpu", "cuda")
    #: How q, k, v, out and their gradients are handed over, a name of ``presentation.PRESENTATIONS``. One that joins
    #: heads passes their numbers as ``query_heads`` and ``kv_heads``.
    presentation: str = "BHSD"
    #: Which problems it takes.
    limits: Limits = field(default_factory=Limits)
    #: Dtypes of tensors of options, by option, that are not those of q, k, v: ``{"bias": "float32"}``.
    option_dtypes: Mapping[str, str] = field(default_factory=dict)
    #: "mask" or "bias": the one tensor into which all that hides keys is written, beside a bias that "mask" leaves
    #: alone, for a callable that takes no more than that; None passes each option on its own.
    merge: str | None = None
    #: Whether the function is ``build(shapes, dtypes, options) -> call(q, k, v, **tensors)``, called once for each
    #: signature: shapes and dtypes by the names of all tensors, options that are no tensors by theirs.
    builds: bool = False
    #: What is passed for options that a problem does not use, by option; others are left out.
    when_off: Mapping[str, Any] = field(default_factory=dict)
    #: What was built, by signature.
    built: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False, compare=False)
    #: How many shapes and sets of options, chosen for what they tell, each strategy of a property's problems has; None:
    #: any number. For compiled kernels, to which each costs seconds. What a property makes of a problem, fewer rows for
    #: instance, may have others.
    signatures: int | None = None
    #: Refutations that its author knows of.
    known_defects: tuple[Defect, ...] = ()
    #: How many times as long as on ordinary hardware a call takes (interpreters, simulators); problems get smaller.
    slowness: float = 1.0
    #: False for an undecorated callable, whose shape options are found by trying them.
    declared: bool = True
    #: The string a user typed to name it.
    spec: str = ""
    #: Name of the module it was found in.
    module: str = ""
    #: The file it was found in and its name there, where that is in another process; empty for this one, whose
    #: ``module`` tells.
    source: str = ""
    attribute: str = ""
    #: SHA-256 of that file before the process started.
    source_digest: str = ""
    #: What :func:`class_of` says of it there.
    source_class: str = ""
    #: The library of its tensors, where they are those of another process; None is that of ``framework`` here.
    host: Framework | None = field(default=None, repr=False, compare=False)
    #: What the user declared beside the name of an undecorated callable.
    given: Mapping[str, Any] = field(default_factory=dict)
    #: ``(dout, q, k, v, out, lse, **options) -> (dq, dk, dv[, dbias])``, or a dict of these by name; None is the
    #: framework's own differentiation.
    backward_function: Callable[..., Any] | None = None

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare ``function`` as this kernel's backward pass; a decorator: ``@attention.backward``.

        It is called with the cotangent ``dout``, the inputs and outputs of the forward call (``lse`` is None if that
        returns none), the same options, and ``dlse`` when the cotangent of the LSE is not zero (option "lse_backward").
        """
        object.__setattr__(self, "backward_function", function)
        object.__setattr__(self, "supports", self.supports | {"backward"})
        return function

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        """Call the function; or what it builds for this signature, once."""
        if not self.builds:
            return self.function(*tensors, **options)
        given = {name: x for name, x in options.items() if name in OPTIONS and OPTIONS[name].tensor}
        every = {**dict(zip(("q", "k", "v"), tensors, strict=True)), **given}
        dtype_of = frameworks.framework(self.framework).dtype_of
        shapes, dtypes = ({name: fact(x) for name, x in every.items()} for fact in (_shape_of, dtype_of))
        plain = {name: value for name, value in options.items() if name not in given}
        signature = repr((shapes, dtypes, sorted(plain.items())))
        if signature not in self.built:
            self.built[signature] = self.function(shapes, dtypes, plain)
        return self.built[signature](*tensors, **given)

    @property
    def library(self) -> Framework:
        """The library whose tensors it takes. Raises :class:`FrameworkError`."""
        return frameworks.framework(self.framework) if self.host is None else self.host

    @property
    def of_class(self) -> str:
        """Result of :func:`class_of` for the kernel's function."""
        return self.source_class if self.isolated else class_of(self.function)

    @property
    def isolated(self) -> bool:
        """Return whether the kernel runs in a process of its own."""
        return self.host is not None

    def contract_declared(self, dtype: str) -> Contract:
        """The contract for inputs of ``dtype`` as declared."""
        return self.contract[dtype] if isinstance(self.contract, Mapping) else self.contract

    def contract_for(self, dtype: str) -> ResolvedContract:
        """The contract for inputs of ``dtype``, every stage a format.

        A framework that differentiates chooses the format of dP, and may have stored weights where the contract says
        that they are recomputed; a backward pass that was written keeps the format of scores.
        """
        written = self.backward_function is not None or self.of_class == "autograd"
        c = self.contract_declared(dtype).at(dtype)
        return _of_backward_pass(c, written=written) if "backward" in self.supports or not self.declared else c

    def wrapped(self, around: Callable[..., Any]) -> Kernel:
        """The kernel with a function around its calls, which are ``kernel(q, k, v, **options)``."""
        # Nothing but __wrapped__, by which parameters are found: a function's own attributes may bear any names.
        around.__wrapped__ = self.function  # type: ignore[attr-defined]
        return replace(self, function=around, builds=False)

    def keyword(self, name: str) -> str:
        """The parameter name the callable uses for an option, or to ask for an ability."""
        spellings = (OPTIONS[name] if name in OPTIONS else ABILITIES[name]).spellings
        usual = name if name in OPTIONS else spellings[0]
        return next((spelling for spelling in spellings if spelling in self.parameters), usual)

    def passed_off(self, used: Collection[str]) -> dict[str, Any]:
        """Return the arguments for options that are off; a parameter of another option only with that in ``used``."""
        told = [name for name in self.when_off if not OPTIONS[name].of or OPTIONS[name].of in used]
        return {self.keyword(name): self.when_off[name] for name in told}

    @cached_property
    def without_dropout(self) -> Mapping[str, Any]:
        """Arguments that turn dropout off: p = 0 unless that is the default, and a seed if one is required.

        Of a callable that is not declared too, whose abilities are not known before it is called.
        """
        if self.declared and "dropout_by_chance" not in self.supports:
            return {}
        p, seed = (self.parameters.get(self.keyword(name)) for name in ("dropout_by_chance", "dropout_seed"))
        given: dict[str, Any] = {p.name: 0.0} if p is not None and p.default else {}
        takes_seed = p is not None and seed is not None and seed.default is seed.empty
        return given | {seed.name: 0} if seed is not None and takes_seed else given

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Parameters of the callable, by name. Raises :class:`KernelError`."""
        return parameters_of(self.function)

    @property
    def digest(self) -> str:
        """SHA-256 of the file it was found in; of its bytecode when there is no file.

        That of a kernel in a process of its own is the one from before that process started.
        """
        if self.source_digest:
            return self.source_digest
        code = getattr(getattr(self.function, "__code__", None), "co_code", b"")
        return hashlib.sha256(self.file.read_bytes() if self.file else code).hexdigest()

    @property
    def file(self) -> Path | None:
        """The file it was found in; None where there is none."""
        named = self.source or getattr(sys.modules.get(self.module), "__file__", None)
        return Path(named) if named else None


def _of_backward_pass(c: ResolvedContract, *, written: bool) -> ResolvedContract:
    """A contract and its alternatives, of a backward pass that was written or one that a framework derives."""
    alternatives = tuple(_of_backward_pass(other, written=written) for other in c.alternatives)
    if written and c.weight_gradients == "either":
        c = replace(c, weight_gradients=c.stored_scores)
    if not written and c.backward_weights == "recomputed":
        c = replace(c, backward_weights="either")
    return replace(c, alternatives=alternatives)


def class_of(function: Callable[..., Any]) -> str:
    """Return "class" for a class, "autograd" for an autograd function, a class to be applied; else an empty text."""
    if not inspect.isclass(function):
        return ""
    return "autograd" if hasattr(function, "apply") and hasattr(function, "backward") else "class"


def _shape_of(tensor: Any) -> tuple[int, ...]:
    return tuple(tensor.shape)


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Parameters of a callable, by name. Raises :class:`KernelError` for one that does not say."""
    try:
        return inspect.signature(function).parameters
    except ValueError as error:
        raise KernelError(
            f"{error}; wrap it in a Python function that names its options, as "
            "attn_spec.implementations.torch_sdpa does"
        ) from error

"""A kernel: a callable plus what it declares, and the decorator that declares it."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from attn_spec.contract import Contract, ContractError
from attn_spec.formats import DTYPES
from attn_spec.presets import UNDECLARED, as_contract

#: What a kernel may declare in ``supports``, with one sentence each. A declared option is mandatory.
OPTIONS: dict[str, str] = {
    "scale": "takes a scale; without it the kernel always uses 1/sqrt(D)",
    "causal": "hides keys after the query",
    "causal_alignment": "takes causal_alignment; without it the alignment is the declared convention",
    "window": "takes (left, right) around the diagonal, both inclusive",
    "mask": "takes a bool mask, True = attend, any broadcast to [B, Hq, Sq, Sk]",
    "bias": "takes an additive bias, -inf allowed, any broadcast to [B, Hq, Sq, Sk]",
    "softcap": "takes c of c * tanh(s / c)",
    "gqa": "Hq may be a multiple of Hkv",
    "dv": "the value dimension may differ from the head dimension",
    "cross": "the query length may differ from the key length",
    "empty": "either length may be zero",
    "lse": "returns (out, lse)",
    "backward": "has gradients in q, k, v and bias, by torch autograd or by @name.backward",
    "lse_backward": "its gradients honor a cotangent of the LSE too",
}

#: Options that travel as keyword arguments, with the spellings accepted from undecorated callables.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "scale": ("scale", "softmax_scale", "sm_scale", "scaling"),
    "causal": ("causal", "is_causal"),
    "causal_alignment": ("causal_alignment",),
    "window": ("window", "window_size"),
    "mask": ("mask", "attn_mask"),
    "bias": ("bias", "attn_bias"),
    "softcap": ("softcap", "logits_soft_cap"),
}

FRAMEWORKS = ("numpy", "torch")
LAYOUTS = ("BHSD", "BSHD")


class KernelError(Exception):
    """A kernel that cannot be found, imported or declared; the text says what to do next."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """The choices on which sound systems differ."""

    #: Which corner the diagonal starts from when Sq != Sk: "top_left" or "bottom_right".
    causal_alignment: str = "top_left"
    #: Output of a query that sees no key: "zero", "mean_of_v" or "nan".
    empty_row: str = "zero"
    #: Base of the logarithm in the LSE: "e" or "2".
    lse_base: str = "e"
    #: LSE of a query that sees no key: "-inf", "+inf" or "undeclared".
    empty_lse: str = "-inf"
    #: Whether Inf or NaN in a hidden key or value is kept out of the result: "excluded" or "may_leak".
    masked_nonfinite: str = "may_leak"
    #: Whether two equal calls agree bit for bit.
    deterministic: bool = True
    #: Whether a row's bits are independent of the rest of the batch.
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CONVENTION_CHOICES.items():
            if getattr(self, name) not in allowed:
                raise KernelError(f"convention {name} must be one of {allowed}, not {getattr(self, name)!r}")


_CONVENTION_CHOICES: dict[str, tuple[Any, ...]] = {
    "causal_alignment": ("top_left", "bottom_right"),
    "empty_row": ("zero", "mean_of_v", "nan"),
    "lse_base": ("e", "2"),
    "empty_lse": ("-inf", "+inf", "undeclared"),
    "masked_nonfinite": ("excluded", "may_leak"),
    "deterministic": (True, False),
    "batch_invariant": (True, False),
}


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A callable ``fn(q, k, v, **options) -> out | (out, lse)`` and its declarations."""

    function: Callable[..., Any]
    #: How reports call it, e.g. ``torch_sdpa:flash``.
    name: str
    #: Which arrays it takes: "numpy" or "torch" (Triton kernels take torch tensors).
    framework: str
    #: Input formats it accepts.
    dtypes: tuple[str, ...]
    #: The arithmetic it claims, one contract for all dtypes or one for each.
    contract: Contract | Mapping[str, Contract]
    #: Names from OPTIONS.
    supports: frozenset[str]
    conventions: Conventions = field(default_factory=Conventions)
    #: Device types it runs on.
    devices: tuple[str, ...] = ("cpu", "cuda")
    #: "BHSD", or "BSHD" when heads and lengths are swapped in q, k, v and out.
    layout: str = "BHSD"
    #: Head dimensions it accepts; None is any.
    head_dims: tuple[int, ...] | None = None
    #: Lengths must be a multiple of this; 1 is any.
    length_multiple: int = 1
    #: Pairs of options it refuses to combine, e.g. ("causal", "mask").
    exclusive: tuple[tuple[str, str], ...] = ()
    #: How many times as long as on ordinary hardware a call takes (interpreters, simulators); problems get smaller.
    slowness: float = 1.0
    #: False for an undecorated callable, whose shape options are found by trying them.
    declared: bool = True
    #: The string a user typed to name it.
    spec: str = ""
    #: What the user declared beside the name of an undecorated callable.
    given: Mapping[str, Any] = field(default_factory=dict)
    #: ``(dout, q, k, v, out, lse, **options) -> (dq, dk, dv[, dbias])``; None is torch autograd.
    backward_function: Callable[..., Any] | None = None

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare ``function`` as this kernel's backward pass; a decorator: ``@attention.backward``.

        It is called with the cotangent ``dout``, the inputs and outputs of the forward call (``lse`` is None if that
        returns none), the same options, and ``dlse`` when the cotangent of the LSE is not zero (option "lse_backward").
        """
        object.__setattr__(self, "backward_function", function)
        object.__setattr__(self, "supports", self.supports | {"backward"})
        return function

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.function(*args, **options)

    def contract_declared(self, dtype: str) -> Contract:
        """The contract for inputs of ``dtype`` as declared."""
        return self.contract[dtype] if isinstance(self.contract, Mapping) else self.contract

    def contract_for(self, dtype: str) -> Contract:
        """The contract for inputs of ``dtype``, every stage a format."""
        return self.contract_declared(dtype).at(dtype)

    def keyword(self, option: str) -> str:
        """The parameter name the callable uses for an option."""
        names = inspect.signature(self.function).parameters
        return next((spelling for spelling in KEYWORDS[option] if spelling in names), option)

    @property
    def module(self) -> str:
        """Name of the module it was found in."""
        named = self.spec.partition(":")[0]
        if named.endswith(".py"):
            return Path(named).stem
        return named if named in sys.modules else self.function.__module__

    @property
    def digest(self) -> str:
        """SHA-256 of the file it was found in; of its bytecode when there is no file."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        code = getattr(getattr(self.function, "__code__", None), "co_code", b"")
        return hashlib.sha256(Path(file).read_bytes() if file else code).hexdigest()


def kernel(
    *,
    framework: str,
    dtypes: Iterable[str],
    contract: str | Contract | Mapping[str, str | Contract] = "fused",
    supports: Iterable[str] = (),
    conventions: Mapping[str, Any] | Conventions | None = None,
    name: str | None = None,
    **limits: Any,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a function as a kernel. Raises :class:`KernelError` for a declaration that names nothing known.

    ``limits`` are the fields ``devices``, ``layout``, ``head_dims``, ``length_multiple``, ``exclusive`` and
    ``slowness`` of a kernel.
    """

    def declare(function: Callable[..., Any]) -> Kernel:
        agreed = conventions if isinstance(conventions, Conventions) else _conventions(conventions or {})
        declared = Kernel(
            function=function,
            name=name or _default_name(function),
            framework=framework,
            dtypes=tuple(dtypes),
            contract=_contracts(contract),
            supports=frozenset(supports),
            conventions=agreed,
            **limits,
        )
        _check(declared)
        return declared

    return declare


def from_callable(function: Callable[..., Any], **declared: Any) -> Kernel:
    """A kernel from an undecorated callable: options are read from its signature, the rest has defaults.

    The contract is ``contract.UNDECLARED``, the loosest, since nothing was promised. ``declared`` overrides any
    argument of :func:`kernel`. Shape options (gqa, dv, cross, empty) are found later by trying them.
    """
    try:
        parameters = inspect.signature(function).parameters
    except ValueError as error:
        raise KernelError(f"{error}; wrap it in a Python function that names its options") from error
    framework = declared.get("framework") or ("torch" if _uses_torch(function) else "numpy")
    dtypes = ("float32", "float16", "bfloat16") if framework == "torch" else ("float64", "float32")
    supports = {option for option, spellings in KEYWORDS.items() if set(spellings) & set(parameters)}
    defaults = {"framework": framework, "dtypes": dtypes, "contract": UNDECLARED, "supports": supports}
    given = {key: value for key, value in declared.items() if value}
    given["supports"] = supports | set(given.get("supports", ()))
    return replace(kernel(**{**defaults, **given})(function), declared=False)


def _default_name(function: Callable[..., Any]) -> str:
    stem = getattr(function, "__module__", "kernel").rpartition(".")[2]
    name = getattr(function, "__name__", type(function).__name__)
    return stem if name == "attention" else f"{stem}:{name}"


def _uses_torch(function: Callable[..., Any]) -> bool:
    called = inspect.unwrap(getattr(function, "func", function))  # the function inside a functools.partial
    scope = getattr(called, "__globals__", None) or getattr(type(called).__call__, "__globals__", {})
    return any(getattr(value, "__name__", "").partition(".")[0] == "torch" for value in scope.values())


def _contracts(declared: str | Contract | Mapping[str, str | Contract]) -> Contract | dict[str, Contract]:
    try:
        if isinstance(declared, Mapping):
            return {dtype: as_contract(contract) for dtype, contract in declared.items()}
        return as_contract(declared)
    except ContractError as error:
        raise KernelError(str(error)) from error


def _conventions(declared: Mapping[str, Any]) -> Conventions:
    known = [item.name for item in fields(Conventions)]
    if unknown := sorted(set(declared) - set(known)):
        raise KernelError(f"unknown conventions {', '.join(unknown)}; known are {', '.join(known)}")
    return Conventions(**declared)


def _check(declared: Kernel) -> None:
    if unknown := sorted(declared.supports.union(*declared.exclusive) - set(OPTIONS)):
        raise KernelError(
            f"{declared.name} declares unknown options {', '.join(unknown)}; known are {', '.join(OPTIONS)}"
        )
    if unknown := sorted(set(declared.dtypes) - set(DTYPES)):
        raise KernelError(
            f"{declared.name} declares unknown dtypes {', '.join(unknown)}; known are {', '.join(DTYPES)}"
        )
    if isinstance(declared.contract, Mapping) and (missing := set(declared.dtypes) - set(declared.contract)):
        raise KernelError(f"{declared.name} declares no contract for {', '.join(sorted(missing))}")
    for name, value, allowed in (
        ("framework", declared.framework, FRAMEWORKS),
        ("layout", declared.layout, LAYOUTS),
    ):
        if value not in allowed:
            raise KernelError(f"{declared.name}: {name} must be one of {', '.join(allowed)}, not {value!r}")

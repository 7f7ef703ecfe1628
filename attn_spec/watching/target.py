"""The function that a watch judges: found by name, and how the arguments of its calls are read."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attn_spec.kernels.signatures.reading import row_of_call
from attn_spec.kernels.signatures.signature import Signature, SignatureError
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.signatures.table import signature as row_of
from attn_spec.nearest_names import suggestion


class WatchError(Exception):
    """A function cannot be watched; the message says what to do next."""


@dataclass(frozen=True)
class Target:
    """A function whose calls are judged."""

    #: Name of the module that defines the function, and its name there.
    module: str
    attribute: str
    function: Callable[..., Any]
    #: Signatures of a library by which calls are read, each by one of them. Without any, the function's own parameters
    #: are read.
    rows: tuple[Signature, ...] = ()

    @property
    def row(self) -> Signature | None:
        """The signature of a call, or the first of several."""
        return self.rows[0] if self.rows else None

    def of_call(self, passed: Mapping[str, Any]) -> Target:
        """Return the target with the one signature by which a call with these arguments is read."""
        return self if len(self.rows) < 2 else replace(self, rows=(row_of_call(self.rows, passed),))

    @property
    def spec(self) -> str:
        """Name by which the function is found again as a kernel."""
        return f"{self.module}:{self.attribute}"

    @property
    def declared(self) -> dict[str, Any]:
        """Declarations of the function as a kernel."""
        return {} if self.row is None else {"signature": self.row.name}

    @cached_property
    def _parameters(self) -> inspect.Signature:
        """Parameters of the function, read once rather than at each call."""
        return inspect.signature(self.function)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call by the names of parameters. Raises ``TypeError`` as the call would.

        Keyword arguments that the function ignores are left out.
        """
        if self.row is not None:
            names = list(self.row.named)
            if len(args) > len(names):
                raise TypeError(f"{len(args)} arguments are more than the signature {self.row.name} has")
            passed = {**dict(zip(names, args, strict=False)), **kwargs}
            return {name: x for name, x in passed.items() if name in names} if self.row.ignores_others else passed
        bound = self._parameters.bind(*args, **kwargs)
        bound.apply_defaults()
        further: dict[str, Any] = {}
        for name, parameter in bound.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                further = bound.arguments.pop(name, {})
        return {**bound.arguments, **further}

    def answer(self, result: Any, passed: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the output and the log-sum-exp of a call, or None for the latter."""
        if self.row is not None:
            return self.row.answer(result, passed)
        return (result[0], None) if isinstance(result, tuple | list) else (result, None)


def target(named: str | Callable[..., Any], signature: str | None = None) -> Target:
    """Return the target of a function, or of its name: "package.module:function" or "package.module.function".

    The signature of a library's own function is known. Raises :class:`WatchError`.
    """
    module, attribute = _named(named) if isinstance(named, str) else _of_function(named)
    holder = _imported(module)
    function = getattr(holder, attribute, None)
    if not callable(function):
        near = suggestion(attribute, dir(holder))
        raise WatchError(f"{module} has no function {attribute}{near}; write package.module:function")
    try:
        rows = (row_of(signature),) if signature is not None else _rows(function)
    except SignatureError as error:
        raise WatchError(str(error)) from error
    return Target(module, attribute, function, rows)


def _named(text: str) -> tuple[str, str]:
    module, colon, attribute = text.partition(":")
    if not colon:
        module, _, attribute = text.rpartition(".")
    if not module or not attribute or "." in attribute:
        raise WatchError(f"a function to watch is named package.module:function, not {text!r}")
    return module, attribute


def _of_function(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the name under which a function can be found again."""
    if rows := _rows(function):
        module, _, attribute = rows[0].function.rpartition(".")
        return module, attribute
    module, attribute = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or attribute is None or getattr(sys.modules.get(module), attribute, None) is not function:
        raise WatchError(f"{function!r} is no function of a module, so that its calls cannot be watched; name one")
    return module, attribute


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise WatchError(f"{module} cannot be imported: {error}; write package.module:function") from error


def _rows(function: Callable[..., Any]) -> tuple[Signature, ...]:
    """Return the signatures of a library's function, which are known by the function itself."""
    return tuple(row for row in SIGNATURES.values() if _is_named(function, *row.function.rpartition(".")))


def _is_named(function: Callable[..., Any], module: str, dot: str, name: str) -> bool:
    del dot
    return getattr(sys.modules.get(module), name, None) is function

"""A function of a library's signature, called as attn-spec calls kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attn_spec.kernels.signatures.arguments import is_same
from attn_spec.kernels.signatures.planned import joined
from attn_spec.kernels.signatures.signature import REQUIRED, Argument, Given, Signature, SignatureError
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Adapted:
    """A function with a library's signature, which is called with attn-spec's own arguments.

    The function may lack parameters of the library's: what only these can say is none of its :attr:`options`. It is
    called by the names of parameters. A parameter that has the function's own default is left out.
    """

    def __init__(self, function: Callable[..., Any], row: Signature, *, lse: bool) -> None:
        """Raise :class:`SignatureError` if no call of the signature can be a call of the function.

        For a signature of methods, the function may be a wrapper that has these, or take the parameters of all.
        """
        function = joined(function, row)
        self.function, self.row = function, row
        self.own = _parameters(function, row)
        takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self.own.values())
        self.taken = tuple(one for one in row.arguments if takes_any or one.name in self.own or _is_tensor(row, one))
        self.leading = not takes_any and any(one.name not in self.own for one in self.taken)
        #: True if calls ask for the log-sum-exp, and return it.
        self.lse = lse and (row.always_lse or "lse" in self.said)
        self._check()
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__module__ = getattr(function, "__module__", "") or ""
        self.__signature__ = inspect.Signature(list(self._own_parameters()))

    @property
    def said(self) -> frozenset[str]:
        """All that the function's parameters say, by attn-spec's names."""
        return frozenset(own for one in self.taken for own in one.says)

    @property
    def options(self) -> frozenset[str]:
        """Options that a call can use."""
        passed = {option for option, names in self.row.shown.passes.items() if self.said.issuperset(names)}
        return frozenset(own for own in self.said if own in OPTIONS) | passed | self.row.shown.carries

    def unsaid(self, names: Iterable[str]) -> list[str]:
        """Return those of some options and results that no parameter of the function says."""
        asked = {one for argument in self.row.arguments for one in argument.says}
        of_calls = set(OPTIONS) | {name for name in asked if name in ABILITIES and name != "gqa"}
        return sorted(name for name in names if name in of_calls and name not in self.said | self.options)

    def __call__(self, *tensors: Any, **own: Any) -> Any:
        """Return the output, or the output and the log-sum-exp, of a call with attn-spec's own arguments."""
        names = self.row.shown.tensors
        asked = {"lse": True} if self.lse else {}
        given = Given(self.row.shown, dict(zip(names, tensors, strict=True)) | own | asked)
        if unknown := sorted(own.keys() - self.said):
            raise SignatureError(f"no parameter of {self.__name__} says {', '.join(unknown)}")
        passed = {one.name: one.spell(given) for one in self.taken}
        leading = [passed.pop(one.name) for one in self.taken if self.leading and _is_tensor(self.row, one)]
        found = {name: x for name, x in passed.items() if not is_same(x, self._default(name))}
        out, lse = self.row.answer(self.function(*leading, **found), passed)
        out, lse = self.row.of_library("output", out), self.row.of_library("lse", lse)
        return (out, lse) if self.lse else out

    def _default(self, name: str) -> Any:
        return self.own[name].default if name in self.own else self.row.named[name].default

    def _own_parameters(self) -> Iterable[inspect.Parameter]:
        """Yield the parameters of calls with attn-spec's names."""
        yield from (inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in self.row.shown.tensors)
        of_options = {name for names in self.row.shown.passes.values() for name in names}
        for name in sorted(self.said - set(self.row.shown.tensors) - {"lse", "gqa"}):
            left_out = OPTIONS[name].off if name in OPTIONS and name not in self.row.shown.carries else REQUIRED
            default = None if name in of_options else left_out
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)

    def _check(self) -> None:
        taken = {one.name for one in self.taken}
        needed = {*self.row.shown.says_where} - self.said
        missing = sorted(one.name for one in self.row.arguments if needed & set(one.says))
        if missing and any(not name.startswith("max_") for name in needed):
            raise SignatureError(f"{_name(self.function)} takes no {', '.join(missing)}, which {self.row.name} has")
        unknown = [
            one.name
            for one in self.own.values()
            if one.kind in _BY_NAME and one.default is REQUIRED and one.name not in taken
        ]
        if self.leading:  # tensors are passed by their place, whatever the parameters are called
            del unknown[: len(self.row.shown.tensors)]
        if unknown:
            raise SignatureError(f"{_name(self.function)} requires {', '.join(unknown)}, which {self.row.name} has not")


def _is_tensor(row: Signature, argument: Argument) -> bool:
    return bool(set(argument.says) & set(row.shown.tensors))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _parameters(function: Callable[..., Any], row: Signature) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; those of the row if the function, written in C, tells none."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        kind = inspect.Parameter.KEYWORD_ONLY
        return {one.name: inspect.Parameter(one.name, kind, default=one.default) for one in row.arguments}

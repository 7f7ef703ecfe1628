"""A wrapper whose methods are called one after the other, as one function of the parameters of all of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attn_spec.kernels.signatures.signature import Signature


def is_wrapper(found: Any, row: Signature) -> bool:
    """Return whether an object has all the methods of a signature of methods."""
    return bool(row.methods) and all(callable(getattr(found, name, None)) for name in row.methods)


def joined(function: Any, row: Signature) -> Callable[..., Any]:
    """Return a function of the parameters of all methods of a wrapper; any other function as it is.

    A call calls the methods in their order, each with its own arguments, and returns what the last one returns.
    """
    if not is_wrapper(function, row):
        return function
    steps = {name: getattr(function, name) for name in row.methods}
    own = [one for step in steps.values() for one in inspect.signature(step).parameters.values()]
    named = {
        one.name: one.replace(kind=one.KEYWORD_ONLY)
        for one in own
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }

    def call(**given: Any) -> Any:
        result = None
        for name, step in steps.items():
            result = step(**{word: x for word, x in given.items() if row.named[word].of == name})
        return result

    rest = (
        [inspect.Parameter("further", inspect.Parameter.VAR_KEYWORD)]
        if any(one.kind is one.VAR_KEYWORD for one in own)
        else []
    )
    call.__signature__ = inspect.Signature([*named.values(), *rest])  # type: ignore[attr-defined]
    call.__name__ = type(function).__name__
    call.__module__ = type(function).__module__
    return call

"""Memoize what bounds say of intermediates: a bound is a sum of terms, several of which other bounds need again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import state


class Known(Protocol):
    """Intermediates, which hold what was found of them."""

    @property
    def results(self) -> dict[Any, Any]:
        """Results by function, and by what it was given."""
        ...


Forward = TypeVar("Forward", bound=Known)
Given = ParamSpec("Given")
Result = TypeVar("Result")

#: Results of one function kept for intermediates: those of readings of a contract that are compared.
KEPT = 4
#: Stands for a result that is not known, since a result may be None.
_UNKNOWN: Any = object()


def memoized(
    function: Callable[Concatenate[Forward, Given], Result],
) -> Callable[Concatenate[Forward, Given], Result]:
    """Return a function that memoizes its results as long as the intermediates live, apart by what is struck.

    A result must not hold the intermediates, which would then live until the garbage collector ran.
    """

    @functools.wraps(function)
    def looked_up(forward: Forward, *given: Given.args, **named: Given.kwargs) -> Result:
        known = forward.results.setdefault(function, {})
        key = (state(), given, *named.items()) if named else (state(), given)
        found = known.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            found = function(forward, *given, **named)
            while len(known) >= KEPT:
                del known[next(iter(known))]
            known[key] = found
        return found

    return looked_up


def of_forward_pass(
    function: Callable[Concatenate[Forward, ResolvedContract, Given], Result],
) -> Callable[Concatenate[Forward, ResolvedContract, Given], Result]:
    """Return a memoized function of the forward pass, whose results serve all readings of the backward pass.

    It is given the contract without the fields of the backward pass, so that it cannot depend on one of them.
    """
    known: Any = memoized(function)

    @functools.wraps(function)
    def looked_up(forward: Forward, contract: ResolvedContract, *given: Given.args, **named: Given.kwargs) -> Result:
        return known(forward, contract.forward_pass, *given, **named)

    return looked_up

"""Tasks: calls as plain data, which another process or machine can make, and the errors of losing them."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


class WorkersError(RuntimeError):
    """An error of the workers; the text says why they cannot do what was asked, and what to do next."""


class LostTaskError(WorkersError):
    """A task that brought down every worker that tried it; the text names it."""


class SchedulerError(WorkersError):
    """A Dask cluster that cannot be used, or that is gone."""


@dataclass(frozen=True)
class Task:
    """A call of a function that a module defines. Arguments and result must be picklable."""

    #: Name of the task in messages.
    name: str
    #: Function to call, as ``package.module:function``.
    function: str
    arguments: tuple[Any, ...] = ()

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], *arguments: Any) -> Self:
        """Return the task that calls a function at the top level of its module, to be found there by its name."""
        module = function.__module__
        if module == "__main__":  # under python -m; the same name means another module in another process
            module = sys.modules[module].__spec__.name  # pyright: ignore[reportOptionalMemberAccess]
        return cls(name, f"{module}:{function.__qualname__}", arguments)

    def __call__(self) -> Any:
        """Call the function in this process and return its result."""
        return pkgutil.resolve_name(self.function)(*self.arguments)

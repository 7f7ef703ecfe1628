"""A task: a call as plain data, which another process or machine can make; and how it may be lost."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self


class WorkersError(RuntimeError):
    """Workers that cannot do what they are asked; the text says why and what to do next."""


class LostTaskError(WorkersError):
    """A task that took down every worker that tried it; the text names it."""


class SchedulerError(WorkersError):
    """A Dask cluster that cannot be used, or is gone."""


@dataclass(frozen=True)
class Task:
    """A call of a function that a module defines. Arguments and result must be picklable."""

    #: What messages call it.
    name: str
    #: ``package.module:function``.
    function: str
    arguments: tuple[Any, ...] = ()

    @classmethod
    def of(cls, name: str, function: Callable[..., Any], *arguments: Any) -> Self:
        """The call of a function that stands at the top of its module, found there by its name."""
        module = function.__module__
        if module == "__main__":  # under python -m, and another module anywhere else
            module = sys.modules[module].__spec__.name  # pyright: ignore[reportOptionalMemberAccess]
        return cls(name, f"{module}:{function.__qualname__}", arguments)

    def __call__(self) -> Any:
        """Make the call, here."""
        return pkgutil.resolve_name(self.function)(*self.arguments)

"""Misfits: known ways in which a kernel and its declaration disagree, each with a remedy of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.problem.options import OPTIONS


class MisfitError(KernelError):
    """A kernel that cannot be examined as it is declared: a line of cause, a line of remedy."""

    def __init__(self, kernel: Kernel, cause: str, remedy: str) -> None:
        super().__init__(f"{kernel.name}: {cause}\n{remedy[:1].upper()}{remedy[1:]}")
        self.cause, self.remedy = cause, remedy


def declaring(kernel: Kernel, **facts: Any) -> str:
    """Return a remedy: arguments to add to ``@kernel(...)``, or the whole decorator for an undecorated callable.

    The whole decorator lists only the options of the callable's signature, not abilities that misread calls suggested.
    """
    if kernel.declared:
        return f"add {_arguments(facts)} to its @kernel(...)"
    supports = tuple(sorted(kernel.supports & set(OPTIONS)))
    found = {"framework": kernel.framework, "dtypes": kernel.dtypes, "supports": supports}
    return f"declare it with @kernel({_arguments({**found, **facts})}) of attn_spec, and add what else it supports"


def _arguments(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in facts.items())

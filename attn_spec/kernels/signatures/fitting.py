"""Signatures that a function has, by the names and defaults of its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from attn_spec.kernels.signatures.arguments import is_same
from attn_spec.kernels.signatures.signature import REQUIRED, Signature
from attn_spec.kernels.signatures.table import SIGNATURES

#: Least number of parameters beside the tensors by which a function is recognised.
LEAST = 3


def fitting(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the signatures that have all parameters of a function, with their defaults.

    Of several signatures those are returned of whose parameters the function lacks fewest.
    """
    lacking = {name: len(row.arguments) - len(parameters) for name, row in SIGNATURES.items() if _has(row, parameters)}
    return [name for name, count in lacking.items() if count == min(lacking.values())]


def _has(row: Signature, parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Return whether a signature has all parameters of a function, and the function what a call needs."""
    if len(parameters) < len(row.shown.tensors) + LEAST or not set(parameters) <= set(row.named):
        return False
    needed = {one.name for one in row.arguments if one.default is REQUIRED}
    return needed <= set(parameters) and all(
        is_same(one.default, row.named[name].default) for name, one in parameters.items()
    )

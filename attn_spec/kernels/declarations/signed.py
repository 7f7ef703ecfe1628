"""Declarations by the signature of a library: which facts it gives, and which declarations contradict it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits
from attn_spec.kernels.signatures.adapted import Adapted
from attn_spec.kernels.signatures.planned import is_wrapper
from attn_spec.kernels.signatures.signature import Signature, SignatureError
from attn_spec.kernels.signatures.table import signature


def named_row(name: str) -> Signature:
    """Return the signature of a name. Raises :class:`KernelError`."""
    try:
        return signature(name)
    except SignatureError as error:
        raise KernelError(str(error)) from error


def is_signed_wrapper(found: Any, name: str | None) -> bool:
    """Return whether an object has all methods of the signature of a name. Raises :class:`KernelError`."""
    return bool(name) and is_wrapper(found, named_row(name))


def adapted(function: Callable[..., Any], row: Signature, *, lse: bool) -> Adapted:
    """Return a function of a signature as attn-spec calls kernels; ``lse`` asks for the log-sum-exp.

    Raises :class:`KernelError` if no call of the signature can be one of the function.
    """
    try:
        return Adapted(function, row, lse=lse)
    except SignatureError as error:
        raise KernelError(str(error)) from error


def with_row(row: Signature, called: Adapted, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a declaration, with those that the signature gives and the declaration does not name.

    Raises :class:`KernelError` for a declaration that contradicts how a call of the signature is made.
    """
    if declared.get("presentation", row.presentation) != row.presentation:
        raise KernelError(
            f"{declared['name']}: calls of the signature {row.name} are in the presentation {row.presentation}, not "
            f"{declared['presentation']}; leave presentation out"
        )
    for name in ("builds", "merge"):
        if declared.get(name):
            raise KernelError(f"{declared['name']}: {name} changes the call that signature={row.name!r} describes")
    if unsaid := called.unsaid(declared["supports"]):
        raise KernelError(
            f"{declared['name']}: no parameter that it has of the signature {row.name} says {', '.join(unsaid)}; leave "
            f"{unsaid[0]} out of supports"
        )
    if unable := sorted(row.lacks & set(declared["supports"])):
        raise KernelError(
            f"{declared['name']}: no call of the signature {row.name} has {unable[0]}; "
            f"leave {unable[0]} out of supports"
        )
    limits = {item.name: getattr(row.limits, item.name) for item in fields(Limits)}
    limits = {name: value for name, value in limits.items() if value != getattr(Limits(), name)}
    supports = set(declared["supports"])
    always = tuple(dict.fromkeys((*row.limits.always, *declared.get("always", ()))))
    exclusive = (*row.limits.exclusive, *declared.get("exclusive", ()))
    beside = {**row.limits.beside, **declared.get("beside", {})}
    of_options = {name: dtype for name, dtype in row.option_dtypes.items() if name in supports}
    return {
        **limits,
        **declared,
        "supports": supports | row.asks_for,
        "always": always,
        "exclusive": tuple(pair for pair in exclusive if supports.issuperset(pair)),
        "beside": {name: others for name, others in beside.items() if name in supports},
        "framework": declared.get("framework") or row.framework,
        "dtypes": declared.get("dtypes") or row.dtypes,
        "presentation": row.presentation,
        "conventions": {**row.conventions, **_named(declared.get("conventions"))},
        "option_dtypes": {**of_options, **declared.get("option_dtypes", {})},
        "index_dtypes": {**row.index_dtypes, **declared.get("index_dtypes", {})},
    }


def _named(conventions: Any) -> Mapping[str, Any]:
    """Return the conventions that a declaration names."""
    if conventions is None or isinstance(conventions, Mapping):
        return conventions or {}
    raise KernelError("conventions must be a mapping beside signature=, so that others are those of the signature")

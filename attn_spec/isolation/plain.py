"""Values that are no tensors, as JSON and back: a tuple stays a tuple, and what is none of them is told apart."""

from __future__ import annotations

from typing import Any

import numpy as np


class Opaque:
    """Stands for a value of the worker that is none of plain types, such as the default of a parameter."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def encoded(value: Any) -> Any:
    """A plain value as JSON."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return encoded(value.item())
        case tuple():
            return {"tuple": [encoded(one) for one in value]}
    return {"opaque": f"{value!r:.100}"}


def decoded(document: Any) -> Any:
    """The value of what :func:`encoded` gave. Raises ``ValueError`` for anything else."""
    match document:
        case None | bool() | int() | float() | str():
            return document
        case {"tuple": list(every)}:
            return tuple(decoded(one) for one in every)
        case {"opaque": str(text)}:
            return Opaque(text)
    raise ValueError(f"{document!r:.100} stands for no plain value")

"""Values that are not tensors, as JSON and back: tuples stay tuples, other types become :class:`Opaque`."""

from __future__ import annotations

from typing import Any

import numpy as np


class Opaque:
    """Stand-in for a value of the worker that is of no plain type, such as the default of a parameter."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def encoded(value: Any) -> Any:
    """Return a value as JSON; a value of no plain type is replaced by the first 100 characters of its repr."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return encoded(value.item())
        case tuple():
            return {"tuple": [encoded(one) for one in value]}
    return {"opaque": f"{value!r:.100}"}


def decoded(document: Any) -> Any:
    """Return the value of a document that :func:`encoded` made. Raises ``ValueError`` for anything else."""
    match document:
        case None | bool() | int() | float() | str():
            return document
        case {"tuple": list(every)}:
            return tuple(decoded(one) for one in every)
        case {"opaque": str(text)}:
            return Opaque(text)
    raise ValueError(f"{document!r:.100} is not the document of a plain value")

"""A call of a library's function in a test, read as attention: the library's own arguments in attn-spec's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attn_spec.kernels.call import CallError
from attn_spec.kernels.signatures.signature import REQUIRED, Signature, SignatureError
from attn_spec.kernels.signatures.table import signature
from attn_spec.nearest_names import suggestion
from attn_spec.problem.conventions import OF_ANSWERS
from attn_spec.problem.options import OPTIONS


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The arguments of a call: tensors and words by attn-spec's names, and the names that the caller gave them."""

    #: Signature of the library's function; None for a call in attn-spec's own words.
    row: Signature | None = None
    #: Tensors q, k and v.
    tensors: Mapping[str, Any]
    #: Options, places of sequences and conventions.
    words: Mapping[str, Any]
    #: Presentation of the call; None leaves it to the words.
    presentation: str | None

    def laid(self, quantity: str, x: Any) -> Any:
        """Return an output or log-sum-exp, or its cotangent, in the presentation's axes.

        Raises :class:`CallError` for too few axes.
        """
        if self.row is None or x is None or quantity not in self.row.swapped:
            return x
        if len(getattr(x, "shape", ())) <= max(self.row.swapped[quantity]):
            raise CallError(f"{quantity} must have the axes of {self.row.function}, not the shape {tuple(x.shape)}")
        return self.row.of_library(quantity, x)

    def place(self, quantity: str, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index of an element in the caller's tensor of a quantity."""
        return index if self.row is None else self.row.place(quantity, index)

    def gradients(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return gradients by attn-spec's names, where some have the names of the library's parameters."""
        if self.row is None or not isinstance(found, Mapping):
            return found
        own = {f"d{one.name}": f"d{one.says[0]}" for one in self.row.arguments if len(one.says) == 1}
        return {own.get(name, name): x for name, x in found.items()}

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the caller's own parameters in the text of a :class:`CallError`."""
        try:
            yield
        except CallError as error:
            raise CallError(self.named(str(error))) from error

    def named(self, text: str) -> str:
        """Return a text with the names of the caller's parameters in place of attn-spec's."""
        if self.row is None:
            return text
        told = {own: self.row.keyword(own) for own in (*self.tensors, *self.words)}
        changed = {own: word for own, word in told.items() if own != word}
        if not changed:
            return text
        return re.sub(rf"(?<![\w\[.'])({'|'.join(changed)})(?![\w'])", lambda found: changed[found[1]], text)


def read(name: str, tensors: Mapping[str, Any], words: Mapping[str, Any]) -> Reading:
    """Read a call of a library's function: ``tensors`` q, k and v that were passed by place, all others by name.

    Conventions may stand beside the library's arguments; one that is not named has the value of the signature. Raises
    :class:`CallError`.
    """
    try:
        row = signature(name)
        named = {own: words[own] for own in OF_ANSWERS if own in words and own not in row.named}
        given = {word: x for word, x in words.items() if word not in named}
        found = _read(row, given, {own: x for own, x in tensors.items() if x is not None})
    except SignatureError as error:
        raise CallError(str(error)) from error
    own = {each: found.pop(each, None) for each in ("q", "k", "v")}
    if missing := [row.keyword(each) for each, x in own.items() if x is None]:
        raise CallError(f"a call of the signature {name} needs {', '.join(missing)}")
    decided = {word: value for word, value in row.conventions.items() if word in OF_ANSWERS}
    corner = row.conventions.get("causal_alignment", "top_left")
    aligned = any(OPTIONS[word].aligned for word in found if word in OPTIONS)
    return Reading(
        row=row,
        tensors=own,
        words={**decided, **found, **({"causal_alignment": corner} if aligned else {}), **named},
        presentation=row.presentation,
    )


def _read(row: Signature, words: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arguments of a call say, beside tensors passed by place. Raises :class:`SignatureError`."""
    if unknown := [word for word in words if word not in row.named]:
        known = f"; it has {', '.join(row.named)}"
        raise SignatureError(
            f"the signature {row.name} has no parameter {unknown[0]}{suggestion(unknown[0], row.named, known)}"
        )
    found: dict[str, Any] = dict(tensors)
    for word, value in words.items():
        argument = row.named[word]
        for own, x in argument.read(value).items():
            if own in found and own != "window":
                raise SignatureError(f"{word} gives {own} a second time; leave one out")
            found[own] = _both_sides(found.get(own), x) if own == "window" else x
    for name, argument in row.named.items():
        if name not in words and argument.default is not REQUIRED:
            found |= argument.read(argument.default)  # the default of a few parameters says something
    return found


def _both_sides(one: Any, other: Any) -> Any:
    """Return the window with the lengths of two, each of which may have one side."""
    if one is None:
        return other
    return tuple(b if a is None else a for a, b in zip(one, other, strict=True))

"""Shapes that a user asks for, written as ``B=2,Hq=32,Hkv=8,Sq=4096,Sk=4096,D=128``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

#: Example of a shape, for messages.
EXAMPLE = "B=2,Hq=32,Hkv=8,Sq=4096,Sk=4096,D=128"
#: Names of the lengths, by letter: q is [B, Hq, Sq, D], k [B, Hkv, Sk, D], v [B, Hkv, Sk, Dv].
LETTERS = {
    "B": "batch",
    "Hq": "query_heads",
    "Hkv": "kv_heads",
    "Sq": "query_length",
    "Sk": "key_length",
    "D": "head_dim",
    "Dv": "value_dim",
}
#: Letters that each stand for two lengths.
BOTH = {"S": ("Sq", "Sk"), "H": ("Hq", "Hkv")}


class ShapeError(ValueError):
    """A text is no shape, or the shape is too large to be examined here; the message says what to write instead."""


@dataclass(frozen=True, kw_only=True)
class AskedShape:
    """Lengths of all axes of a shape that a user asks for. Raises :class:`ShapeError`."""

    batch: int = 1
    query_heads: int
    kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        for letter, name in LETTERS.items():
            if (length := getattr(self, name)) < 1:
                raise ShapeError(f"{letter} must be 1 or more, not {length}")
        if self.query_heads % self.kv_heads:
            raise ShapeError(
                "Hq must be a multiple of Hkv, since Hq / Hkv query heads share a kv head: "
                f"{self.query_heads} is no multiple of {self.kv_heads}"
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LETTER=LENGTH,..``, in any order: B, Hq, Hkv, Sq, Sk, D, Dv; S for Sq and Sk, H for Hq and Hkv.

        If B is left out it is 1; if Dv is left out it is D. Raises :class:`ShapeError`.
        """
        found: dict[str, int] = {}
        for part in text.split(","):
            letter, equals, length = (word.strip() for word in part.partition("="))
            if not equals or not length.removeprefix("-").isdecimal():
                raise ShapeError(f"{part.strip()!r} in {text!r} must be a letter and a length, as in {EXAMPLE}")
            if letter not in {**LETTERS, **BOTH}:
                known = f"{', '.join(LETTERS)}; S is Sq and Sk, H is Hq and Hkv"
                raise ShapeError(f"unknown letter {letter!r} in {text!r}; known are {known}")
            for each in BOTH.get(letter, (letter,)):
                if each in found:
                    raise ShapeError(f"{text!r} gives {each} twice; leave one out")
                found[each] = int(length)
        found = {"B": 1, "Dv": found.get("D", 1)} | found
        if missing := [letter for letter in LETTERS if letter not in found]:
            raise ShapeError(f"{text!r} lacks {', '.join(missing)}; a full shape is {EXAMPLE}, or H=32,S=4096,D=128")
        try:
            return cls(**{LETTERS[letter]: length for letter, length in found.items()})
        except ShapeError as error:
            raise ShapeError(f"{text!r}: {error}") from None

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads, without Dv if it equals D."""
        shown = [letter for letter in LETTERS if letter != "Dv" or self.value_dim != self.head_dim]
        return ",".join(f"{letter}={getattr(self, LETTERS[letter])}" for letter in shown)

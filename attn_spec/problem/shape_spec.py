"""Shapes that a user asks for, written as ``B=2,Hq=32,Hkv=8,Sq=4096,Sk=4096,D=128``, and lengths of their sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

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
#: Options that say numbers of queries or keys of each sequence, each with the letter of its largest number.
LENGTHS = {"seqused_q": "Sq", "seqused_k": "Sk", "leftpad_k": "Sk"}
#: Names of patterns by which such numbers are drawn.
DRAWN = ("ragged", "edges")
#: Name of the factor of the scores.
SCALE = "scale"
#: Sign between numbers of several sequences.
BETWEEN = ":"


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
    #: Numbers of each sequence, as "1:4096:17", or the name of a pattern; None is the whole length, or no padding.
    seqused_q: str | None = None
    seqused_k: str | None = None
    leftpad_k: str | None = None
    #: Factor of the scores; None is 1/sqrt(D).
    scale: float | None = None

    def __post_init__(self) -> None:
        for letter, name in LETTERS.items():
            if (length := getattr(self, name)) < 1:
                raise ShapeError(f"{letter} must be 1 or more, not {length}")
        if self.query_heads % self.kv_heads:
            raise ShapeError(
                "Hq must be a multiple of Hkv, since Hq / Hkv query heads share a kv head: "
                f"{self.query_heads} is no multiple of {self.kv_heads}"
            )
        if self.scale is not None and not math.isfinite(self.scale):
            raise ShapeError(f"{SCALE} must be a finite number, not {self.scale}")
        for name, text in self.lengths.items():
            if text not in DRAWN:
                self._check(name, numbers(name, text))

    def _check(self, name: str, found: list[int]) -> None:
        """Raise :class:`ShapeError` unless there is a number for each sequence, up to the length of its axis."""
        letter = LENGTHS[name]
        most = getattr(self, LETTERS[letter])
        if len(found) != self.batch:
            raise ShapeError(f"{name} must have a number for each of B={self.batch} sequences, not {len(found)}")
        if max(found) > most:
            raise ShapeError(f"{name} must be at most {letter}={most}, not {max(found)}")

    @property
    def lengths(self) -> dict[str, str]:
        """Options in use that say numbers of each sequence, as texts."""
        return {name: text for name in LENGTHS if (text := getattr(self, name)) is not None}

    @property
    def recipe_fields(self) -> dict[str, int | str | float]:
        """Fields of a recipe of this shape; numbers of each sequence are patterns of its options."""
        return {
            **{name: getattr(self, name) for name in LETTERS.values()},
            **{name: f"{text}@B111" for name, text in self.lengths.items()},
            **self.scaled,
        }

    @property
    def scaled(self) -> dict[str, float]:
        """Factor of the scores by its name, if the shape has one."""
        return {} if self.scale is None else {SCALE: self.scale}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``LETTER=LENGTH,..``, in any order: B, Hq, Hkv, Sq, Sk, D, Dv; S for Sq and Sk, H for Hq and Hkv.

        If B is left out it is 1; if Dv is left out it is D. Numbers of each sequence are ``seqused_k=1:4096:17``, or
        the name of a pattern, ``seqused_k=ragged``. B and the length of their axis may be left out then. ``scale=0.1``
        is the factor of the scores. Raises :class:`ShapeError`.
        """
        found: dict[str, int] = {}
        lengths, parts = _of_sequences(text)
        scaled, parts = _scale_of(parts, text)
        for part in parts:
            letter, equals, length = (word.strip() for word in part.partition("="))
            if not equals or not length.removeprefix("-").isdecimal():
                raise ShapeError(f"{part.strip()!r} in {text!r} must be a letter and a length, as in {EXAMPLE}")
            if letter not in {**LETTERS, **BOTH}:
                known = f"{', '.join(LETTERS)}; S is Sq and Sk, H is Hq and Hkv; and {', '.join(LENGTHS)}"
                raise ShapeError(f"unknown letter {letter!r} in {text!r}; known are {known}")
            for each in BOTH.get(letter, (letter,)):
                if each in found:
                    raise ShapeError(f"{text!r} gives {each} twice; leave one out")
                found[each] = int(length)
        for name, given in lengths.items():
            if given not in DRAWN:
                every = numbers(name, given)
                found = {"B": len(every), LENGTHS[name]: max(every)} | found
        found = {"B": 1, "Dv": found.get("D", 1)} | found
        if missing := [letter for letter in LETTERS if letter not in found]:
            raise ShapeError(f"{text!r} lacks {', '.join(missing)}; a full shape is {EXAMPLE}, or H=32,S=4096,D=128")
        try:
            fields: dict[str, Any] = {LETTERS[letter]: length for letter, length in found.items()}
            return cls(**{**fields, **lengths, **scaled})
        except ShapeError as error:
            raise ShapeError(f"{text!r}: {error}") from None

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads, without Dv if it equals D."""
        shown = [letter for letter in LETTERS if letter != "Dv" or self.value_dim != self.head_dim]
        said = {letter: getattr(self, LETTERS[letter]) for letter in shown} | self.lengths | self.scaled
        return ",".join(f"{letter}={value}" for letter, value in said.items())


def _scale_of(parts: list[str], text: str) -> tuple[dict[str, float], list[str]]:
    """Return the factor of the scores among the parts of a shape's text, by its name, and all other parts.

    Raises :class:`ShapeError`.
    """
    given = [part for part in parts if part.partition("=")[0].strip() == SCALE]
    if len(given) > 1:
        raise ShapeError(f"{text!r} gives {SCALE} twice; leave one out")
    try:
        found = {} if not given else {SCALE: float(given[0].partition("=")[2])}
    except ValueError:
        raise ShapeError(f"{given[0].strip()!r} in {text!r} must be a number, as in {SCALE}=0.125") from None
    return found, [part for part in parts if part not in given]


def _of_sequences(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the numbers of each sequence in the text of a shape, by option, and all other parts of the text."""
    found: dict[str, str] = {}
    others = []
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name in found:
            raise ShapeError(f"{text!r} gives {name} twice; leave one out")
        if name in LENGTHS:
            found[name] = value
        else:
            others.append(part)
    return found, others


def numbers(name: str, text: str) -> list[int]:
    """Return the numbers of each sequence that a text lists. Raises :class:`ShapeError`."""
    found = text.split(BETWEEN)
    if not all(number.isdecimal() for number in found):
        raise ShapeError(
            f"{name} must be a number for each sequence, as in {name}=1:4096:17, or {' or '.join(DRAWN)}, not {text!r}"
        )
    return [int(number) for number in found]

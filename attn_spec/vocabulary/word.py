"""A word of the suite, and a kind of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word, and all that is told of it."""

    #: Of its kind, in the singular: "option".
    kind: str
    #: As it is written in code.
    name: str
    #: What it means, in a sentence or a few.
    says: str
    #: More about it: what is told, and the text.
    facts: tuple[tuple[str, str], ...] = ()
    #: Other texts by which it is found: spellings, values.
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """All words that are rows of one table."""

    #: In the singular, and in the plural.
    name: str
    plural: str
    #: What such words are.
    says: str
    words: Callable[[], list[Word]]
    #: Whether its list tells all that is known of each.
    in_full: bool = False
    #: Other texts by which it is found.
    also: tuple[str, ...] = ()
    #: Sentences below the list of its words.
    closing: Callable[[], list[str]] = list

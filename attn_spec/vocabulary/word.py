"""Words of the suite, and kinds of words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word, with its meaning and further facts."""

    #: Kind of the word, in the singular: "option".
    kind: str
    #: Name, as it is written in code.
    name: str
    #: Meaning, in one sentence or a few.
    says: str
    #: Further facts: a label and a text each.
    facts: tuple[tuple[str, str], ...] = ()
    #: Other texts that find the word: spellings, values.
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """All words that are rows of one table."""

    #: Name in the singular, and in the plural.
    name: str
    plural: str
    #: Description of these words.
    says: str
    words: Callable[[], list[Word]]
    #: True if the list of the kind shows all facts of each word.
    in_full: bool = False
    #: Other texts that find the kind.
    also: tuple[str, ...] = ()
    #: Sentences below the list of its words.
    closing: Callable[[], list[str]] = list

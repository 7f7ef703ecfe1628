"""Lookup of words by text: one entry for each word of that name, or the list of a kind."""

from __future__ import annotations

import re
from functools import cache

from attn_spec.nearest_names import suggestion
from attn_spec.vocabulary.kinds import kinds
from attn_spec.vocabulary.word import Kind, Word


class UnknownWordError(LookupError):
    """A text that names no word; the message names the nearest words."""


def explained(text: str) -> list[str]:
    """Return lines that explain a word, list a kind, or, for the empty text, list the kinds.

    A word is found by its name, by its names in other libraries, and by its values; a property also by its family.
    Raises :class:`UnknownWordError`.
    """
    if not text:
        return [f"{kind.plural}\n    {kind.says}" for kind in kinds()] + ["`attn-spec explain WORD` explains a word"]
    wanted = _key(text)
    for kind in kinds():
        if wanted in map(_key, (kind.name, kind.plural, *kind.also)):
            return listed(kind)
    named = [word for word in _words() if wanted == _key(word.name)]
    found = named or [word for word in _words() if wanted in map(_key, word.also)]
    if not found:
        near = suggestion(wanted, _names())
        raise UnknownWordError(f"no word is called {text!r}{near}\n`attn-spec explain` lists the kinds")
    return [line for word in found for line in entry(word)]


def listed(kind: Kind) -> list[str]:
    """Return lines for a kind: each of its words in a line or two, and their number."""
    words = kind.words()
    closing = kind.closing()
    written = entry if kind.in_full else line
    lines = [kind.says, *(each for word in words for each in written(word))]
    lines += [*closing[:1], *(f"    {line}" for line in closing[1:])]
    return [*lines, f"{len(words)} {kind.plural if len(words) != 1 else kind.name}"]


def line(word: Word) -> list[str]:
    """Return the lines of a word in a list: its name and its meaning."""
    return [word.name, f"    {word.says}"]


def entry(word: Word) -> list[str]:
    """Return the lines of a word with its kind, its meaning and further facts."""
    wide = max((len(name) for name, _ in word.facts), default=0)
    facts = [f"    {name:<{wide}}  {text}" for name, text in word.facts]
    return [f"{word.name}  ({word.kind})", f"    {word.says}", *facts]


@cache
def _words() -> tuple[Word, ...]:
    return tuple(word for kind in kinds() for word in kind.words())


def _key(text: str) -> str:
    """Return a text without differences of case, hyphens and blanks."""
    return re.sub(r"[\s-]+", "_", text.strip().casefold())


def _names() -> list[str]:
    """Return all texts that find an entry or a list, in the form in which they are compared."""
    words = (name for word in _words() for name in (*word.also, word.name))
    return [_key(name) for name in (*words, *(kind.plural for kind in kinds()))]

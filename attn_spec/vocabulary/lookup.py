"""Find what a text names, and write it down: one entry for each word of that name, or the list of a kind."""

from __future__ import annotations

import re
from functools import cache

from attn_spec.nearest_names import suggestion
from attn_spec.vocabulary.kinds import kinds
from attn_spec.vocabulary.word import Kind, Word


class UnknownWordError(LookupError):
    """A text that names no word; the message names the nearest ones."""


def explained(text: str) -> list[str]:
    """Lines that explain a word, list a kind, or, of the empty text, list the kinds.

    A word is found by its name, by what other libraries call it, and by its values; a property also by its family.
    Raises :class:`UnknownWordError`.
    """
    if not text:
        return [f"{kind.plural}\n    {kind.says}" for kind in kinds()] + ["`attn-spec explain WORD` tells more"]
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
    """A kind, each of its words in a line or two, and how many there are."""
    words = kind.words()
    closing = kind.closing()
    written = entry if kind.in_full else line
    lines = [kind.says, *(each for word in words for each in written(word))]
    lines += [*closing[:1], *(f"    {line}" for line in closing[1:])]
    return [*lines, f"{len(words)} {kind.plural if len(words) != 1 else kind.name}"]


def line(word: Word) -> list[str]:
    """A word and what it means, as lists have it."""
    return [word.name, f"    {word.says}"]


def entry(word: Word) -> list[str]:
    """A word, its kind, what it means, and what else is known of it."""
    wide = max((len(name) for name, _ in word.facts), default=0)
    facts = [f"    {name:<{wide}}  {text}" for name, text in word.facts]
    return [f"{word.name}  ({word.kind})", f"    {word.says}", *facts]


@cache
def _words() -> tuple[Word, ...]:
    return tuple(word for kind in kinds() for word in kind.words())


def _key(text: str) -> str:
    """A text without what is written now so, now so: case, hyphens, blanks."""
    return re.sub(r"[\s-]+", "_", text.strip().casefold())


def _names() -> list[str]:
    """All that finds an entry or a list, as it is compared."""
    words = (name for word in _words() for name in (*word.also, word.name))
    return [_key(name) for name in (*words, *(kind.plural for kind in kinds()))]

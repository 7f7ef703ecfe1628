"""Which known names a word that is none of them may have meant: how every error about a name ends."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a sentence that asks for the nearest of the names; ``otherwise`` where none is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, 3) or [name for name in names if word and word in name][:3]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise

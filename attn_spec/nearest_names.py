"""Suggestions for unknown names: the ends of error messages, with the nearest known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message, which suggests the nearest names; ``otherwise`` if no name is near."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(word, names, 3) or [name for name in names if word and word in name][:3]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else otherwise

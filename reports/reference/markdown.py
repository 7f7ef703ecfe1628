"""Texts of the code as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ..errors import tables

_MARKUP = re.compile(r"([\\*_`<\[\]|#~])")


def escaped(text: str) -> str:
    """Return a text whose characters Markdown shows as they are."""
    return _MARKUP.sub(r"\\\1", text)


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table, whose cells are Markdown already."""
    return tables.table(header, lines)


def page(title: str, *parts: str) -> str:
    """Return a page of paragraphs, without those that are empty."""
    return "\n\n".join([f"# {title}", *filter(None, parts)])


def listed(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of labels, each with its text, both of them as they are in the code."""
    return "\n".join(f"- *{escaped(label)}*: {escaped(text)}" for label, text in pairs)

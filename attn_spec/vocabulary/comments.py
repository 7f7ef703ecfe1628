"""Texts of the code at run time: the ``#:`` comments above fields, and docstrings, as one line each."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

_ASSIGNED = re.compile(r"(\w+)\s*[:=]")
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")


def comments_of(owner: type | ModuleType) -> dict[str, str]:
    """Return the ``#:`` comment above each name that a class or module assigns, by name.

    A name directly below another, without a comment of its own, shares the comment above.
    """
    found: dict[str, str] = {}
    lines: list[str] = []
    is_new = True
    for line in inspect.cleandoc("\n" + inspect.getsource(owner)).splitlines():
        text = line.removeprefix("    ") if isinstance(owner, type) else line
        if text.startswith("#:"):
            lines = [*([] if is_new else lines), text.removeprefix("#:").strip()]
            is_new = False
            continue
        is_new = True
        if (name := _ASSIGNED.match(text)) and lines:
            found[name[1]] = plain(" ".join(lines))
        elif not text.startswith((" ", ")", "}")):
            lines = []
    return found


def summary(owner: object) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return paragraphs(owner)[0]


def paragraphs(owner: object) -> list[str]:
    """Return the paragraphs of a docstring, each on one line."""
    return [plain(" ".join(part.split())) for part in (inspect.getdoc(owner) or "").split("\n\n")]


def plain(text: str) -> str:
    """Return a text without the markup of reStructuredText."""
    return _ROLE.sub(r"\1", text).replace("``", "")

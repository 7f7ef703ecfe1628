"""A deletion in one text: what is taken away stands between ``[-`` and ``-]``, what comes instead in ``{+ +}``."""

from __future__ import annotations

import re

from .deletions import Deletion

_TAKEN = re.compile(r"\[-(.*?)-\]", re.DOTALL)
_PUT = re.compile(r"\{\+(.*?)\+\}", re.DOTALL)


def struck(name: str, module: str, text: str) -> Deletion:
    """The deletion that a text such as ``growth((u, [-2-]{+1+}))`` shows."""
    old = _TAKEN.sub(r"\1", _PUT.sub("", text))
    new = _PUT.sub(r"\1", _TAKEN.sub("", text))
    return Deletion(name=name, module=module, old=old, new=new)

"""Errors put into words: one line each, and for a fault of attn-spec itself the address to report it to.

An error that is met while evidence of a verdict is made stands beside the verdict, which it does not change.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from importlib.metadata import metadata, version
from pathlib import Path

#: The label of the address in ``[project.urls]`` of pyproject.toml.
LABEL = "Issues"
_HOME = Path(__file__).parent


def with_article(noun: str) -> str:
    """A noun, as the name of a type is one, with its article: "an int"."""
    return f"{'an' if noun[:1].lower() in set('aeiou') else 'a'} {noun}"


def in_one_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def text(error: BaseException) -> str:
    """One sentence on an error that no kernel and no user is to blame for."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_HOME)] or frames
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return (
        f"this is a bug of attn-spec {version('attn-spec')}, not of the kernel: {in_one_line(error)}{where}. "
        f"Please report it {_where(metadata('attn-spec').get_all('Project-URL') or [])}"
    )


@contextlib.contextmanager
def told(evidence: str, missing: list[str]) -> Iterator[None]:
    """Let a block make some evidence of a verdict; an error that it raises becomes a line of ``missing``."""
    try:
        yield
    except Exception as error:
        import click  # which an unrelated run of pytest does not need

        is_told = isinstance(error, click.ClickException)  # in words for a user
        why = str(error) if is_told else in_one_line(error) if isinstance(error, OSError) else text(error)
        missing.append(f"  missing   {evidence}: {why}")


def _where(urls: list[str]) -> str:
    """Where the installed package says that faults go: ``urls`` are its "Label, address"."""
    addresses = [address.strip() for label, _, address in (url.partition(",") for url in urls) if label == LABEL]
    return f"at {addresses[0]}" if addresses else "to the maintainers, with the command"

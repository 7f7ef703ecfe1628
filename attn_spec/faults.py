"""Errors in words: one line each, and for an internal error of attn-spec the address to report it to.

An error raised while evidence is made is reported beside the verdict, and does not change the verdict.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from importlib.metadata import metadata, version
from pathlib import Path

#: Label of the address in ``[project.urls]`` of pyproject.toml.
LABEL = "Issues"
_HOME = Path(__file__).parent


def with_article(noun: str) -> str:
    """Return a noun, such as a type's name, with its article: "an int"."""
    return f"{'an' if noun[:1].lower() in set('aeiou') else 'a'} {noun}"


def in_one_line(error: BaseException) -> str:
    """Return the type of an error, and the first line of its message; the last one too if the first ends in a colon.

    Triton's errors of compilation begin with "at 369:31:", show lines of the kernel, and end with the reason.
    """
    first, *others = f"{type(error).__name__}: {error}".strip().splitlines()
    told = [line.strip() for line in others if any(x.isalnum() for x in line)]
    return f"{first} {told[-1]}" if told and first.endswith(":") else first


def text(error: BaseException) -> str:
    """Return a sentence on an internal error, which neither the kernel nor the user caused."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_HOME)] or frames
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    return (
        f"this is a bug of attn-spec {version('attn-spec')}, not of the kernel: {in_one_line(error)}{where}. "
        f"Please report it {_where(metadata('attn-spec').get_all('Project-URL') or [])}"
    )


@contextlib.contextmanager
def told(evidence: str, missing: list[str]) -> Iterator[None]:
    """Run a block that makes evidence of a verdict; an error that it raises becomes a line of ``missing``."""
    try:
        yield
    except Exception as error:
        import click  # an unrelated run of pytest does not need it

        is_told = isinstance(error, click.ClickException)  # its message is written for users
        why = str(error) if is_told else in_one_line(error) if isinstance(error, OSError) else text(error)
        missing.append(f"  missing   {evidence}: {why}")


def _where(urls: list[str]) -> str:
    """Return the address for internal errors; ``urls`` are the installed package's "Label, address"."""
    addresses = [address.strip() for label, _, address in (url.partition(",") for url in urls) if label == LABEL]
    return f"at {addresses[0]}" if addresses else "to the maintainers, with the command"

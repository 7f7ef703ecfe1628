"""Pages of reference, from the registries: ``python -m attn_spec.reports.reference.pages FOLDER`` writes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from attn_spec import atomic

from . import api, certificate, commands, family, mutants, words

#: Pages that are not of a kind of words: name of the file, and the function that returns its Markdown.
OTHERS: Mapping[str, Callable[[], str]] = {
    "command-line": commands.command_line,
    "pytest-options": commands.pytest_options,
    "exit-codes": commands.exit_codes,
    "certificate": certificate.page,
    "api": api.page,
    "family": family.page,
    "mutants": mutants.page,
}


def pages() -> dict[str, str]:
    """Return the Markdown of every page by the name of its file, without its ending."""
    return words.pages() | {name: page() for name, page in OTHERS.items()}


def write(folder: Path) -> None:
    """Write the pages and their index into a folder, and delete pages there that no longer exist.

    A page that has not changed is not written, so that a site is built again from its changes alone.
    """
    found = pages()
    texts = {name: f"{text}\n" for name, text in (found | {"index": _index(found)}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            atomic.write(path, text)


def _index(found: Mapping[str, str]) -> str:
    """Return the page that lists the pages."""
    listed = "\n".join(found)
    return f"# Reference\n\nThe build of this site writes these pages from the code.\n\n```{{toctree}}\n{listed}\n```"


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""A docstring or `#:` comment can be read alone: a tooltip, a page or `explain` shows it without its neighbours."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Folders without an opening that needs its neighbours. A folder is added once it has none, and none is removed.
READABLE = ("attn_spec", "implementations", "properties", "reports", "tests")
#: Openings that name no subject: they refer to another text, or are a clause without a verb.
REFERS = r"(The same|That|Those|Of|As|Likewise|It|Its|Such|So|Nor|One of them|Below that)\b"
CLAUSE = r"(What|How|By how|Which|Whether|Who|Whose|Where|When|Why)\b"
OPENING = re.compile(f"{REFERS}|{CLAUSE}")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a source, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first lines of the `#:` comments of a source, each with its line."""
    before = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            line = token.start[0]
            if line != before + 1:
                yield line, token.string.removeprefix("#:").strip()
            before = line


def unreadable(source: str) -> list[str]:
    """Return the line and opening of each text of a source that cannot be read alone."""
    texts = sorted([*docstrings(source), *comments(source)])
    return [f"{line}: {text.splitlines()[0]}" for line, text in texts if OPENING.match(text)]


@pytest.mark.parametrize("folder", READABLE)
def test_every_text_can_be_read_alone(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    found = [f"{file.relative_to(ROOT)}:{each}" for file in files for each in unreadable(file.read_text("utf-8"))]
    assert found == [], "name the subject, and begin with a verb or a noun:\n" + "\n".join(found)


def test_an_opening_that_needs_its_neighbours_is_found():
    source = '''"""What a module does."""
#: Those of a row,
#: which are two.
ROWS = 2
#: Rows of a table.
TABLE = []


class Row:
    """Of a table."""

    #: How long it is.
    length: int

    def sums(self):
        """The same, added."""

    def mean(self):
        """Return the mean. It is a number."""


async def whether():
    """Whether a row is whole."""
'''
    assert [each.split(":")[0] for each in unreadable(source)] == ["1", "2", "10", "12", "16", "23"]
    assert unreadable('"""Somewhere in a table, as whole rows."""\n# What is no such comment.\n') == []

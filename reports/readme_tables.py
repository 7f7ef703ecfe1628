"""The README's tables, from the registries: ``python -m attn_spec.reports.readme_tables README.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from attn_spec import atomic
from attn_spec.contract.presets import CHOOSER, describe
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.vocabulary import kinds
from attn_spec.vocabulary.libraries import LIBRARIES
from attn_spec.vocabulary.word import Word

from . import member_table
from .errors.tables import table


class ReadmeError(ValueError):
    """A README without a place for a table; the text says which lines to put into it."""


def options() -> str:
    """Return the table of options and abilities that a kernel may declare in ``supports``."""
    words = [word for kind in kinds.kinds() if kind.name in ("option", "ability") for word in kind.words()]
    names = ["`supports`", "what the kernel does", "passed as"]
    return table(names, [[_code(word.name), word.says, _passed(word)] for word in words if _is_declared(word)])


def conventions() -> str:
    """Return the table of conventions: the values of each, the default first, and its meaning."""
    lines = []
    for name, row in CONVENTIONS.items():
        values = sorted(row.choices, key=lambda value: value != row.default)
        lines.append(
            [_code(name), row.says, "; ".join(f"{_code(repr(value))}: {row.choices[value]}" for value in values)]
        )
    return table(["convention", "says", "values, the default first"], lines)


def libraries() -> str:
    """Return the table of the conventions of known libraries."""
    names = ["function", "q, k, v", *(_code(name) for name in kinds.LIBRARY_CONVENTIONS), "bool mask", "window"]
    lines = [
        [
            _code(each.name),
            each.axes,
            *map(each.convention, kinds.LIBRARY_CONVENTIONS),
            each.mask,
            each.window,
        ]
        for each in LIBRARIES
    ]
    return table(names, lines)


def contracts() -> str:
    """Return the table of contracts to declare."""
    return table(["what the kernel does", "contract"], [[says, _code(describe(made))] for says, made in CHOOSER])


#: Every table by name: between lines that bear it the table stands.
TABLES: dict[str, Callable[[], str]] = {
    "options": options,
    "contracts": contracts,
    "conventions": conventions,
    "libraries": libraries,
    "members": member_table.markdown,
}


def markers(name: str) -> tuple[str, str]:
    """Return the lines of a README between which a table stands."""
    return f"<!-- {name}: written by reports/readme_tables.py -->", f"<!-- end of {name} -->"


def written(readme: str, names: Iterable[str] = TABLES) -> str:
    """Return the README with its tables as they are now.

    Raises :class:`ReadmeError`, and :class:`member_table.MemberError` for a table of members that cannot be made.
    """
    for name in names:
        begin, end = markers(name)
        head, opened, rest = readme.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (opened and closed):
            place = f"{begin}\n{end}"
            raise ReadmeError(f"the README has no place for the table of {name}; put these lines into it:\n{place}")
        readme = f"{head}{begin}\n\n{TABLES[name]()}\n\n{end}{tail}"
    return readme


def _words(kind: str) -> list[Word]:
    (found,) = (each for each in kinds.kinds() if each.name == kind)
    return found.words()


def _is_declared(word: Word) -> bool:
    return "declared" not in dict(word.facts)


def _passed(word: Word) -> str:
    spellings = dict(word.facts).get("passed as", "")
    return ", ".join(_code(name) for name in spellings.split(", ") if name)


def _code(text: str) -> str:
    return f"`{text}`"


def main(path: str) -> None:
    """Write the tables into the README at a path."""
    readme = Path(path)
    atomic.write(readme, written(readme.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A page for each kind of words that ``attn-spec explain`` knows, with tables to choose by."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

from attn_spec.contract.presets import CHOOSER, describe
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.vocabulary import kinds
from attn_spec.vocabulary.libraries import LIBRARIES
from attn_spec.vocabulary.word import Kind, Word

from .markdown import code, escaped, listed, page, table


def pages() -> dict[str, str]:
    """Return the Markdown of the page of every kind, by the kind's plural."""
    return {kind.plural: _page(kind) for kind in kinds.kinds()}


def _page(kind: Kind) -> str:
    """Return a page: the kind, a table to choose by if there is one, and a section for each word."""
    words = kind.words()
    chooser = CHOOSERS[kind.name](words) if kind.name in CHOOSERS else ""
    sections = properties(words) if kind.name == "property" else _sections(words, 2)
    return page(
        kind.plural.capitalize(),
        escaped(kind.says),
        f"`attn-spec explain {kind.plural}` lists the same {len(words)}.",
        chooser,
        sections,
    )


def _sections(words: Iterable[Word], level: int) -> str:
    """Return a section for each word."""
    return "\n\n".join(
        "\n\n".join(filter(None, [f"{'#' * level} {code(word.name)}", escaped(word.says), listed(word.facts)]))
        for word in words
    )


def properties(words: Iterable[Word]) -> str:
    """Return a section for each family of properties, with a section for each property."""
    families = groupby(words, key=lambda word: word.name.partition(".")[0])
    return "\n\n".join(f"## {escaped(name)}\n\n{_sections(list(family), 3)}" for name, family in families)


def supports(words: Iterable[Word]) -> str:
    """Return the table of options or abilities that a kernel may declare in ``supports``."""
    names = ["`supports`", "what the kernel does", "passed as"]
    return table(names, [[code(word.name), escaped(word.says), _passed(word)] for word in words if _is_declared(word)])


def conventions(_: Iterable[Word] = ()) -> str:
    """Return the table of conventions: the values of each, the default first, and its meaning."""
    lines = []
    for name, row in CONVENTIONS.items():
        values = sorted(row.choices, key=lambda value: value != row.default)
        meanings = "; ".join(f"{code(repr(value))}: {escaped(row.choices[value])}" for value in values)
        lines.append([code(name), escaped(row.says), meanings])
    return table(["convention", "says", "values, the default first"], lines)


def libraries(_: Iterable[Word] = ()) -> str:
    """Return the table of the conventions of known libraries."""
    names = ["function", "q, k, v", *(code(name) for name in kinds.LIBRARY_CONVENTIONS), "bool mask", "window"]
    lines = [
        [
            code(each.name),
            escaped(each.axes),
            *(escaped(each.convention(name)) for name in kinds.LIBRARY_CONVENTIONS),
            escaped(each.mask),
            escaped(each.window),
        ]
        for each in LIBRARIES
    ]
    return table(names, lines) + "\n\nAn empty cell is a convention that the function lacks, or leaves to its caller."


def contracts(_: Iterable[Word] = ()) -> str:
    """Return the table of contracts to declare."""
    return table(
        ["what the kernel does", "contract"], [[escaped(says), code(describe(made))] for says, made in CHOOSER]
    )


#: Table to choose by, for kinds that have one.
CHOOSERS: dict[str, Callable[[Iterable[Word]], str]] = {
    "option": supports,
    "ability": supports,
    "convention": conventions,
    "library": libraries,
    "contract": contracts,
}


def _is_declared(word: Word) -> bool:
    return "declared" not in dict(word.facts)


def _passed(word: Word) -> str:
    spellings = dict(word.facts).get("passed as", "")
    return ", ".join(code(name) for name in spellings.split(", ") if name)

"""The names of the terms of bounds and of the guards of the judge, as the source of ``attn_spec`` has them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attn_spec

#: Functions of ``contract.terms`` whose first argument is a name; ``standing`` has pairs of a name and an item.
_NAMING = {"term", "times", "count", "guard", "stands"}


@cache
def named() -> dict[str, tuple[str, ...]]:
    """Return the modules, without the package's name, in which each name stands."""
    found: dict[str, set[str]] = {}
    package = Path(attn_spec.__file__).parent
    for folder in ("contract", "bounds", "judgement", "search"):
        for path in sorted((package / folder).rglob("*.py")):
            module = ".".join(path.relative_to(package).with_suffix("").parts)
            for name in _names(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(name, set()).add(module)
    return {name: tuple(sorted(modules)) for name, modules in found.items()}


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in _NAMING:
                yield from _literal(node.args[0])
            elif node.func.id == "standing":
                for pair in node.args:
                    yield from _literal(pair.elts[0] if isinstance(pair, ast.Tuple) else pair)


def _literal(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value

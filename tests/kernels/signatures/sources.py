"""Parameters of the functions of installed libraries: imported where that works, and read in their files elsewhere.

A library for GPUs can often not be imported here, while the files of its wheel are there.
"""

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from attn_spec.kernels.signatures.signature import REQUIRED

#: Default that no literal says.
UNREAD = object()


def parameters(row):
    """Return the parameters of a signature's function, or of all its methods: defaults by name, in their order.

    Skip the test if the library is not installed. A default in a file that is no literal is ``UNREAD``.
    """
    module, _, attribute = row.function.rpartition(".")
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{row.function} is not installed")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        names = [name for method in row.methods for name in (method, f"_{method}_impl")]
        if (read := _in_files(module, attribute, names)) is None:
            pytest.skip(f"{row.function} is in no file here: {error}")
        return read
    functions = [getattr(found, name) for name in row.methods] or [found]
    return {name: default for each in functions for name, default in _of(each).items()}


def _of(function):
    try:
        every = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C: the docstring has the parameters
        written = re.search(rf"{function.__name__}\((.*?)\) ->", function.__doc__, re.DOTALL)[1]
        named = re.findall(r"(\w+)(?:: [\w.| ]+)?(?: ?= ?([\w.]+))?(?:,|$)", written)
        return {name: ast.literal_eval(default) if default else REQUIRED for name, default in named}
    return {one.name: one.default for one in every if one.name != "self" and one.kind is not one.VAR_KEYWORD}


def _in_files(module, attribute, methods):
    """Return the parameters of a function, or of methods of a class, in the files of a package; None if it has none."""
    package = Path(next(iter(importlib.util.find_spec(module.partition(".")[0]).submodule_search_locations)))
    own = package.joinpath(*module.split(".")[1:])
    first = [own.with_suffix(".py"), own / "__init__.py"]
    for file in (*first, *sorted(own.rglob("*.py")), *sorted(package.rglob("*.py"))):
        if file.is_file() and attribute in (text := file.read_text(encoding="utf-8")):
            found = _in_tree(ast.parse(text), attribute, methods)
            if found:
                return found
    return None


def _in_tree(tree, attribute, methods):
    for node in tree.body:
        if methods and isinstance(node, ast.ClassDef) and node.name == attribute:
            own = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in methods}
            every = [_read(own[method]) for method in reversed(methods) if method in own]
            return {name: x for one in every for name, x in one.items()}  # plan says more of its own than run
        if not methods and isinstance(node, ast.FunctionDef) and node.name == attribute and not _is_overload(node):
            return _read(node)
    return None


def _is_overload(node):
    return any(ast.unparse(one).endswith("overload") for one in node.decorator_list)


def _read(node):
    given = node.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    defaults = [REQUIRED] * (len(names) - len(given.defaults)) + [_literal(one) for one in given.defaults]
    further = {
        one.arg: REQUIRED if x is None else _literal(x)
        for one, x in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }
    return {name: x for name, x in zip(names, defaults, strict=True) if name != "self"} | further


def _literal(node):
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNREAD

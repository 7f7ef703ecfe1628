"""Take a term out of a theorem, in memory and for a while.

A deletion is a piece of text that occurs exactly once in a module, and what stands there without the term. The module
is compiled with its text changed, and its functions are given the new code. They stay the same objects, so modules that
imported them by name, and caches around them, see it too.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType, ModuleType
from typing import Any

import attn_spec


class TextError(ValueError):
    """A text that does not occur exactly once in its module."""


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """A term and how to take it away."""

    #: The term in words.
    name: str
    #: The module of ``attn_spec`` that it stands in, without the package's name.
    module: str
    #: Text that occurs once there, and the same text without the term.
    old: str
    new: str

    def changed(self, source: str) -> str:
        """The source without the term. Raises :class:`TextError`."""
        if source.count(self.old) != 1:
            file = self.module.replace(".", "/")
            raise TextError(f"{self.name}: {source.count(self.old)} times in {file}.py, not once: {self.old!r}")
        return source.replace(self.old, self.new)


def source_of(module: str) -> str:
    """The source of a module of ``attn_spec``."""
    loaded = _loaded(module)
    # ``reports.mutation`` loads another source than the file's; the loader of pytest knows of no source.
    source = getattr(loaded.__loader__, "get_source", None)
    return source(loaded.__name__) if source else inspect.getsource(loaded)


@contextmanager
def deleted(*deletions: Deletion) -> Iterator[None]:
    """Theorems without some terms; afterwards they are as before. Raises :class:`TextError`."""
    sources = {deletion.module: source_of(deletion.module) for deletion in deletions}
    for deletion in deletions:
        sources[deletion.module] = deletion.changed(sources[deletion.module])
    compiled = {name: _code(compile(source, name, "exec", dont_inherit=True)) for name, source in sources.items()}
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for name, codes in compiled.items():
            for function in _functions(_loaded(name)):
                before.append((function, function.__code__))
                function.__code__ = codes[function.__qualname__]
        forget()
        yield
    finally:
        for function, code in before:
            function.__code__ = code
        forget()


def forget() -> None:
    """Clear every cache of the package: what it holds was found by other theorems."""
    for found in pkgutil.walk_packages(attn_spec.__path__, "attn_spec."):
        module = sys.modules.get(found.name)
        for value in vars(module).values() if module else ():
            if not inspect.ismodule(value) and hasattr(value, "cache_clear"):
                value.cache_clear()


def _loaded(module: str) -> ModuleType:
    return importlib.import_module(f"attn_spec.{module}")


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            function = _plain(member)
            if isinstance(function, FunctionType) and function.__globals__ is vars(module) and _is_written(function):
                yield function


def _plain(member: Any) -> Any:
    """What a property, a class method or a decorator stands around."""
    if isinstance(member, property):
        member = member.fget
    if isinstance(member, cached_property):
        member = member.func
    return inspect.unwrap(member.__func__ if isinstance(member, classmethod | staticmethod) else member)


def _is_written(function: FunctionType) -> bool:
    """Whether a function stands in the source; a dataclass makes others."""
    return function.__code__.co_filename != "<string>"


def _code(compiled: CodeType) -> dict[str, CodeType]:
    """The code of all functions of a module by qualified name."""
    found: dict[str, CodeType] = {}
    for constant in compiled.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname] = constant
            found |= _code(constant)
    return found

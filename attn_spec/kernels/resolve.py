"""Find a kernel by name: a file, a module, an entry point or a short name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_spec.kernels import definition
from attn_spec.kernels.declaration import from_callable
from attn_spec.kernels.kernel import Kernel, KernelError


def resolve(spec: str, **declared: Any) -> Kernel:
    """Find a kernel by ``file.py:name``, ``pkg.mod:name``, an in-tree or an entry-point short name, or the definition.

    ``declared`` fills in for undecorated callables, and is refused for decorated ones.
    Raises :class:`KernelError` with the next step in its text.
    """
    given = {key: value for key, value in declared.items() if value}
    found, module = _found(spec)
    if isinstance(found, Kernel):
        if given:
            raise KernelError(f"{spec} declares itself with @kernel; drop the options for {', '.join(sorted(given))}")
        return replace(found, spec=spec, module=module or found.module)
    if not callable(found):
        raise KernelError(f"{spec} is a {type(found).__name__}, not a function or a kernel")
    made = from_callable(found, **given)
    return replace(made, spec=spec, module=module or made.module, given=given)


def _found(spec: str) -> tuple[Any, str]:
    """Return what a name means, and the module that it names, empty if it names none."""
    module_name, _, attribute = spec.partition(":")
    plugins = {entry.name: entry for entry in entry_points(group="attn_spec.kernels")}
    if module_name == "definition" and attribute:
        return definition.kernel_of(attribute), ""
    if spec in plugins:
        return plugins[spec].load(), ""
    if module_name.endswith(".py"):
        module = _import_file(Path(module_name))
    elif module_name in _in_tree_modules():
        module = _import(f"attn_spec.implementations.{module_name}")
    elif attribute:
        module = _import(module_name)
    else:
        short = ", ".join(sorted([*dict.fromkeys(name.partition(":")[0] for name in in_tree()), *plugins]))
        raise KernelError(
            f"no kernel is called {spec!r}. Write file.py:name or package.module:name, definition:200, or "
            f"one of: {short}"
        )
    return _attribute(module, attribute, spec), module.__name__


def declarations(framework: str | None, contract: str | None, supports: str | None) -> dict[str, Any]:
    """Turn what a user typed into what :func:`resolve` takes for an undecorated callable; options part at commas."""
    options = tuple(option.strip() for option in (supports or "").split(",") if option.strip())
    return {"framework": framework, "contract": contract, "supports": options}


def in_tree() -> list[str]:
    """Short names of every kernel in ``implementations``; of a file that does not import here, its own."""
    names = []
    for stem in _in_tree_modules():
        try:
            kernels = kernels_of(_import(f"attn_spec.implementations.{stem}"))
        except KernelError:
            kernels = {"attention": None}
        names += [stem if name == "attention" else f"{stem}:{name}" for name in kernels]
    return names


def kernels_of(module: ModuleType) -> dict[str, Kernel]:
    """The kernels a module defines, by attribute name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}


def _in_tree_modules() -> list[str]:
    package = importlib.util.find_spec("attn_spec.implementations")
    if package is None:
        return []
    return sorted(module.name for module in pkgutil.iter_modules(package.submodule_search_locations))


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise KernelError(f"{path} does not exist (looked in {Path.cwd()}); give the path of a Python file")
    name = _module_name(path)
    location = importlib.util.spec_from_file_location(name, path)
    if location is None or location.loader is None:
        raise KernelError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(location)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    try:
        location.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise KernelError(f"{path} does not import: {_summary(error)}. Run `python {path}` to see why") from error
    return module


def _module_name(path: Path) -> str:
    """The stem of the file; with a number, where a module of another file bears that name."""

    def is_free(name: str) -> bool:
        file = getattr(sys.modules.get(name), "__file__", None)
        return name not in sys.modules or (file is not None and Path(file).resolve() == path.resolve())

    names = itertools.chain([path.stem], (f"{path.stem}_{number}" for number in itertools.count(2)))
    return next(filter(is_free, names))


def _import(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise KernelError(f"{name} does not import: {_summary(error)}. Run `python -c 'import {name}'`") from error


def _attribute(module: ModuleType, attribute: str, spec: str) -> Any:
    kernels = kernels_of(module)
    if not attribute:
        if "attention" in kernels or len(kernels) == 1:
            return kernels.get("attention") or next(iter(kernels.values()))
        choices = ", ".join(kernels) or ", ".join(n for n in vars(module) if inspect.isfunction(getattr(module, n)))
        raise KernelError(f"{spec} must name one of its kernels: write {spec}:NAME with NAME one of {choices}")
    if not hasattr(module, attribute):
        choices = ", ".join(kernels or (n for n in vars(module) if inspect.isfunction(getattr(module, n))))
        raise KernelError(f"{module.__name__} has no {attribute!r}; it has {choices or 'no functions'}")
    return getattr(module, attribute)


def _summary(error: BaseException) -> str:
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
    return f"{type(error).__name__}: {error}{line}"

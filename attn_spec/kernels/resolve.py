"""Look-up of a kernel by name: a file, a module, an entry point, a short name, or the definition."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attn_spec.faults import with_article
from attn_spec.kernels.declarations.declaration import default_name, from_callable
from attn_spec.kernels.declarations.signed import is_signed_wrapper
from attn_spec.kernels.flashinfer_trace.documents import is_document
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.onnx_models import is_model
from attn_spec.kernels.onnx_models import kernel_of as kernel_of_model
from attn_spec.problem.options import OPTIONS

#: Prefix of an option that is left out.
MINUS = "-"


def resolve(spec: str, **declared: Any) -> Kernel:
    """Find a kernel by ``file.py:name``, ``pkg.mod:name``, an in-tree or entry-point short name, ``definition:BITS``,
    or the file of a document of the FlashInfer Trace schema or of a model of ONNX.

    ``declared`` completes an undecorated callable, and is refused for a decorated one. With ``undecorated`` the
    function of a decorated one is found, which has left of its declaration what no call shows. An object with the
    methods of ``signature`` counts as a callable. Raises :class:`KernelError`, whose message says what to do next.
    """
    given = {key: value for key, value in declared.items() if value}
    undecorated = given.pop("undecorated", False)
    if is_document(spec):
        from attn_spec.kernels.flashinfer_trace.kernels import kernel_of

        return kernel_of(spec, **given)
    if is_model(spec):
        check_file(Path(spec))
        return kernel_of_model(spec, **given)
    if "definition" in given:
        raise KernelError(f"{spec} is no solution of the FlashInfer Trace schema, a .json file; leave --definition out")
    found, module = _found(spec)
    if isinstance(found, Kernel) and undecorated:
        own = {"framework": found.framework, "slowness": found.slowness, "builds": found.builds, "merge": found.merge}
        own |= {"supports": tuple(found.supports & set(OPTIONS))} if found.builds else {}
        given = {key: value for key, value in own.items() if value} | given
        found = found.function
    if isinstance(found, Kernel):
        if given:
            raise KernelError(f"{spec} is declared by @kernel; leave out the options for {', '.join(sorted(given))}")
        return replace(found, spec=spec, module=module or found.module)
    if not callable(found) and not is_signed_wrapper(found, given.get("signature")):
        raise KernelError(f"{spec} is {with_article(type(found).__name__)}, not a function or a kernel")
    stem, attribute = module.rpartition(".")[2], spec.partition(":")[2]
    made = from_callable(found, name=default_name(stem, attribute or "attention") if stem else None, **given)
    return replace(made, spec=spec, module=module or made.module, given=given)


def _found(spec: str) -> tuple[Any, str]:
    """Return the object that a name means, and the name of its module; the module is empty for entry points and
    definition.
    """
    module_name, _, attribute = spec.partition(":")
    plugins = {entry.name: entry for entry in entry_points(group="attn_spec.kernels")}
    if module_name == "definition" and attribute:
        from attn_spec.kernels import definition  # whose arithmetics every process that finds a kernel would load

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


def is_whole_file(spec: str) -> bool:
    """Return whether a kernel's name is that of a file that holds one kernel without a name: a document, or a model."""
    return is_document(spec) or is_model(spec)


def is_of_the_package(spec: str) -> bool:
    """Return whether a name means a kernel of attn-spec; nothing is imported."""
    module, _, attribute = spec.partition(":")
    if is_whole_file(spec):
        return False
    plugin = {entry.name: entry.module for entry in entry_points(group="attn_spec.kernels")}.get(spec)
    if plugin is not None:
        return plugin.startswith("attn_spec.")
    named = module.startswith("attn_spec.") or (module == "definition" and attribute) or module in _in_tree_modules()
    return bool(named) or not (attribute or module.endswith(".py"))


def module_of(spec: str) -> str:
    """Return the module that a kernel's name means, for a name that contains one."""
    plugins = {entry.name: entry.module for entry in entry_points(group="attn_spec.kernels")}
    return plugins.get(spec) or spec.partition(":")[0]


def source_of(module: str) -> str:
    """Return the file of a module without importing it or a package around it; an empty text if there is none."""
    path: Sequence[str] | None = None
    found: ModuleSpec | None = None
    parts = module.split(".")
    for place in range(len(parts)):
        name = ".".join(parts[: place + 1])
        here = [PathFinder.find_spec(name, [str(Path.cwd())])] if place == 0 else []
        specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        found = next((spec for spec in itertools.chain(here, specs) if spec is not None), None)
        if found is None:
            return ""
        path = found.submodule_search_locations
    return (found and found.origin) or ""


#: Options of commands that :func:`declarations` takes.
OF_COMMANDS = ("framework", "contract", "supports", "signature", "definition", "slowness")


def declarations(
    framework: str | None,
    contract: str | None,
    supports: str | None,
    *,
    signature: str | None = None,
    definition: str | None = None,
    slowness: float | None = None,
) -> dict[str, Any]:
    """Return the declarations of an undecorated callable, or of a solution, for :func:`resolve`, from the texts that a
    user typed.

    Commas separate options; an option with a leading minus is left out.
    """
    named = [option.strip() for option in (supports or "").split(",") if option.strip()]
    without = tuple(option.removeprefix(MINUS).strip() for option in named if option.startswith(MINUS))
    given = tuple(option for option in named if not option.startswith(MINUS))
    others = {"signature": signature, "definition": definition, "slowness": slowness}
    further = {name: value for name, value in others.items() if value is not None}
    return {"framework": framework, "contract": contract, "supports": given, "without": without, **further}


def in_tree() -> list[str]:
    """Return the short names of every kernel in ``implementations``; a file that does not import gives its own name."""
    names = []
    for stem in _in_tree_modules():
        try:
            kernels = kernels_of(_import(f"attn_spec.implementations.{stem}"))
        except KernelError:
            kernels = {"attention": None}
        names += [stem if name == "attention" else f"{stem}:{name}" for name in kernels]
    return names


def kernels_of(module: ModuleType) -> dict[str, Kernel]:
    """Return the kernels that a module defines, by attribute name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}


def _in_tree_modules() -> list[str]:
    package = importlib.util.find_spec("attn_spec.implementations")
    if package is None:
        return []
    return sorted(module.name for module in pkgutil.iter_modules(package.submodule_search_locations))


def check_file(path: Path) -> None:
    """Raise :class:`KernelError` unless the file exists."""
    if not path.is_file():
        raise KernelError(f"{path} does not exist (looked in {Path.cwd()}); give the path of a file that is there")


def attribute_of(kernel: Kernel) -> str:
    """Return the attribute of the kernel's module that holds the kernel, the requested one if possible.

    An empty text means that there is none.
    """
    if kernel.isolated:
        return kernel.attribute
    named, module = kernel.spec.partition(":")[2], sys.modules[kernel.module]
    if named and hasattr(module, named):
        return named
    return next((name for name, one in kernels_of(module).items() if one.function is kernel.function), "")


def _import_file(path: Path) -> ModuleType:
    check_file(path)
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
    """Return the stem of the file, with a number if a module of another file has that name."""

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

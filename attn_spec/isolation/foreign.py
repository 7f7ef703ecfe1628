"""Choice of the kernels that run in a process of their own, and how one is found there without importing its module."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from attn_spec.isolation.declared import declaration, kernel_of
from attn_spec.kernels import global_state
from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.resolve import check_file, is_of_the_package, is_whole_file, module_of, resolve, source_of

#: Words of a declaration that are paths of files.
_FILES = ("definition",)


def found(spec: str, isolate: str = "auto", memory: float | None = None, **declared: Any) -> Kernel:
    """Find a kernel, in a process of its own if ``isolate`` says so; ``memory`` limits its address space, in GiB.

    Other arguments are those of :func:`resolve`. Raises :class:`KernelError` as :func:`resolve` does.
    """
    own = is_of_the_package(spec) if isolate == "auto" else isolate == "never"
    if own and memory is not None:
        raise KernelError(f"{spec} runs in this process, whose memory has no limit of its own; leave --memory out")
    return resolve(spec, **declared) if own else isolated(spec, memory, **declared)


def account(kernel: Kernel) -> dict[str, Any]:
    """Return what a certificate says of a kernel after its calls: imported files, packages, changed global state.

    Files are those outside installed packages, by path relative to the folder of the kernel's own file, with SHA-256.
    Files and packages are reported by the kernel's process; for a kernel that runs in this process both are empty.
    Raises :class:`sources.ChangedError` if a file is not what it was before the process started.
    """
    host = kernel.host
    if not hasattr(host, "imported"):
        state = global_state.of(kernel.spec)
        return {"imported_sha256": {}, "packages": {}, "changes": [] if state is None else sorted(state.changes)}
    names, packages = host.imported()  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    folder = (kernel.file or Path()).resolve().parent
    sources = host.wire.process.sources  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    first = sources.imported([*names, *map(str, sources.beside)]).items()
    files = {Path(os.path.relpath(path, folder)).as_posix(): digest for path, digest in first}
    changes = sorted(host.wire.noted)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    return {"imported_sha256": files, "packages": packages, "changes": changes}


def isolated(spec: str, memory: float | None = None, **declared: Any) -> Kernel:
    """Find a kernel in a process of its own. Raises :class:`KernelError`."""
    if os.name != "posix":
        raise KernelError("a kernel can have a process of its own on POSIX systems only; pass --no-isolate")
    from attn_spec.isolation.process import Process
    from attn_spec.isolation.remote import RemoteFunction, remote_framework
    from attn_spec.isolation.sources import Sources
    from attn_spec.isolation.wire import Wire

    typed, colon, attribute = (spec, "", "") if is_whole_file(spec) else spec.partition(":")
    named, is_file = typed, typed.endswith(".py") or is_whole_file(typed)
    if is_file:
        check_file(Path(typed))
        named = str(Path(typed).resolve())
    given = {key: value for key, value in declared.items() if value}
    absolute = {name: str(Path(given[name]).resolve()) for name in _FILES if name in given}
    file = named if is_file else source_of(module_of(spec))
    sources = Sources(file, *absolute.values())
    process = Process(named + colon + attribute, given | absolute, memory, sources)
    try:
        made = declaration(process.loaded())
        wire = Wire(process)
        library = remote_framework(made.framework, wire)
        name = made.attribute or attribute
        functions = RemoteFunction(wire, "call", name), RemoteFunction(wire, "backward", name)
        facts = {"host": library, "source": file, "source_digest": sources.digest}
        found = kernel_of(made, spec, *functions, **facts)
        return replace(found, given={**found.given, **{name: given[name] for name in absolute}})
    except KernelError as error:
        process.end()
        told = str(error).replace(named, typed)
        for name, path in absolute.items():
            told = told.replace(path, given[name])
        raise KernelError(told) from None
    except FrameworkError as error:
        process.end()
        raise KernelError(str(error)) from error

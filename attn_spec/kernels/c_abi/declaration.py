"""Declaration of a C function in a shared library as a kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attn_spec.kernels.c_abi.called import Called
from attn_spec.kernels.c_abi.library import function
from attn_spec.kernels.c_abi.prototype import POINTED, STRUCTURES, Prototype, PrototypeError, read
from attn_spec.kernels.c_abi.words import RESULTS, check, supported
from attn_spec.kernels.declarations.declaration import check_lists, default_name, kernel
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.presentations.presentation import Buffers, Presentation
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.nearest_names import suggestion
from attn_spec.problem.dtypes import dtype_of
from attn_spec.problem.options import OPTIONS


def c_kernel(
    library: str | os.PathLike[str],
    prototype: str,
    *,
    dtypes: Iterable[Any],
    supports: Iterable[str] = (),
    without: Iterable[str] = (),
    presentation: str = "BHSD",
    name: str | None = None,
    **facts: Any,
) -> Kernel:
    """Declare a C function of a shared library as a kernel, by its ``prototype`` as a header has it.

    The name of each parameter says what a call passes, see ``attn-spec explain parameters``. The parameters also show
    the options and abilities that the kernel declares, except those in ``without``. ``supports`` has further ones, such
    as those of a function that is passed structures of DLPack. Other arguments are those of
    :func:`attn_spec.kernel`, and tensors are in memory of the CPU. Raises :class:`KernelError`.
    """
    for word in ("framework", "devices", "destinations", "signature", "builds"):
        if word in facts:
            raise KernelError(f"{word} is no argument of c_kernel; a C function writes into memory of the CPU")
    check_lists(supports=supports, without=without)
    own, shown = read(prototype), _shown(presentation)
    check(own, shown)
    implied = supported(own, shown)
    if unknown := sorted(set(without) - implied):
        near = suggestion(unknown[0], implied, f"; they show {', '.join(sorted(implied))}")
        raise KernelError(f"{own.symbol}: no parameters show {unknown[0]}, which without= leaves out{near}")
    called = Called(own, function(Path(library), own), shown)
    # A stored case finds the kernel in the module that declares it.
    called.__module__ = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001
    stem = Path(library).name.partition(".")[0].removeprefix("lib")
    made = kernel(
        framework="numpy",
        devices=("cpu",),
        dtypes=dtypes,
        supports=(implied - set(without)) | set(supports),
        presentation=presentation,
        destinations={quantity: word for word, quantity in RESULTS.items() if own.named(word)},
        name=name or default_name(stem, own.symbol),
        **facts,
    )(called)
    _check_pointers(own, made)
    return made


def _shown(presentation: str) -> Presentation:
    """Return a presentation in which q, k and v are tensors of one shape for all sequences. Raises KernelError."""
    able = {
        name: row for name, row in PRESENTATIONS.items() if not isinstance(row, Buffers) and row.tensors == tuple("qkv")
    }
    if presentation not in able:
        raise KernelError(f"presentation of a C function must be one of {', '.join(able)}, not {presentation!r}")
    return able[presentation]


def _check_pointers(own: Prototype, made: Kernel) -> None:
    """Raise :class:`PrototypeError` if a pointer points to numbers of another dtype than a call has there."""
    for parameter in own.parameters:
        if not parameter.points or parameter.type in (*STRUCTURES, "void"):
            continue
        for dtype in made.dtypes:
            wanted = _dtype(parameter.name, made, dtype)
            if wanted not in POINTED[parameter.type]:
                raise PrototypeError(
                    f"{own.symbol}: {parameter} points to {' or '.join(POINTED[parameter.type])}, and calls in {dtype} "
                    f"have {parameter.name} in {wanted}; write void *{parameter.name}, or declare what the function has"
                )


def _dtype(name: str, made: Kernel, dtype: str) -> str:
    """Return the dtype of a tensor in calls whose inputs are of ``dtype``."""
    if name in RESULTS:
        contract = made.contract_for(dtype)
        return contract.output if name == "out" else contract.lse
    if name in OPTIONS and OPTIONS[name].tensor is not np.float64:
        return np.dtype(OPTIONS[name].tensor).name
    return dtype_of(made.dtypes_at(dtype), name)

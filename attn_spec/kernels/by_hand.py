"""Tensors of a problem in a framework, and a kernel's answer to it: ``attn_spec.tensors`` and ``attn_spec.run``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.frameworks import framework as frameworks
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem


def tensors(
    problem: Problem, framework: str = "numpy", *, presentation: str = "BHSD", device: str = "cpu"
) -> dict[str, Any]:
    """Return q, k, v and the tensors of the options in use, by name, as tensors of a framework, each in its dtype.

    q, k and v have the axes of the ``presentation``, options have the axes of their rows. Arguments that the
    presentation adds, such as ``cu_seqlens_q``, are there too. Raises :class:`KernelError` for a presentation that
    passes one batch entry or head at a time, and :class:`FrameworkError`.
    """
    whole = {name: row for name, row in PRESENTATIONS.items() if row.calls_once}
    if presentation not in whole:
        raise KernelError(f"presentation must be one of {', '.join(whole)} here, not {presentation!r}")
    give, handed = frameworks.framework(framework).give, whole[presentation].handed(problem)
    further = {name: give(x, "int32", device) if isinstance(x, np.ndarray) else x for name, x in handed.further.items()}
    return {name: give(x, problem.dtype_of(name), device) for name, x in handed.tensors.items()} | further


def run(problem: Problem, kernel: Kernel | str | Callable[..., Any], *, device: str = "cpu", **declared: Any) -> Answer:
    """Return a kernel's answer in float64: output [B, Hq, Sq, Dv], and lse [B, Hq, Sq] if it declares "lse".

    ``kernel`` is a declared kernel, a name as ``attn-spec certify`` takes it, or an undecorated callable, for which
    ``declared`` may give further declarations. The kernel is called as a search calls it.

    Raises :class:`KernelError` if the kernel does not declare an option of the problem or its dtype. A call that fails
    raises the error that a search counts as a refutation.
    """
    found = in_hand(kernel, declared)
    if problem.dtype not in found.dtypes and found.declared:
        raise KernelError(
            f"{found.name} declares {', '.join(found.dtypes)}, and the problem is of {problem.dtype}; make it in a "
            "declared dtype"
        )
    missing = sorted(name for name in problem.options() & OPTIONS.keys() if name not in found.supports)
    if missing:
        raise KernelError(
            f"{found.name} does not declare {', '.join(missing)}, which the problem uses; leave them out of the problem"
        )
    return Subject(found, problem.dtype, device)(problem)


def in_hand(kernel: Kernel | str | Callable[..., Any], declared: Mapping[str, Any]) -> Kernel:
    """Return a declared kernel as it is, find a named kernel, or declare a callable. Raises :class:`KernelError`."""
    if isinstance(kernel, str):
        return resolve(kernel, **declared)
    return kernel if isinstance(kernel, Kernel) else replace(from_callable(kernel, **declared), given=dict(declared))

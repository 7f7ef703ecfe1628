"""The declaration of a callable, as far as its answers decide it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.preflight import preflight

from .accumulators import output_accumulator
from .instrument import Finding
from .presentations import presentation
from .scores import score_format

EXPERIMENTS: dict[str, Callable[[Subject], Finding]] = {
    "scores": score_format,
    "accumulator of p.v": output_accumulator,
}


def declaration(spec: str, framework: str | None = None) -> list[str]:
    """Lines of Python. Raises :class:`KernelError` for a kernel that declares itself or cannot be run."""
    found = resolve(spec, framework=framework)
    if found.declared:
        raise KernelError(f"{spec} declares itself with @kernel; probe the function without it")
    order = presentation(found.function, found.framework, found.dtypes[-1 if found.framework == "numpy" else 0])
    if order.value is None:
        raise KernelError(f"{spec}: no presentation is found: {order.evidence}")
    ready = preflight(resolve(spec, framework=found.framework, presentation=order.value))
    kernel, dtypes = ready.subjects[0].kernel, tuple(subject.dtype for subject in ready.subjects)
    lines = [
        "@kernel(",
        f"    framework={kernel.framework!r},  # what its module imports, or was said",
        f"    dtypes={dtypes!r},  # a plain call returns",
        f"    presentation={order.value!r},  # {order.evidence}",
        f"    supports={tuple(sorted(kernel.supports))!r},  # parameters of these names, and calls that return",
        ")",
        "# Not asked: whether options do as specified, conventions, contract. Declare a contract that allows:",
    ]
    with np.errstate(all="ignore"):
        return lines + [
            f"# {subject.dtype}: {_asked(subject, name)}" for subject in ready.subjects for name in EXPERIMENTS
        ]


def _asked(subject: Subject, name: str) -> Finding:
    """One finding; of a call that fails there is none."""
    try:
        return EXPERIMENTS[name](subject)
    except (Misbehaviour, NotTaken, FrameworkError) as error:
        return Finding(name, None, str(error))

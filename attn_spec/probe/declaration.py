"""The declaration of an undecorated callable, as far as its answers decide it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attn_spec.isolation.foreign import found
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.signatures.fitting import fitting
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.kernels.subject import Subject
from attn_spec.search.preflight import preflight

from .arithmetic import arithmetic
from .contracts import contract
from .conventions import conventions
from .instrument import Finding, asked
from .options import uses
from .presentations import presentation


def declaration(spec: str, framework: str | None = None) -> list[str]:
    """Return the declaration as lines of Python.

    Raises :class:`KernelError` for a kernel that has a declaration or cannot be run.
    """
    kernel = found(spec, framework=framework)
    if kernel.declared:
        raise KernelError(f"{spec} declares itself with @kernel; probe the function without it")
    presented = presentation(kernel, kernel.dtypes[-1 if kernel.framework == "numpy" else 0])
    if presented.value is None:
        raise KernelError(f"{spec}: no presentation was found: {presented.evidence}{_proposed(kernel, '; ')}")
    ready = preflight(replace(kernel, presentation=presented.value))
    with np.errstate(all="ignore"):
        return [*_lines(ready.subjects, presented), *filter(None, [_proposed(kernel, "# ")])]


def _proposed(kernel: Kernel, before: str) -> str:
    """Return the signatures that the callable has by its parameters, as a proposal; empty if it has none."""
    found = fitting(kernel.parameters)
    told = " or ".join(f"signature={name!r}" for name in found)
    what = ", ".join(dict.fromkeys(SIGNATURES[name].function for name in found))
    return f"{before}{told}: its parameters and defaults are those of {what}" if found else ""


def _lines(subjects: Sequence[Subject], presented: Finding) -> list[str]:
    first, agreed = conventions(subjects[0])
    kernel, dtypes = first.kernel, tuple(subject.dtype for subject in subjects)
    subjects = [replace(subject, kernel=kernel) for subject in subjects]
    found_at = {subject.dtype: arithmetic(subject) for subject in subjects}
    promised = asked("contract", partial(contract, subjects, found_at))
    options = list(uses(first))
    return [
        "@kernel(",
        f"    framework={kernel.framework!r},  # what its module imports, or was said",
        f"    dtypes={dtypes!r},  # a plain call returns",
        *([f"    contract={promised.value!r},  # {promised.evidence}"] if promised.value else []),
        f"    presentation={presented.value!r},  # {presented.evidence}",
        *(
            [f"    destinations={kernel.destinations!r},  # parameters without a default"]
            if kernel.destinations
            else []
        ),
        f"    supports={tuple(sorted(kernel.supports))!r},  # parameters of these names, and calls that return",
        *_of_conventions(agreed),
        ")",
        *([] if promised.value else [f"# {promised}"]),
        *(f"# {finding}" for finding in agreed if finding.value is None),
        *(f"# {use.name} does not do as specified: {use.evidence}" for use in options if use.value is None),
        *(f"# {dtype}: {finding}" for dtype, every in found_at.items() for finding in every),
    ]


def _of_conventions(agreed: Sequence[Finding]) -> list[str]:
    """Return lines for the argument ``conventions``; none if no convention was found."""
    rows = [
        f"        {one.name!r}: {one.value if one.name == 'deterministic' else repr(one.value)},  # {one.evidence}"
        for one in agreed
        if one.value is not None
    ]
    return ["    conventions={", *rows, "    },"] if rows else []

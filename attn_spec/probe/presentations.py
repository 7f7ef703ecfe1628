"""Which presentation a callable takes: the one under which its answer to a plain problem is attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_spec.kernels.declaration import from_callable
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.presentation import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import with_defaults_off

from .instrument import Finding


def presentation(function: Callable[..., Any], framework: str, dtype: str) -> Finding:
    """The presentation that alone explains an answer, of those that hand over a whole problem, else of the others."""
    whole = [name for name, row in PRESENTATIONS.items() if not row.looped]
    for names in (whole, [name for name in PRESENTATIONS if name not in whole]):
        explain = [name for name in names if _explains(function, framework, dtype, name)]
        if len(explain) == 1:
            return Finding("presentation", explain[0], f"of {', '.join(names)} it alone explains the answer")
        if explain:
            return Finding("presentation", None, f"{' and '.join(explain)} explain the answer")
    return Finding("presentation", None, "none explains the answer to a plain problem")


def _explains(function: Callable[..., Any], framework: str, dtype: str, name: str) -> bool:
    """Whether the answer to 2 entries of 3 heads of length 5 is within the bound of the loosest contract."""
    rng = np.random.default_rng(0)
    q, k, v = bits.nearest(rng.standard_normal((3, 2, 3, 5, 16)), dtype)
    problem = Problem(q=q, k=k, v=v, dtype=dtype)
    try:
        kernel, _ = with_defaults_off([Subject(from_callable(function, framework=framework, presentation=name), dtype)])
        subject = Subject(kernel, dtype)
        return not judged(subject, problem, subject(problem)).refuted
    except (KernelError, Misbehaviour):
        return False

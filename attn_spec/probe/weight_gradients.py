"""Precision of dP = dO v^T, the gradient of the weights: an experiment with two gradients that differ little."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem

from .instrument import WIDTH, Finding, format_of, prefix

#: Largest number of bits tried; and the cotangent, large enough that a small difference stays in the range of dQ.
MOST, COTANGENT = 55, 2.0**10


def weight_gradient_format(subject: Subject) -> Finding | None:
    """Return the narrowest format that dP passes; None for a kernel without gradients.

    Two keys have one score, and their gradients of the weights are c (1 + 2^-b) and c. If both are represented, the
    gradient of the first score is c 2^-b / 4. If the first is rounded to c, that gradient is 0, or negative if delta
    was computed from the output.
    """
    if not subject.supports("backward"):
        return None
    exponents = np.arange(2, min(MOST, int(-np.log2(FORMATS[subject.dtype].smallest_subnormal))) + 1)
    n = len(exponents)
    q, k, v, dO = (np.zeros((n, 1, 2, WIDTH)) for _ in range(4))
    k[:, 0, 0, 0] = 1.0
    v[:, 0, :, 0], v[:, 0, 0, 1] = 1.0, 2.0**-exponents
    dO[:, 0, 0, :2] = COTANGENT
    problem = Problem(q=q, k=k, v=v, scale=1.0, dtypes=subject.dtype)
    problem = problem if subject.supports("scale") else problem.replace(scale=None)
    found = subject.gradients(problem, dO)["dq"][:, 0, 0, 0] / problem.scale_value
    held = prefix(np.abs(found * 4 / COTANGENT / 2.0**-exponents - 1) < 0.1)
    if held == 0:
        return Finding("gradients of weights", None, "no two gradients of weights are told apart")
    last = int(exponents[held - 1])
    told = f"1 and 1 + 2^-{last} are told apart"
    if held == n:
        return Finding("gradients of weights", None, told)
    return Finding("gradients of weights", format_of(last + 1), f"{told}, 1 and 1 + 2^-{last + 1} are not")

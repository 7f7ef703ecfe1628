"""In how many bits dP = dO v^T, the gradient of the weights, is held: two that differ little are told apart, or not."""

from __future__ import annotations

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem

from .instrument import WIDTH, Finding, format_of, prefix

#: The most bits that are tried, and the cotangent, which keeps what is left of a small difference in the range of dQ.
MOST, COTANGENT = 55, 2.0**10


def weight_gradient_format(subject: Subject) -> Finding | None:
    """The narrowest format that dP passes; None of a kernel without gradients.

    Of two keys of one score the gradients of the weights are c (1 + 2^-b) and c: that of the first score is
    c 2^-b / 4 where both are held. Where the first is c too, it is 0, or negative by a delta that was made of the
    output.
    """
    if not subject.supports("backward"):
        return None
    exponents = np.arange(2, min(MOST, int(-np.log2(FORMATS[subject.dtype].smallest_subnormal))) + 1)
    n = len(exponents)
    q, k, v, dO = (np.zeros((n, 1, 2, WIDTH)) for _ in range(4))
    k[:, 0, 0, 0] = 1.0
    v[:, 0, :, 0], v[:, 0, 0, 1] = 1.0, 2.0**-exponents
    dO[:, 0, 0, :2] = COTANGENT
    problem = Problem(q=q, k=k, v=v, scale=1.0, dtype=subject.dtype)
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

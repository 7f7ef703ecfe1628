"""Precision of scores, and of the products that they are sums of: experiments with two scores that differ by 1."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits

from .instrument import Finding, format_of, largest_power, outputs, prefix


def score_format(subject: Subject) -> Finding:
    """Return the narrowest format that scores pass: of their accumulator, or in which they are stored.

    Scores are 2^b + 1 and 2^b, values 1 and -1. The output is tanh(1/2) if both scores are represented, else 0.
    """
    exponents = [b for b in range(2, 56) if b - b // 2 <= largest_power(subject) - 3]
    q, k = np.zeros((len(exponents), 1, 2)), np.zeros((len(exponents), 2, 2))
    for n, b in enumerate(exponents):
        q[n, 0] = 2.0 ** (b // 2), 1.0
        k[n, :, 0], k[n, 0, 1] = 2.0 ** (b - b // 2), 1.0
    v = np.broadcast_to([[1.0], [-1.0]], (len(exponents), 2, 1))
    held = prefix(np.abs(outputs(subject, q, k, v)[:, 0, 0] - math.tanh(0.5)) < 0.05)
    if held in (0, len(exponents)):
        return Finding("scores", None, f"{held} of {len(exponents)} pairs of scores are told apart")
    last = exponents[held - 1]
    evidence = f"2^{last} and 2^{last} + 1 are told apart, 2^{last + 1} and 2^{last + 1} + 1 are not"
    return Finding("scores", format_of(last + 1), evidence)


#: Integers of a dtype by dtype, whose squares are 1 above a number of that dtype.
_ODD = {"bfloat16": 129.0, "float16": 65.0}


def product_format(subject: Subject, scores: str | None) -> Finding | None:
    """Return whether products q_d k_d are rounded to the dtype before their sum; None for other dtypes than halves.

    A score is n n - m, where n has the dtype and m is n n rounded to it. So it is 1 if products are exact, and else 0.
    Another is 1 in any case. Values are 1 and -1, so that the output is tanh(1/2) or 0. Where ``scores`` themselves are
    found to be in a half, nothing is told.
    """
    if (n := _ODD.get(subject.dtype)) is None or scores not in (None, "float32", "float64"):
        return None
    m = float(bits.nearest(np.array(n * n), subject.dtype))
    q, k = np.array([[[n, -1.0]]] * 2), np.array([[[n, m], [0.0, 0.0]], [[0.0, -1.0], [0.0, 0.0]]])
    v = np.array([[[1.0], [-1.0]]] * 2)
    found, one = np.abs(outputs(subject, q, k, v)[:, 0, 0] - math.tanh(0.5)) < 0.05
    evidence = f"{n:.0f} x {n:.0f} - {m:.0f} is {'1' if found else 'not 1'}"
    if not one:
        return Finding("products of scores", None, f"{evidence}, and 1 is not 1")
    if not found:
        evidence += "; the contract field products='input' says so"
    return Finding("products of scores", "exact" if found else subject.dtype, evidence)

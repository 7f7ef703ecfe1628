"""Precision of scores: an experiment with two scores that differ by 1."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.kernels.subject import Subject

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

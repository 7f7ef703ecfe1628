"""Values that a search derives from a problem's values: cotangents, and a random generator."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.numbers import bits

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem


def randomness(problem: Problem) -> np.random.Generator:
    """Return a generator seeded by the problem's values, so that a stored problem replays exactly."""
    digest = hashlib.sha256()
    for array in (problem.q, problem.k, problem.v):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(repr(array.shape).encode())
    return np.random.default_rng(int.from_bytes(digest.digest()[:8]))


def cotangent(subject: Subject, problem: Problem) -> np.ndarray:
    """Return dO [B, Hq, Sq, Dv] as losses send it: normal, constant, or one element per head, of size 1/8 to 8."""
    rng = randomness(problem)
    size = 2.0 ** rng.integers(-3, 4)
    shape = problem.output_shape
    kind = rng.choice(["normal", "constant", "one element"], p=[0.6, 0.2, 0.2])
    if kind == "normal":
        return bits.nearest(size * rng.standard_normal(shape), subject.contract.output)
    if kind == "constant":
        return np.full(shape, size)
    heads, entries = int(np.prod(shape[:2])), int(np.prod(shape[2:]))
    chosen = rng.integers(max(entries, 1), size=(heads, 1))
    return np.where(np.arange(entries) == chosen, size, 0.0).reshape(shape)


def lse_cotangent(problem: Problem) -> np.ndarray:
    """Return dL [B, Hq, Sq]: multiples of 1/8 up to 4, which every format represents."""
    return randomness(problem).spawn(1)[0].integers(-32, 33, problem.score_shape[:3]) / 8

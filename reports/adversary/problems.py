"""The problems that the adversary attacks: small ones, whose every number a narrow format holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

#: The format of a stage that is made narrow, and of the numbers of a problem, which it holds.
NARROW = "float16"


def small_problem(
    *,
    seed: int = 0,
    n: int = 5,
    Sq: int = 1,
    Hq: int = 1,
    D: int = 3,
    scale: float = 0.3,
    spread: float = 1.0,
    queries: float = 2.0,
    value: float = 0.0,
    value_spread: float = 0.0,
    bias: bool = False,
    biases: float = 2.0,
    bias_format: str = NARROW,
    slopes: float | None = None,
    dropped: float | None = None,
    dtype: str = "float64",
    **options: Any,
) -> Problem:
    """A problem of few numbers of the format NARROW, but for the bias that of ``bias_format``, and for slopes.

    V is random, or ``value`` and ``value_spread`` times random. ``dropped`` is the p of dropout, which drops the second
    key and every third one from there.
    """
    rng = np.random.default_rng(seed)

    def drawn(*shape: int, size: float = spread, form: str = NARROW) -> np.ndarray:
        return bits.nearest(rng.standard_normal(shape) * size, form)

    q, k, v = drawn(1, Hq, Sq, D, size=queries), drawn(1, 1, n, D), drawn(1, 1, n, 2)
    if value:
        v = bits.nearest(value + value_spread * v, NARROW)
    added = drawn(1, 1, Sq, n, size=biases, form=bias_format) if bias else None
    falls = None if slopes is None else np.full((1, 1, 1, 1), slopes)
    if dropped is not None:
        options |= {"dropout_p": dropped, "dropout_keep": np.arange(n)[None, None, None] % 3 != 1}
    return Problem(q=q, k=k, v=v, bias=added, alibi_slopes=falls, scale=scale, dtype=dtype, **options)

"""Tokens that a call appends with scales of its own: where they are in a problem, and the numbers that it is given.

A problem has codes and scales of all tokens, as caches have them. The real number of an appended token is its code
times its scale, rounded to the dtype of the queries. A call is given this number. It makes another code and another
scale of it, which a quantiser with ``over="appended"`` replays.
"""

from __future__ import annotations

import numpy as np

from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem


def are_appended(problem: Problem) -> np.ndarray:
    """Return which keys a call appends, bool [B, 1, Sk]: the last of each sequence, as many as it has queries."""
    j, ends = np.arange(problem.key_length), problem.end_keys[:, None, None]
    return (ends - problem.query_length <= j) & (j < ends)


def numbers(problem: Problem, name: str) -> np.ndarray:
    """Return the real numbers of keys or values [B, Hkv, Sk, D] in the dtype of the queries, within its range."""
    x, d, dtype = getattr(problem, name), getattr(problem, f"{name}_descale"), problem.dtype_of("q")
    product, largest = x if d is None else x * d, FORMATS[dtype].largest
    return bits.nearest(np.clip(product, -largest, largest), dtype)

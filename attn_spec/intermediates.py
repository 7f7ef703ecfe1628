"""The float64 intermediates of attention: scores, their magnitudes, weights, output, log-sum-exp.

The bounds are functions of these. They are themselves rounded; ``bounds`` accounts for that with the same
theorems under the float64 contract, so nothing here has to be exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.problem import Problem


@dataclass(frozen=True, eq=False)
class Intermediates:
    """Symbols as in ``bounds``; every array starts with [B, Hq]; kv heads are repeated to Hq."""

    problem: Problem
    #: [.., Sq, D], [.., Sk, D], [.., Sk, Dv]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    #: bool [.., Sq, Sk]
    visible: np.ndarray
    #: q.k and |q|.|k| before the scale, [.., Sq, Sk]
    dot: np.ndarray
    magnitude: np.ndarray
    #: After the scale; after the softcap; after the bias (0 where hidden), [.., Sq, Sk]
    scaled: np.ndarray
    capped: np.ndarray
    s: np.ndarray
    #: M = max_j s and L = log sum_j exp(s), [.., Sq, 1]; 0 and -inf for empty rows
    M: np.ndarray
    L: np.ndarray
    #: log P = s - L, -inf where hidden, and P, [.., Sq, Sk]
    log_P: np.ndarray
    P: np.ndarray
    #: O = P v, [.., Sq, Dv]
    O: np.ndarray

    @property
    def keys(self) -> np.ndarray:
        """n: visible keys of each row, [.., Sq, 1]."""
        return self.visible.sum(axis=-1, keepdims=True)


@np.errstate(all="ignore")
def intermediates(problem: Problem) -> Intermediates:
    """Evaluate attention in float64, keeping everything a bound needs."""
    q = problem.q
    k, v = (np.repeat(x, problem.group, axis=1) for x in (problem.k, problem.v))
    visible = problem.visible
    dot = q @ k.swapaxes(-1, -2)
    magnitude = np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    scaled = dot * problem.scale_value
    cap = problem.softcap
    capped = scaled if cap is None else cap * np.tanh(scaled / cap)
    s = np.where(visible, capped if problem.bias is None else capped + problem.bias, 0.0)
    masked = np.where(visible, s, -np.inf)
    M = masked.max(axis=-1, keepdims=True, initial=-np.inf)
    M = np.where(np.isfinite(M), M, 0.0)
    L = M + np.log(np.exp(masked - M).sum(axis=-1, keepdims=True))
    log_P = np.where(visible, s - np.where(np.isfinite(L), L, 0.0), -np.inf)
    P = np.exp(log_P)
    O = P @ v
    return Intermediates(problem, q, k, v, visible, dot, magnitude, scaled, capped, s, M, L, log_P, P, O)

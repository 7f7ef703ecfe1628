"""The float64 intermediates of attention: scores, their magnitudes, weights, output, log-sum-exp.

The bounds are functions of these. They are themselves rounded; ``bounds`` accounts for that with the same
theorems under the float64 contract, so nothing here has to be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_spec.problem.problem import Problem


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

    @cached_property
    def keys(self) -> np.ndarray:
        """n: visible keys of each row, [.., Sq, 1]."""
        return self.visible.sum(axis=-1, keepdims=True)

    def over_group(self, per_head: np.ndarray) -> np.ndarray:
        """Sum [B, Hq, ...] over the query heads that share a kv head: [B, Hkv, ...]."""
        B, _, *rest = per_head.shape
        return per_head.reshape(B, self.problem.kv_heads, self.problem.group, *rest).sum(axis=2)


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
    w = np.exp(masked - M)
    t = w.sum(axis=-1, keepdims=True)
    L = M + np.log(t)
    t = np.where(t > 0, t, 1.0)
    # Not s - L: the rounding of L would not cancel between the weights and their sum.
    log_P = masked - M - np.log(t)
    P = w / t
    O = (w @ v) / t
    return Intermediates(problem, q, k, v, visible, dot, magnitude, scaled, capped, s, M, L, log_P, P, O)


@dataclass(frozen=True, eq=False)
class GradientIntermediates:
    """The float64 gradients of attention and what they were made of; symbols as in ``gradient_bounds``."""

    #: dO [B, Hq, Sq, Dv] and dL [B, Hq, Sq], the cotangents of output and LSE.
    cotangent: np.ndarray
    lse_cotangent: np.ndarray | None
    #: dP = dO v^T, [B, Hq, Sq, Sk], 0 where hidden; D = rowsum(P dP), [B, Hq, Sq, 1]; X = dP - D + dL.
    dP: np.ndarray
    D: np.ndarray
    X: np.ndarray
    #: Gradients of the finished score and of the score before the softcap, [B, Hq, Sq, Sk].
    dA: np.ndarray
    dS: np.ndarray
    #: Shapes of q, k, v, bias.
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    dbias: np.ndarray | None


@np.errstate(all="ignore")
def gradient_intermediates(
    x: Intermediates, cotangent: np.ndarray, lse_cotangent: np.ndarray | None = None
) -> GradientIntermediates:
    """Evaluate the gradients in float64, keeping everything a bound needs."""
    problem, cap = x.problem, x.problem.softcap
    dP = np.where(x.visible, cotangent @ x.v.swapaxes(-1, -2), 0.0)
    D = (x.P * dP).sum(axis=-1, keepdims=True)
    X = dP - D if lse_cotangent is None else dP - D + lse_cotangent[..., None]
    X = np.where(x.visible, X, 0.0)
    dA = x.P * X
    dS = dA if cap is None else dA * (1 - (x.capped / cap) ** 2)
    dS = np.where(x.visible, dS, 0.0)
    dq = problem.scale_value * (dS @ x.k)
    dk = problem.scale_value * x.over_group(dS.swapaxes(-1, -2) @ x.q)
    dv = x.over_group(x.P.swapaxes(-1, -2) @ cotangent)
    dbias = None
    if problem.bias is not None:
        dbias = dA.sum(axis=problem.bias_axes, keepdims=True)
    return GradientIntermediates(cotangent, lse_cotangent, dP, D, X, dA, dS, dq, dk, dv, dbias)

"""Rows that keep within a part of their bound: most rows of a long problem, cleared without the theorems of scores.

One float64 evaluation of the textbook's formulas, by NumPy or by PyTorch on any device (``engine``), with the error
that Higham's model (*Accuracy and Stability of Numerical Algorithms*, sections 3.1 and 4.2) allows it, and the part of
the bound that ``error.least_bounds`` tells. A row is cleared when it lies within that part for certain. Others are
neither right nor wrong: the whole bound decides. What was computed in float64 is off by as much as that evaluation, and
is compared with error-free products (``error_free``) instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from attn_spec.attention import error_free
from attn_spec.attention.enclosure import Enclosed, Truth
from attn_spec.attention.scores import score_of
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.least_bounds import least_lse_error, least_output_error
from attn_spec.error.roundoff import elementary_error
from attn_spec.error.row_sum_bounds import EVALUATION
from attn_spec.judgement.engine import NUMPY, Engine
from attn_spec.problem.problem import Problem

#: Unit roundoff of float64.
U = 2.0**-53
#: Covers products of small numbers of roundings that are counted as sums, and sizes that are rounded themselves.
SLACK = 1.0 + 2.0**-10
#: Below every number whose underflow could matter, above the sum of all that do.
TINY = 2.0**-1000
#: Rows that are looked at together: under causality few see the last keys, which then are left out.
TOGETHER = 512


@dataclass(frozen=True)
class Glance:
    """Output and LSE of each row in float64, and how far the truth may lie from them, at most."""

    #: [.., Sq, Dv]: o, sum P |v| less its own error, and the radius of o.
    output: np.ndarray
    size: np.ndarray
    output_radius: np.ndarray
    #: [.., Sq]: L, its radius, and how many keys are seen.
    lse: np.ndarray
    lse_radius: np.ndarray
    keys: np.ndarray

    @property
    def truth(self) -> Truth:
        """Output and LSE as enclosures."""
        known = {"output": (self.output, self.output_radius), "lse": (self.lse, self.lse_radius)}
        return {name: Enclosed(value, np.zeros(value.shape), radius) for name, (value, radius) in known.items()}


def is_plain(problem: Problem) -> bool:
    """Whether the formulas here are the problem's: a softmax of products of q and k themselves, none dropped."""
    return score_of(problem).plain and problem.feature_map is None and problem.dropout_keep is None


@np.errstate(all="ignore")
def glance(problem: Problem, engine: Engine = NUMPY) -> Glance:
    """Evaluate a problem that :func:`is_plain`. Memory: two float64 arrays and a bool one [B, Hq, Sq, Sk]."""
    s, keys, delta = masked_scores(problem, engine)
    v = problem.per_query_head(problem.v)
    summed = [engine.take(x) for x in _summed(s, engine.give(v))]
    return _of_sums(summed, v, keys, delta)


def masked_scores(problem: Problem, engine: Engine = NUMPY) -> tuple[Any, np.ndarray, np.ndarray]:
    """Scores, -inf where hidden, [B, Hq, Sq, Sk], as an array of the engine.

    Of each row [B, Hq, Sq], its keys, and how far scores are off.
    """
    cap, D, k = problem.softcap, problem.head_dim, problem.per_query_head(problem.k)
    q_given, k_given = engine.give(problem.q), engine.give(k)
    xp = array_namespace(q_given)
    s = xp.matmul(q_given, xp.matrix_transpose(k_given))
    s *= problem.scale_value
    lengths = np.linalg.norm(k, axis=-1).max(axis=-1, initial=0.0)[..., None]
    largest = abs(problem.scale_value) * np.linalg.norm(problem.q, axis=-1) * lengths
    delta = (D + 8) * largest
    if cap is not None:
        s /= cap
        s = xp.tanh(s)
        s *= cap
        delta = delta + (4 + elementary_error(EVALUATION, "tanh_error") / U) * cap
    if problem.bias is not None:
        s += engine.give(problem.bias)
        delta = delta + 4 * np.where(np.isfinite(problem.bias), abs(problem.bias), 0.0).max(axis=-1, initial=0.0)
    if problem.alibi_slopes is not None:
        far = abs(problem.distances)
        s -= engine.give(problem.alibi_slopes * far)
        delta = delta + 4 * (abs(problem.alibi_slopes)[..., 0] * far.max(axis=-1, initial=0))
    visible = problem.visible
    s[engine.give(np.broadcast_to(~visible, s.shape))] = -np.inf
    return s, visible.sum(axis=-1), delta * U * SLACK + TINY


def _summed(s: Any, v: Any) -> tuple[Any, Any, Any, Any]:
    """M, log N [.., Sq, 1] and P v, P |v| of scores, -inf where hidden, which are overwritten; arrays of any engine."""
    xp = array_namespace(s, v)
    if s.shape[-1] == 0:  # the standard knows no largest of no numbers
        s, v = xp.full((*s.shape[:-1], 1), -np.inf, dtype=s.dtype, device=device(s)), v.sum(axis=-2, keepdims=True)
    M = xp.max(s, axis=-1, keepdims=True)
    s -= M
    w = xp.exp(s)
    N = xp.sum(w, axis=-1, keepdims=True)
    return M, xp.log(N), xp.matmul(w, v) / N, xp.matmul(w, xp.abs(v)) / N


def _of_sums(summed: Sequence[np.ndarray], v: np.ndarray, keys: np.ndarray, delta: np.ndarray) -> Glance:
    """The rows of what :func:`_summed` gave of scores that are off by ``delta`` [.., Sq] at most.

    An argument of exp is rounded by U times its size, at most 746 where exp is no 0. Numerator and row sum share their
    weights, of which each is off by alpha; they have n products and n sums each, and a division.
    """
    M, log_N, output, size = summed
    L = (M + log_N)[..., 0]
    alpha = delta + (747 * U + elementary_error(EVALUATION, "exp_error")) * SLACK
    rho = np.where(alpha < 2.0**-12, (2 * alpha + (2 * keys + 4) * U) * SLACK, np.inf)[..., None]
    underflow = (keys[..., None] + 1) * TINY * (1 + np.abs(v).max(axis=(-1, -2), keepdims=True, initial=0.0))
    of_log = elementary_error(EVALUATION, "log_error") * (1 + np.abs(log_N[..., 0]))
    of_lse = (alpha + (keys + 2) * U + of_log + 2 * U * (np.abs(L) + np.abs(M[..., 0]))) * SLACK + TINY
    return Glance(
        output=output,
        size=size * (1 - rho * SLACK) - underflow,
        output_radius=rho * size * SLACK + underflow,
        lse=L,
        lse_radius=np.where(np.isfinite(rho[..., 0]), of_lse, np.inf),
        keys=keys,
    )


@np.errstate(all="ignore")
def shares(
    problem: Problem,
    c: ResolvedContract,
    answer: Mapping[str, np.ndarray],
    lse_base: str = "e",
    engine: Engine = NUMPY,
) -> np.ndarray:
    """How much of the part of its bound the worst element of each row takes, at most, [B, Hq, Sq].

    A row is within its bound for certain where this is 1 or less; it is inf where nothing is known. ``answer`` holds
    "output" [B, Hq, Sq, Dv], "lse" [B, Hq, Sq] or both; ``c`` is one reading of a contract.
    """
    found = np.full(problem.score_shape[:3], np.inf)
    for start in range(0, problem.query_length, TOGETHER):
        rows = np.arange(start, min(start + TOGETHER, problem.query_length))
        those = {name: x[:, :, rows] for name, x in answer.items()}
        found[..., rows] = _shares(problem.rows(rows), c, those, lse_base, engine)
    return found


def _shares(
    problem: Problem, c: ResolvedContract, answer: Mapping[str, np.ndarray], lse_base: str, engine: Engine
) -> np.ndarray:
    """:func:`shares` of a few rows, of which none may see the last keys."""
    looked_at = _without_last_keys(problem)
    seen = glance(looked_at, engine)
    is_wide = c.format("output_accumulation").name == c.output == "float64"
    truth = error_free.enclose(looked_at) if is_wide and error_free.applies(looked_at) else seen.truth
    found = np.where(seen.keys > 0, 0.0, np.inf)
    if "output" in answer:
        o = truth["output"]
        sizes = {"keys": seen.keys[..., None], "key_length": problem.key_length, "o": _least(o), "size": seen.size}
        allowed = least_output_error(c, problem.dtype, **sizes)
        error = np.abs((answer["output"] - o.value) - o.low) + o.radius
        found = np.maximum(found, _share(error, allowed).max(axis=-1, initial=0.0))
    if "lse" in answer:
        L, unit = truth["lse"], math.log(2.0) if lse_base == "2" else 1.0
        allowed = least_lse_error(c, keys=seen.keys, lse=_least(L)) / unit
        of_base = 0.0 if unit == 1 else 4 * U * np.abs(L.value)
        error = np.abs((answer["lse"] - L.value / unit) - L.low / unit) + (L.radius + of_base) / unit
        found = np.maximum(found, _share(error, allowed))
    return found


def _without_last_keys(problem: Problem) -> Problem:
    """The problem of :meth:`Problem.rows` without the keys at its end that no query sees."""
    seen = np.flatnonzero(problem.visible.any(axis=(0, 1, 2)))
    count = seen[-1] + 1 if len(seen) else 0
    return problem if count == problem.key_length else problem.take("K", range(count))


def _least(quantity: Enclosed) -> np.ndarray:
    """The least size of the truth."""
    return np.maximum(np.abs(quantity.value) - quantity.radius - np.abs(quantity.low), 0.0)


def _share(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    share = error / allowed
    return np.where(np.isfinite(share) & (allowed > 0), share, np.inf)

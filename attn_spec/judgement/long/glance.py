"""Rows that keep within a part of their bound: most rows of a long problem, cleared without the theorems of scores.

One float64 evaluation of the textbook's formulas, by NumPy or by PyTorch on any device (``engine``), with the error
that Higham's model (*Accuracy and Stability of Numerical Algorithms*, sections 3.1 and 4.2) allows it, and the part of
the bound that ``least_bounds`` tells. A row is cleared when it lies within that part for certain. Others are
neither right nor wrong: the whole bound decides. What was computed in float64 is off by as much as that evaluation, and
is compared with error-free products (``error_free``) instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from attn_spec.attention import error_free
from attn_spec.attention.enclosure import Enclosed
from attn_spec.attention.scores import score_of
from attn_spec.bounds.forward.least_bounds import least_lse_error, least_output_error
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import elementary_error
from attn_spec.judgement.long.engine import NUMPY, Engine
from attn_spec.judgement.long.float64_scores import SLACK, TINY, Scores, U, float64_scores
from attn_spec.problem.conventions import DEFAULTS, OF_ANSWERS, Conventions
from attn_spec.problem.handled import not_handled
from attn_spec.problem.problem import Problem

#: Options that are terms of ``float64_scores``, see ``problem.handled``.
HANDLES = ("scale", "softcap", "bias", "alibi_slopes")
#: Conventions that are read here, of those that decide what a row with keys gets; no other row is cleared.
CONVENTIONS_READ = ("lse_base",)
#: Rows that are looked at together: under causality few see the last keys, which then are left out.
TOGETHER = 512
#: Keys whose terms are added up before their sum is added to others: fewer roundings than one after the other.
SUMMED = 128


@dataclass(frozen=True)
class Glance:
    """Enclosures of the output and the log-sum-exp of each row, and what the least bound is made of."""

    #: o [.., Sq, Dv] and L [.., Sq].
    output: Enclosed
    lse: Enclosed
    #: sum P |v| less its own error, [.., Sq, Dv].
    size: np.ndarray
    #: The number of keys that each row sees, [.., Sq].
    keys: np.ndarray


def is_plain(problem: Problem) -> bool:
    """True if a glance evaluates this kind of problem: softmax attention by q.k, with terms that HANDLES names."""
    return score_of(problem).plain and problem.feature_map is None and not not_handled(problem, HANDLES)


def knows(conventions: Conventions) -> bool:
    """True unless a convention that a glance has not heard of is chosen otherwise than by default."""
    others = {name: row for name, row in OF_ANSWERS.items() if not row.without_keys and name not in CONVENTIONS_READ}
    return all(getattr(conventions, name) == row.default for name, row in others.items())


@np.errstate(all="ignore")
def glance(problem: Problem, engine: Engine = NUMPY, *, cut_operands: bool = False) -> Glance:
    """Evaluate a problem that :func:`is_plain`, with operands cut or not, as in ``float64_scores``.

    Memory: two float64 arrays and a bool one [B, Hq, Sq, Sk].
    """
    scores, v = float64_scores(problem, engine, cut_operands=cut_operands), problem.per_query_head(problem.v)
    return _of_sums([engine.take(x) for x in _summed(scores.s, engine.give(v))], v, scores)


def _summed(s: Any, v: Any) -> tuple[Any, Any, Any, Any]:
    """M, log N [.., Sq, 1] and P v, P |v| of scores, -inf where hidden, which are overwritten; arrays of any engine."""
    xp = array_namespace(s, v)
    if s.shape[-1] == 0:  # the standard knows no largest of no numbers
        s, v = xp.full((*s.shape[:-1], 1), -np.inf, dtype=s.dtype, device=device(s)), v.sum(axis=-2, keepdims=True)
    M = xp.max(s, axis=-1, keepdims=True)
    s -= M
    w, both = xp.exp(s), xp.concat([v, xp.abs(v)], axis=-1)
    parts = [slice(start, start + SUMMED) for start in range(0, s.shape[-1], SUMMED)]
    N = sum(xp.sum(w[..., part], axis=-1, keepdims=True) for part in parts)
    sums = sum(xp.matmul(w[..., part], both[..., part, :]) for part in parts)
    Dv = v.shape[-1]
    return M, xp.log(N), sums[..., :Dv] / N, sums[..., Dv:] / N  # pyright: ignore[reportIndexIssue] -- there is a part


def _of_sums(summed: Sequence[np.ndarray], v: np.ndarray, scores: Scores) -> Glance:
    """The rows of what :func:`_summed` gave of these scores.

    Numerator and row sum share their weights, of which each is off by alpha; they have a product and a division, and
    as many additions each as a part has keys, and as there are parts. A row of n keys has n additions at most.
    """
    M, log_N, output, size = summed
    L, keys, alpha = (M + log_N)[..., 0], scores.keys, scores.log_weight_error
    parts = -(-scores.s.shape[-1] // SUMMED)
    added = np.minimum(keys, SUMMED + parts)
    rho = np.where(alpha < 2.0**-12, (2 * alpha + (2 * added + 4) * U) * SLACK, np.inf)[..., None]
    underflow = (keys[..., None] + 1) * TINY * (1 + np.abs(v).max(axis=(-1, -2), keepdims=True, initial=0.0))
    of_log = elementary_error(EVALUATION, "log_error") * (1 + np.abs(log_N[..., 0]))
    of_lse = (alpha + (added + 2) * U + of_log + 2 * U * (np.abs(L) + np.abs(M[..., 0]))) * SLACK + TINY
    return Glance(
        output=_enclosed(output, rho * size * SLACK + underflow),
        lse=_enclosed(L, np.where(np.isfinite(rho[..., 0]), of_lse, np.inf)),
        size=size * (1 - rho * SLACK) - underflow,
        keys=keys,
    )


def _enclosed(value: np.ndarray, radius: np.ndarray) -> Enclosed:
    return Enclosed(value, np.zeros(value.shape), radius)


@np.errstate(all="ignore")
def shares(
    problem: Problem,
    c: ResolvedContract,
    answer: Mapping[str, np.ndarray],
    conventions: Conventions = DEFAULTS,
    engine: Engine = NUMPY,
) -> np.ndarray:
    """Return an upper bound on max(error / part of the allowed error) of each row, [B, Hq, Sq].

    A row is within its bound for certain where this is 1 or less; it is inf where nothing is known. ``answer`` holds
    "output" [B, Hq, Sq, Dv], "lse" [B, Hq, Sq] or both; ``c`` is one reading of a contract.
    """
    found = np.full(problem.score_shape[:3], np.inf)
    for start in range(0, problem.query_length, TOGETHER):
        rows = np.arange(start, min(start + TOGETHER, problem.query_length))
        those = {name: x[:, :, rows] for name, x in answer.items()}
        found[..., rows] = _shares(problem.rows(rows), c, those, conventions, engine)
    return found


def _shares(
    problem: Problem, c: ResolvedContract, answer: Mapping[str, np.ndarray], conventions: Conventions, engine: Engine
) -> np.ndarray:
    """:func:`shares` of a few rows, of which none may see the last keys."""
    is_wide = c.stages.output_accumulation.format.name == c.output == "float64"
    looked_at = without_last_keys(problem)
    seen = glance(looked_at, engine, cut_operands=is_wide)
    found = _shares_of(seen, problem, c, answer, conventions)
    open_ = np.flatnonzero(~(found <= 1).all(axis=(0, 1)))
    if is_wide and len(open_) and error_free.applies(looked_at):
        few = without_last_keys(problem.rows(open_))
        sharp = replace(glance(few, engine), **error_free.enclose(few))
        of_few = {name: x[:, :, open_] for name, x in answer.items()}
        found[..., open_] = _shares_of(sharp, problem, c, of_few, conventions)
    return found


def _shares_of(
    seen: Glance, problem: Problem, c: ResolvedContract, answer: Mapping[str, np.ndarray], conventions: Conventions
) -> np.ndarray:
    """:func:`shares` of rows of which this was seen."""
    found = np.where(seen.keys > 0, 0.0, np.inf)
    if "output" in answer:
        o = seen.output
        sizes = {"keys": seen.keys[..., None], "key_length": problem.key_length, "o": _least(o), "size": seen.size}
        allowed = least_output_error(c, problem.dtype, **sizes)
        error = np.abs((answer["output"] - o.value) - o.low) + o.radius
        found = np.maximum(found, _share(error, allowed).max(axis=-1, initial=0.0))
    if "lse" in answer:
        L, unit = seen.lse, math.log(2.0) if conventions.lse_base == "2" else 1.0
        allowed = least_lse_error(c, keys=seen.keys, lse=_least(L)) / unit
        of_base = 0.0 if unit == 1 else 4 * U * np.abs(L.value)
        error = np.abs((answer["lse"] - L.value / unit) - L.low / unit) + (L.radius + of_base) / unit
        found = np.maximum(found, _share(error, allowed))
    return found


def without_last_keys(problem: Problem) -> Problem:
    """The problem of :meth:`Problem.rows` without the keys at its end that no query sees, but for the first key."""
    seen = np.flatnonzero(problem.visible.any(axis=(0, 1, 2)))
    count = seen[-1] + 1 if len(seen) else min(1, problem.key_length)
    return problem if count == problem.key_length else problem.take("K", range(count))


def _least(quantity: Enclosed) -> np.ndarray:
    """The least size of the truth."""
    return np.maximum(np.abs(quantity.value) - quantity.radius - np.abs(quantity.low), 0.0)


def _share(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    share = error / allowed
    return np.where(np.isfinite(share) & (allowed > 0), share, np.inf)

"""Rows that keep within a part of their bound: most rows of a long problem, cleared without the theorems of scores.

A glance is one float64 evaluation of the textbook's formulas, by NumPy or by PyTorch on any device (``engine``). Its
error is bounded by Higham's model (*Accuracy and Stability of Numerical Algorithms*, sections 3.1 and 4.2).
``least_bounds`` gives a part of the bound. A row that is within that part for certain is cleared. Other rows are
neither right nor wrong: the full bound decides.

Answers computed in float64 have errors as large as that evaluation. They are compared with error-free products
(``error_free``) instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from attn_spec.attention import error_free
from attn_spec.attention.enclosure import Enclosed
from attn_spec.attention.scores import score_of
from attn_spec.attention.terms import known_to
from attn_spec.bounds.forward.least_bounds import least_lse_error, least_output_error
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION
from attn_spec.bounds.replay import Replayed
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import elementary_error
from attn_spec.judgement.long.engine import NUMPY, Engine
from attn_spec.judgement.long.float64_scores import SLACK, TINY, RowBounds, Scores, U, float64_scores
from attn_spec.problem.conventions import DEFAULTS, OF_ANSWERS, Conventions
from attn_spec.problem.handled import not_handled
from attn_spec.problem.problem import Problem

#: Terms that ``float64_scores`` has the operations for, see ``problem.handled``.
HANDLES = (*known_to(RowBounds), "sinks")
#: Conventions that a glance reads, among those that decide the result of a row with keys.
CONVENTIONS_READ = ("lse_base",)
#: Rows evaluated together: under causality few rows see the last keys, which are then left out.
TOGETHER = 512
#: Keys whose terms are added before their sum is added to the others, which takes fewer roundings than one long sum.
SUMMED = 128


@dataclass(frozen=True)
class Glance:
    """Enclosures of the output and the log-sum-exp of each row, and the sizes that the least bound is made of."""

    #: Enclosure of the output [.., Sq, Dv].
    output: Enclosed
    #: Enclosure of the log-sum-exp [.., Sq].
    lse: Enclosed
    #: Sum of P |v| minus its own error, [.., Sq, Dv].
    size: np.ndarray
    #: Number of keys that each row sees, [.., Sq].
    keys: np.ndarray


def is_plain(problem: Problem) -> bool:
    """Return whether a glance evaluates the problem: softmax attention by q.k, with no terms beyond HANDLES."""
    if isinstance(problem, Replayed):  # what quantisers leave open is known to the theorems alone
        return False
    return score_of(problem).plain and problem.feature_map is None and not not_handled(problem, HANDLES)


def knows(conventions: Conventions) -> bool:
    """Return False if a convention that a glance does not read differs from its default."""
    others = {name: row for name, row in OF_ANSWERS.items() if not row.without_keys and name not in CONVENTIONS_READ}
    return all(getattr(conventions, name) == row.default for name, row in others.items())


@np.errstate(all="ignore")
def glance(problem: Problem, engine: Engine = NUMPY, *, cut_operands: bool = False) -> Glance:
    """Evaluate a problem for which :func:`is_plain`; ``cut_operands`` splits q and k as in ``float64_scores``.

    Memory: three float64 arrays and a bool one [B, Hq, Sq, Sk].
    """
    scores, v = float64_scores(problem, engine, cut_operands=cut_operands), problem.per_query_head(problem.v)
    if problem.sinks is not None:  # one more key of value 0
        v = np.concatenate([v, np.zeros((*v.shape[:2], 1, v.shape[3]))], axis=2)
    return _of_sums([engine.take(x) for x in _summed(scores.s, engine.give(v))], v, scores)


def _summed(s: Any, v: Any) -> tuple[Any, Any, Any, Any]:
    """Return M, log N [.., Sq, 1], P v and P |v| of scores, which are -inf where masked and are overwritten.

    The arrays are of any engine.
    """
    xp = array_namespace(s, v)
    if s.shape[-1] == 0:  # the array API standard leaves max() of an empty axis undefined
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
    """Return the glance made of the results of :func:`_summed` for these scores.

    Numerator and row sum share their weights, each with a relative error of alpha. Each has one product or division,
    and as many additions as a part has keys and as there are parts. A row of n keys has at most n additions.
    """
    M, log_N, output, size = summed
    L, keys, alpha = (M + log_N)[..., 0], scores.keys, scores.log_weight_error
    parts = -(-scores.s.shape[-1] // SUMMED)
    terms = keys + scores.has_sink
    added = np.minimum(terms, SUMMED + parts)
    rho = np.where(alpha < 2.0**-12, (2 * alpha + (2 * added + 4) * U) * SLACK, np.inf)[..., None]
    underflow = (terms[..., None] + 1) * TINY * (1 + np.abs(v).max(axis=(-1, -2), keepdims=True, initial=0.0))
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
    contract: ResolvedContract,
    answer: Mapping[str, np.ndarray],
    conventions: Conventions = DEFAULTS,
    engine: Engine = NUMPY,
) -> np.ndarray:
    """Return an upper bound on max(error / part of the allowed error) of each row, [B, Hq, Sq].

    A row is within its bound for certain if the result is 1 or less; inf means that nothing is known. ``answer`` holds
    "output" [B, Hq, Sq, Dv], "lse" [B, Hq, Sq] or both; ``contract`` is one reading of a contract.
    """
    found = np.full(problem.score_shape[:3], np.inf)
    for start in range(0, problem.query_length, TOGETHER):
        rows = np.arange(start, min(start + TOGETHER, problem.query_length))
        those = {name: x[:, :, rows] for name, x in answer.items()}
        found[..., rows] = _shares(problem.rows(rows), contract, those, conventions, engine)
    return found


def _shares(
    problem: Problem,
    contract: ResolvedContract,
    answer: Mapping[str, np.ndarray],
    conventions: Conventions,
    engine: Engine,
) -> np.ndarray:
    """Return :func:`shares` of a few rows, evaluated without the last keys if no row sees them."""
    is_wide = contract.stages.output_accumulation.format.name == contract.output == "float64"
    looked_at = without_last_keys(problem)
    seen = glance(looked_at, engine, cut_operands=is_wide)
    found = _shares_of(seen, problem, contract, answer, conventions)
    open_ = np.flatnonzero(~(found <= 1).all(axis=(0, 1)))
    if is_wide and len(open_) and error_free.applies(looked_at):
        few = without_last_keys(problem.rows(open_))
        sharp = replace(glance(few, engine), **error_free.enclose(few))
        of_few = {name: x[:, :, open_] for name, x in answer.items()}
        found[..., open_] = _shares_of(sharp, problem, contract, of_few, conventions)
    return found


def _shares_of(
    seen: Glance,
    problem: Problem,
    contract: ResolvedContract,
    answer: Mapping[str, np.ndarray],
    conventions: Conventions,
) -> np.ndarray:
    """Return :func:`shares` of rows from their glance."""
    found = np.where(seen.keys > 0, 0.0, np.inf)
    if "output" in answer:
        o = seen.output
        sizes = {"keys": seen.keys[..., None], "key_length": problem.key_length, "o": _least(o), "size": seen.size}
        allowed = least_output_error(contract, problem.dtype_of("v"), **sizes)
        error = np.abs((answer["output"] - o.value) - o.low) + o.radius
        found = np.maximum(found, _share(error, allowed).max(axis=-1, initial=0.0))
    if "lse" in answer:
        L, unit = seen.lse, conventions.lse_unit
        allowed = least_lse_error(contract, keys=seen.keys, lse=_least(L)) / unit
        of_base = 0.0 if unit == 1 else 4 * U * np.abs(L.value)
        error = np.abs((answer["lse"] - L.value / unit) - L.low / unit) + (L.radius + of_base) / unit
        found = np.maximum(found, _share(error, allowed))
    return found


def without_last_keys(problem: Problem) -> Problem:
    """Return the problem without the last keys that no query sees; at least one key is kept if there is any."""
    seen = np.flatnonzero(problem.visible.any(axis=(0, 1, 2)))
    count = seen[-1] + 1 if len(seen) else min(1, problem.key_length)
    return problem if count == problem.key_length else problem.take("K", range(count))


def _least(quantity: Enclosed) -> np.ndarray:
    """Return the least size that the truth may have."""
    return np.maximum(np.abs(quantity.value) - quantity.radius - np.abs(quantity.low), 0.0)


def _share(error: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    share = error / allowed
    return np.where(np.isfinite(share) & (allowed > 0), share, np.inf)

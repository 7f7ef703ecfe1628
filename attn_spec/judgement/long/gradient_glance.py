"""dQ, dK and dV that keep within a part of their bounds, cleared without the theorems of scores.

A glance is one float64 evaluation of the closed form, block by block, with the error of Higham's model. Symbols are as
in ``score_gradient_bounds``. In a row with n keys, weights have a relative error of at most rho (``glance``). By Cauchy
and Schwarz |dP|, |D| <= a with a = |dO| max_j |v_j|. With U the unit roundoff of float64,

    |dP^ - dP| <= (Dv + 1) U a    |D^ - D| <= (rho + (n + Dv + 3) U) a    |dS^ - dS| <= c P

with c = e + (rho + 3 U)(2 a + |dL|). Here e bounds the error of X = dP - D + dL: it is the sum of the first two errors
and of the roundings of X.

Neither rho nor c depends on a key, and weights add up to 1. Sums over keys therefore have an error of at most c max_j
|k_j|, and sums over rows of at most max_i |q_i| sum_i c_i P_ij. The roundings of a sum add at most (number of terms) U
times the sum of sizes. A gradient is cleared if it is within the part of its bound that ``least_gradient_bounds``
gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attn_spec.attention.terms import ADDENDS
from attn_spec.bounds.backward.block_sums import MAXIMUM, BlockSums
from attn_spec.bounds.backward.gradient_key_sums import ALL, Keys
from attn_spec.bounds.backward.least_gradient_bounds import least_gradient_error
from attn_spec.bounds.intermediates import Intermediates, intermediates
from attn_spec.contract.contract import ResolvedContract
from attn_spec.judgement.long.blocks import blocks_of
from attn_spec.judgement.long.engine import NUMPY
from attn_spec.judgement.long.float64_scores import SLACK, TINY, U, float64_scores
from attn_spec.judgement.long.glance import is_plain, without_last_keys
from attn_spec.judgement.long.gradient_groups import Given
from attn_spec.problem.handled import not_handled
from attn_spec.problem.problem import Problem

#: Terms whose slope is 1, and the scale; see ``problem.handled``.
HANDLES = ("scale", *ADDENDS)
#: Largest number of float64 arrays [rows, Sk] that a glance holds at a time, and the rows that it evaluates together.
#: These are few enough that keys which no row of them sees can be left out.
GLANCE, TOGETHER = 9, 256


@dataclass(frozen=True)
class Seen:
    """A gradient [rows, D] in float64, with bounds."""

    #: Gradient in float64.
    value: np.ndarray
    #: Bound on the error of the value.
    radius: np.ndarray
    #: Least sum of the sizes of the gradient's terms.
    size: np.ndarray
    #: Number of the gradient's terms.
    n: np.ndarray


@dataclass(frozen=True, kw_only=True)
class KeysSeen(BlockSums):
    """Sums that rows of query heads add to dK and dV of the kv head that they read."""

    #: dS^T q, [Sk, D].
    of_k: np.ndarray
    #: |dS|^T |q|, [Sk, D].
    k_size: np.ndarray
    #: P^T dO, [Sk, Dv].
    of_v: np.ndarray
    #: P^T |dO|, [Sk, Dv].
    v_size: np.ndarray
    #: Sum of c P over rows, [Sk, 1].
    c: np.ndarray
    #: Sum of rho P over rows, [Sk, 1].
    rho: np.ndarray
    #: Number of queries that see each key, [Sk, 1].
    n: np.ndarray
    #: Number of rows in all.
    rows: int
    #: Largest sizes of the columns of q, [D].
    q: np.ndarray = field(metadata=MAXIMUM)
    #: Largest sizes of the columns of dO, [Dv].
    dO: np.ndarray = field(metadata=MAXIMUM)
    #: Absolute error term of one row.
    tiny: float = field(metadata=MAXIMUM)

    def of_first(self, length: int) -> KeysSeen:
        """Return these sums padded with zeros to ``length`` keys; the keys added are masked."""
        missing = length - len(self.n)
        names = ("of_k", "k_size", "of_v", "v_size", "c", "rho", "n")
        return replace(self, **{name: np.pad(getattr(self, name), ((0, missing), (0, 0))) for name in names})

    def finished(self, scale: float) -> dict[str, Seen]:
        """Return dK and dV; the rows of all heads must have been added."""
        roundings, tiny = (2 * self.rows + 8) * U, (self.rows + 8) * self.tiny
        off = self.q * self.c * SLACK + tiny, self.dO * self.rho * SLACK + tiny
        both = (self.of_k, self.k_size, off[0], scale), (self.of_v, self.v_size, off[1], 1.0)
        dk, dv = (
            Seen(sigma * of, abs(sigma) * (off + roundings * size * SLACK), _least(size, roundings, off), self.n)
            for of, size, off, sigma in both
        )
        return {"dk": dk, "dv": dv}


def _least(size: np.ndarray, roundings: np.ndarray | float, off: np.ndarray) -> np.ndarray:
    return np.maximum(size * (1 - roundings * SLACK) - off, 0.0)


def is_glanced(problem: Problem) -> bool:
    """Return whether this module's formulas give the gradients of the problem."""
    return is_plain(problem) and not not_handled(problem, HANDLES)


def look_at(given: Given, rows: np.ndarray, keys: np.ndarray | None = None) -> tuple[Seen, KeysSeen]:
    """Return :func:`look` of rows of a head, without the last keys that no row sees.

    dQ is of the rows that are judged; the sums of all rows are for ``keys``, an increasing index, or for all keys.
    """
    problem, length = without_last_keys(given.problem.rows(rows)), given.problem.key_length
    end = problem.key_length
    dL = None if given.lse_cotangent is None else given.lse_cotangent[0, 0, rows]
    keys = np.arange(length) if keys is None else keys
    near, judged = keys[: np.searchsorted(keys, end)], np.flatnonzero(np.isin(rows, given.judged))
    asked = ALL if len(judged) == len(rows) else judged, ALL if len(near) == end else near
    dq, of_keys = look(problem, given.cotangent[0, 0, rows], dL, *asked)
    return dq, of_keys if len(near) == len(keys) else of_keys.of_first(len(keys))


@np.errstate(all="ignore")
def look(
    problem: Problem, cotangent: np.ndarray, lse_cotangent: np.ndarray | None, rows: Keys, keys: Keys
) -> tuple[Seen, KeysSeen]:
    """Evaluate rows of one head [1, 1, ..] for dO [rows, Dv] and dL [rows].

    Return dQ of ``rows`` among them, and the sums that all of them add to dK and dV at ``keys``.
    """
    scores = float64_scores(problem, NUMPY)
    s, n, alpha = scores.s[0, 0], scores.keys[0, 0, :, None], scores.log_weight_error[0, 0, :, None]
    q, k, v, dO = problem.q[0, 0], problem.k[0, 0], problem.v[0, 0], cotangent
    visible, P = np.isfinite(s[:, keys]).sum(axis=0)[:, None], _weights(s)
    rho = np.where(alpha < 2.0**-12, (2 * alpha + (2 * n + 6) * U) * SLACK, np.inf)
    a = (np.linalg.norm(dO, axis=-1) * np.linalg.norm(v, axis=-1).max(initial=0.0))[:, None] * SLACK
    dL = 0.0 if lse_cotangent is None else lse_cotangent[:, None]
    X = dO @ v.T
    X -= np.einsum("ij,ij->i", P, X)[:, None]
    X += dL
    Dv, most = v.shape[-1], 2 * a + np.abs(dL)
    e = ((Dv + 1) * U + rho + (n + Dv + 3) * U) * a + 4 * U * most
    c = (e + (rho + 3 * U) * most) * SLACK
    largest = 1 + max(np.abs(x).max(initial=0.0) for x in (q, k, dO))
    tiny = TINY * largest * (1 + most.max(initial=0.0)) * (1 + n.max(initial=0.0))
    columns = P[:, keys].T @ np.concatenate([dO, np.abs(dO), c, rho], axis=1)
    by_row, by_key = _score_gradients(P, X, rows, keys)
    of_q, of_k = by_row @ k, by_key.T @ q
    for dS in (by_row, by_key):
        np.abs(dS, out=dS)
    sigma, size = problem.scale_value, by_row @ np.abs(k)
    off, roundings = c[rows] * np.abs(k).max(axis=0, initial=0.0) * SLACK + tiny, (n[rows] + 8) * U
    dq = Seen(sigma * of_q, abs(sigma) * (off + roundings * size * SLACK), _least(size, roundings, off), n[rows])
    of_keys = KeysSeen(
        of_k=of_k,
        k_size=by_key.T @ np.abs(q),
        of_v=columns[:, :Dv],
        v_size=columns[:, Dv : 2 * Dv],
        c=columns[:, -2:-1],
        rho=columns[:, -1:],
        n=visible,
        rows=len(q),
        q=np.abs(q).max(axis=0, initial=0.0),
        dO=np.abs(dO).max(axis=0, initial=0.0),
        tiny=tiny,
    )
    return dq, of_keys


def _score_gradients(P: np.ndarray, X: np.ndarray, rows: Keys, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
    """Return dS = P X at some rows, and at some keys; X is overwritten if either index is a slice."""
    if isinstance(rows, slice) or isinstance(keys, slice):
        dS = np.multiply(P, X, out=X)
        return dS[rows], dS[:, keys]
    return P[rows] * X[rows], P[:, keys] * X[:, keys]


def _weights(s: np.ndarray) -> np.ndarray:
    """Return the weights P of scores, which are -inf where masked and are overwritten; 0 in rows that see no key."""
    M = s.max(axis=-1, keepdims=True, initial=-np.inf)
    s -= np.where(np.isneginf(M), 0.0, M)
    P = np.exp(s, out=s)
    N = P.sum(axis=-1, keepdims=True)
    P /= np.where(N == 0, 1.0, N)
    return P


@np.errstate(all="ignore")
def share(forward: Intermediates, contract: ResolvedContract, name: str, seen: Seen, found: np.ndarray) -> np.ndarray:
    """Return an upper bound on max(error / part of the allowed error) of each row; inf where nothing is known.

    ``found`` and the result are [rows, D] and [rows]; ``forward`` is any row of the problem, ``contract`` one reading.
    """
    value = np.maximum(np.abs(seen.value) - seen.radius, 0.0)
    allowed = least_gradient_error(forward, contract, name, n=seen.n, value=value, size=seen.size)
    taken = (np.abs(found - seen.value) + seen.radius) / allowed
    taken = np.where(np.isfinite(taken) & (allowed > 0), taken, np.inf).max(axis=-1, initial=0.0)
    return np.where(seen.n[:, 0] > 0, taken, np.inf)


@dataclass(frozen=True)
class Open:
    """Rows and keys of one kv head that a glance did not clear."""

    #: Open rows of dQ of each query head, and the cleared row nearest to its bound.
    rows: list[np.ndarray]
    #: Open keys of dK and dV.
    keys: np.ndarray
    #: Largest error of cleared rows and keys, relative to the part of the bound that cleared them, by gradient.
    shares: dict[str, float]


def left_open(
    heads: Sequence[Given], contract: ResolvedContract, found: dict[str, np.ndarray], keys: np.ndarray, memory: int
) -> Open:
    """Return the rows and keys of one kv head that a glance leaves open.

    ``found`` are its "dk" and "dv" [Sk, ..], which are judged at ``keys``.
    """
    forward, total, rows = intermediates(heads[0].problem.rows(heads[0].summed[:1])), None, []
    cleared: dict[str, float] = {}
    for given in heads:
        taken = np.zeros(len(given.summed))
        for block in blocks_of(given.problem, np.arange(len(given.summed)), memory, GLANCE, most=TOGETHER):
            rows_here = given.summed[block]
            dq, more = look_at(given, rows_here, keys)
            total = more if total is None else total + more
            if given.dq is not None:
                judged = np.isin(rows_here, given.judged)
                taken[block[judged]] = share(forward, contract, "dq", dq, given.dq[0, 0, rows_here[judged]])
        rows.append(_open_rows(given, taken, cleared))
    assert total is not None, "no query head"
    open_ = np.zeros(len(keys), dtype=bool)
    for name, seen in total.finished(forward.problem.scale_value).items():
        if name in found:
            taken = share(forward, contract, name, seen, found[name][keys])
            open_ |= ~(taken <= 1)
            cleared[name] = taken.max(where=taken <= 1, initial=0.0)
    return Open(rows, keys[open_], cleared)


def _open_rows(given: Given, taken: np.ndarray, cleared: dict[str, float]) -> np.ndarray:
    if given.dq is None:
        return given.summed[:0]
    judged = np.isin(given.summed, given.judged)
    inside = np.where(judged & (taken <= 1), taken, -1.0)
    cleared["dq"] = max(cleared.get("dq", 0.0), inside.max(initial=0.0))
    nearest = np.arange(len(taken)) == inside.argmax()
    return given.summed[judged & (~(taken <= 1) | nearest)]

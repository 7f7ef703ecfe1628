"""Gradients as intervals proved to contain the truth, in error-free float64 products, as ``error_free`` has attention.

With w, N, n of a block of rows from there, and X_ij = c_ij dO_i.v_j - dO_i.o_i + dL_i in double-double, within r_i,

    S_ij = w_ij X_ij slope_ij      dq_i = scale / N_i S_i k      dk = S^T (scale / N q)      dv = (c w)^T (dO / N)
    dz = sum_i w_iz (dL_i - dO_i.o_i) / N_i      for a sink z

As computed S_ij / N_i is within P_ij xi_i of the truth, xi_i = r_i + |X|_i (2 rho / (1 - rho) + errors of slope and
products), |X|_i the largest of the row. So dq_i is within scale xi_i max_j |k_j|, as sum_j P_ij <= 1, and dk_j within
sum_i w_ij xi_i |scale q_i / N_i|, a float64 product of numbers above 0. The products' own errors are in their radii.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.attention.enclosure import Enclosed, Truth
from attn_spec.attention.error_free import UNDEFINED, Block, blocks
from attn_spec.attention.error_free_heads import Head, finite, heads, is_safe
from attn_spec.attention.gradients import check_cotangents
from attn_spec.numbers.double_double import PRODUCT_ERROR, DoubleDouble, as_floats, number
from attn_spec.numbers.error_free_products import keep_freed_memory, left, left_of_transposed, product, right
from attn_spec.numbers.powers_of_two import UNDERFLOW
from attn_spec.problem.problem import Problem


def enclose_gradients(problem: Problem, cotangent: np.ndarray, lse_cotangent: np.ndarray | None = None) -> Truth:
    """Enclose "dq", "dk", "dv", and "dkv", "dbias", "dsinks" if there are such, where ``error_free`` applies.

    The cotangents are dO [B, Hq, Sq, Dv] and dL [B, Hq, Sq], or 0. Radii are near 2^-90 of the largest terms, or
    infinite, around 0. NaN with infinite radius is as in ``gradient_enclosure``. Raises :class:`ProblemError`.
    """
    check_cotangents(problem, cotangent, lse_cotangent)
    keep_freed_memory()
    dL = np.zeros(problem.score_shape[:3]) if lse_cotangent is None else lse_cotangent
    sums = {"dq": _Sum(problem.q.shape), "dk": _Sum(problem.k.shape), "dv": _Sum(problem.v.shape)}
    if problem.latent:
        sums["dkv"] = _Sum(problem.k.shape)
    if problem.bias is not None:
        sums["dbias"] = _Sum(problem.bias.shape)
    if problem.sinks is not None:
        sums["dsinks"] = _Sum(problem.sinks.shape)
    for b, h, head in heads(problem):
        if head.is_safe and is_safe(cotangent[b, h]) and is_safe(dL[b, h]):
            for block in blocks(head):
                with np.errstate(all="ignore"):
                    _add(sums, (b, h), block, cotangent[b, h, block.index], dL[b, h, block.index, None])
        else:
            _give_up(sums, b, h, head)
    return {name: total.enclosed() for name, total in sums.items()}


class _Sum:
    """A tensor that contributions are added to, and where they are undefined."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.fields = np.zeros((3, *shape))
        self.undefined = np.zeros(shape, dtype=bool)

    def add(self, at: tuple[int | slice, ...], x: DoubleDouble, undefined: np.ndarray) -> None:
        """Add to a part; ``undefined`` broadcasts to it."""
        total = DoubleDouble(*self.fields[:, *at]) + x
        for field, found in zip(self.fields, (total.hi, total.lo, total.radius), strict=True):
            field[at] = found
        self.undefined[at] |= undefined

    def enclosed(self) -> Enclosed:
        """Return the sum as floats."""
        with np.errstate(all="ignore"):
            found = np.array(as_floats(DoubleDouble(*self.fields)))
        found[:, self.undefined] = UNDEFINED[:, None]
        return Enclosed(*found)


def _give_up(sums: dict[str, _Sum], b: int, h: int, head: Head) -> None:
    """Give all that a head adds to an infinite radius."""
    for name, total in sums.items():
        shape = total.undefined.shape
        own = h if shape[1] > 1 else 0
        of = {"dq": h, "dbias": own, "dsinks": own}.get(name, h // head.group)
        total.fields[2, b if shape[0] > 1 else 0, of] = np.inf


@dataclass(frozen=True)
class _OfPairs:
    """Weights w of a block times X, [R, Sk], within w ``error`` [R, 1] of the truth, |X| <= ``largest`` [R, 1]."""

    hi: np.ndarray
    lo: np.ndarray
    error: np.ndarray
    largest: np.ndarray

    def through(self, slope: DoubleDouble | None) -> _OfPairs:
        """Return the gradients of scaled scores, before what bends them."""
        if slope is None:
            return self
        S = DoubleDouble(self.hi, self.lo, np.zeros(())) * slope
        steepest = slope.size.max(axis=1, keepdims=True)
        unsure = slope.radius.max(axis=1, keepdims=True) + 2 * PRODUCT_ERROR * steepest
        return _OfPairs(S.hi, S.lo, 1.01 * (self.error * steepest + self.largest * unsure), self.largest * steepest)


def _add(sums: dict[str, _Sum], at: tuple[int, int], block: Block, dO: np.ndarray, dL: np.ndarray) -> None:
    """Add what a block of rows contributes, for its dO [R, Dv] and dL [R, 1]."""
    head, weights = block.head, block.weights
    b, h = at
    g = h // head.group
    unknown = block.undefined | ~np.isfinite(dO).all(axis=1) | ~np.isfinite(dL[:, 0])
    dO, dL = finite(dO), finite(dL)
    rows = slice(int(block.index[0]), int(block.index[-1]) + 1)
    seen = np.zeros((head.problem.key_length, 1), dtype=bool)
    if unknown.any():
        seen = block.problem.visible[0, 0][unknown].any(axis=0)[:, None]
    by_total = head.scale / weights.total
    dropped = number(dO) * head.keep_factor
    A = _of_scores(block, dO, dropped, dL)
    S = A.through(weights.slope)
    dq = product(left(S.hi, S.lo), head.keys) * by_total
    dq = dq.widened(head.scale.size * S.error * np.abs(head.k).max(axis=0, initial=0.0)).where(~block.empty)
    sums["dq"].add((b, h, rows), dq, unknown[:, None])
    q = number(finite(block.problem.q[0, 0])) * by_total
    of_k = _over_rows(weights.hi, S, q)
    sums["dk"].add((b, g), of_k, seen)
    kept = (weights.hi, weights.lo) if block.kept is None else weights.of(block.kept)
    P = _OfPairs(*kept, _unsure(block), np.ones((len(dO), 1)))
    of_v = _over_rows(weights.hi, P, dropped / weights.total)
    sums["dv"].add((b, g), of_v, seen)
    if "dkv" in sums:
        sums["dkv"].add((b, g), of_k, seen)
        sums["dkv"].add((b, g, slice(None), slice(dO.shape[1])), of_v, seen)
    if "dbias" in sums:
        _add_to_bias(sums["dbias"], at, block, A, unknown)
    if weights.of_sink is not None:
        total = sums["dsinks"]
        X = number(dL) - (number(dO) * block.output).total(1)
        dA = weights.of_sink * X / weights.total
        dA = dA.widened(1.01 * _unsure(block) * dA.size).total(0)
        total.add((0, h if total.undefined.shape[1] > 1 else 0), dA, np.asarray(unknown.any()))


def _unsure(block: Block) -> np.ndarray:
    """2 rho / (1 - rho), and the relative error of N, [R, 1]."""
    weights = block.weights
    return 2.02 * (weights.relative + weights.total.radius / weights.total.hi)


def _of_scores(block: Block, dO: np.ndarray, dropped: DoubleDouble, dL: np.ndarray) -> _OfPairs:
    """w X of the finished scores."""
    head, weights = block.head, block.weights
    delta = (number(dO) * block.output).total(1)
    dP = product(left(dropped.hi, dropped.lo), head.transposed_values, by_row=True)
    dP = dP.widened(
        1.01 * dO.shape[1] * dropped.radius.max(axis=1, keepdims=True) * head.largest_value.max(initial=0.0)
    )
    if block.kept is not None:
        dP = dP.where(block.kept)
    X = dP + (number(dL) - delta)
    A = DoubleDouble(weights.hi, weights.lo, np.zeros(())) * X
    size, radius = X.size, np.broadcast_to(X.radius, X.shape)
    if block.visible is not None:
        size, radius = np.where(block.visible, size, 0.0), np.where(block.visible, radius, 0.0)
    largest = size.max(axis=1, keepdims=True)
    error = radius.max(axis=1, keepdims=True) + largest * (_unsure(block) + 2 * PRODUCT_ERROR)
    return _OfPairs(A.hi, A.lo, 1.01 * error, largest)


def _over_rows(w: np.ndarray, x: _OfPairs, y: DoubleDouble) -> DoubleDouble:
    """x^T y [Sk, ..] for y [R, ..]."""
    found = product(left_of_transposed(x.hi, x.lo), right(y.hi, y.lo))
    size = y.size.max(axis=1, keepdims=True)
    each = 1.01 * (x.error * size + x.largest * y.radius.max(axis=1, keepdims=True))
    underflow = UNDERFLOW * (x.largest * size).sum()
    return found.widened(1.01 * (w.T @ each) + underflow)


def _add_to_bias(total: _Sum, at: tuple[int, int], block: Block, A: _OfPairs, unknown: np.ndarray) -> None:
    """Add dA of a block, summed over the axes along which the bias is broadcast."""
    weights, shape = block.weights, total.undefined.shape
    radius = 1.01 * (weights.hi * A.error + UNDERFLOW * A.largest)
    dA = DoubleDouble(A.hi, A.lo, radius) * (number(1.0) / weights.total)
    dA = dA if block.visible is None else dA.where(block.visible)
    undefined = block.problem.visible[0, 0] & unknown[:, None]
    rows = slice(int(block.index[0]), int(block.index[-1]) + 1)
    if shape[3] == 1:
        dA, undefined = dA.total(1), undefined.any(axis=1, keepdims=True)
    if shape[2] == 1:
        dA, undefined, rows = dA.total(0), undefined.any(axis=0, keepdims=True), slice(None)
    total.add((*(i if n > 1 else 0 for i, n in zip(at, shape[:2], strict=True)), rows), dA, undefined)

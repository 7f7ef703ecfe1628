"""Attention as intervals proved to contain the truth, in error-free float64 products: about 2^-90 of the largest terms.

For plain scores, scale * q.k and what options add, of long problems, where balls (``enclosure``) are slow. In blocks of
query rows, in base 2, so that no exponent is rounded:

    t_ij = s_ij log2 e      w_ij = 2^(t_ij - n_i)      N_i = sum_j w_ij      o_i = sum_j c_ij w_ij v_j / N_i

with an integer n_i just above the largest t of a row, and L_i = n_i ln 2 + log N_i. A sink z is one more column, of
t = z log2 e and no value, which takes part in n and N alone. Scores are double-doubles
(``numbers``) within a radius tau of the truth, so that weights are within rho = POWER_ERROR + tau relatively, 2^tau - 1
<= tau for small tau. Then for P^ = w / N as computed |P^ - P| <= 2 rho / (1 - rho) P. The rounding of products and
quotients is in their own radii.

What lies outside the range in which nothing under- or overflows has an infinite radius, for balls to look at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attn_spec.attention.arithmetic import DOUBLE_DOUBLES
from attn_spec.attention.enclosure import Enclosed, Truth, sees_nonfinite
from attn_spec.attention.error_free_heads import Head, finite, heads, safe_numbers
from attn_spec.attention.scores import score_of
from attn_spec.attention.terms import ADDENDS, BENDS, TERMS, applied, known_to, slope_of_bends, used
from attn_spec.numbers.double_double import DoubleDouble, as_floats, number
from attn_spec.numbers.error_free_products import (
    SLICES,
    Left,
    keep_freed_memory,
    left,
    product,
    row_blocks,
)
from attn_spec.numbers.powers_of_two import (
    LARGEST_RADIUS,
    LEAST_EXPONENT,
    POWER_ERROR,
    UNDERFLOW,
    constants,
    log,
    power,
)
from attn_spec.problem.handled import not_handled
from attn_spec.problem.problem import Problem

#: Options that the formulas here evaluate, see ``problem.handled``.
HANDLES = (*known_to(DOUBLE_DOUBLES, slopes=True), "dropout_keep", "dropout_p", "o_scale", "sinks")

#: Pairs of a query and a key that are looked at at a time: arrays of 8 MiB, of which there are at most 40.
PAIRS = 2**20
#: Value, low part and radius of what is no number.
UNDEFINED = np.array([np.nan, 0.0, np.inf])
#: The largest scores, in base 2, that need no other reference.
_NEAR = 1000


@dataclass(frozen=True)
class Block:
    """Some rows of a head, R of them."""

    head: Head
    #: [1, 1, R, ..]
    problem: Problem
    #: Query rows of the block.
    index: np.ndarray

    @cached_property
    def visible(self) -> np.ndarray | None:
        """bool [R, Sk]; None if all are."""
        visible = self.problem.visible[0, 0]
        return None if visible.all() else visible

    @cached_property
    def empty(self) -> np.ndarray:
        """bool [R, 1]: rows that see no key, whose output is 0."""
        if self.visible is None:
            return np.zeros((len(self.index), 1), dtype=bool)
        return np.logical_not(self.visible.any(axis=1, keepdims=True))

    @property
    def unweighed(self) -> np.ndarray:
        """bool [R, 1]: rows that see no key, and have no sink."""
        return self.empty & ~self.sees_sink

    @property
    def sees_sink(self) -> np.ndarray:
        """bool [R, 1]: rows whose sum has the term of a sink."""
        return self.problem.sees_sink[0, 0][:, None]

    @cached_property
    def undefined(self) -> np.ndarray:
        """bool [R]: rows that are, or see a key or value that is, NaN or infinite."""
        if self.head.is_finite and np.isfinite(self.problem.q).all():
            return np.zeros(len(self.index), dtype=bool)
        return sees_nonfinite(self.problem)[0, 0]

    @cached_property
    def kept(self) -> np.ndarray | None:
        """bool [R, Sk]: which weights dropout keeps; None without it."""
        keep = self.problem.dropout_keep
        return None if keep is None else np.broadcast_to(keep, self.problem.score_shape)[0, 0]

    @cached_property
    def weights(self) -> Weights:
        return _weights(self)

    @cached_property
    def output(self) -> DoubleDouble:
        """o [R, Dv]."""
        weights, head = self.weights, self.head
        factor = weights.slices if self.kept is None else left(*weights.of(self.kept), bound=1.0)
        o = product(factor, head.values) * head.keep_factor / weights.total
        weighted = 2.02 * head.keep_factor.size * head.largest_value
        return o.widened(weights.relative * weighted).where(~self.empty)

    @cached_property
    def lse(self) -> DoubleDouble:
        """L [R, 1]; 0 in rows that see neither a key nor a sink."""
        weights = self.weights
        L = weights.reference * constants()["ln 2"] + log(weights.total)
        return L.widened(1.01 * weights.relative).where(~self.unweighed)


@dataclass(frozen=True)
class Weights:
    """w [R, Sk] as a double-double, at most 1 + 2^-20, 0 where hidden, within ``relative`` [R, 1] of itself."""

    hi: np.ndarray
    lo: np.ndarray
    #: n [R, 1], exactly an integer but for its radius.
    reference: DoubleDouble
    #: Infinite where a row is not known at all.
    relative: np.ndarray
    #: The slope of the finished score in the scaled one, with a radius; None where it is 1.
    slope: DoubleDouble | None
    #: The weight of the sink [R, 1], within ``relative`` of itself; None where there is none.
    of_sink: DoubleDouble | None

    @cached_property
    def slices(self) -> list[Left]:
        return left(self.hi, self.lo, bound=1.0)

    @cached_property
    def total(self) -> DoubleDouble:
        """N [R, 1] of the weights as they are, 1 in rows that see neither a key nor a sink.

        Three sums of slices are exact, of multiples of units; that of the last, below 2^-63, is not: K^2 u 2^-63.
        """
        K = self.hi.shape[1]
        sums = np.sum([x.slices.reshape(len(self.hi), SLICES, -1).sum(axis=2) for x in self.slices], axis=0)
        a, b, c, d = (number(sums[:, i, None]) for i in range(SLICES))
        N = a + b + (c + d).widened(2.2 * K**2 * 2.0**-116)
        N = N if self.of_sink is None else N + self.of_sink
        return DoubleDouble(np.where(N.hi > 0, N.hi, 1.0), N.lo, N.radius)

    def of(self, keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights that are kept, and 0."""
        return self.hi * keep, self.lo * keep


def applies(problem: Problem) -> bool:
    """Return whether scores are products of q and k with terms known here, and some query and key exist."""
    known = score_of(problem).plain and not not_handled(problem, HANDLES)
    return known and not problem.projects and min(problem.score_shape) > 0


def enclose(problem: Problem) -> Truth:
    """Enclose output and log-sum-exp of a problem to which this ``applies``.

    Radii are near 2^-90 of the largest value of a column, and of the sum of |q_id k_jd| at its largest, or infinite,
    around 0. NaN with infinite radius is as in ``enclosure``. Memory is that of q, k, v and O(``PAIRS``).
    """
    keep_freed_memory()
    output, lse = np.zeros((3, *problem.output_shape)), np.zeros((3, *problem.score_shape[:3]))
    for b, h, head in heads(problem):
        for block in blocks(head) if head.is_safe else []:
            at = (slice(None), b, h, block.index)
            with np.errstate(all="ignore"):
                output[at], L = as_floats(block.output), as_floats(block.lse)
            lse[at] = np.where(block.unweighed, np.array([-np.inf, 0.0, 0.0])[:, None, None], L)[..., 0]
            for quantity in (output, lse):
                quantity[:, b, h, block.index[block.undefined]] = UNDEFINED.reshape(3, *[1] * (quantity.ndim - 3))
        if not head.is_safe:
            output[2, b, h] = lse[2, b, h] = np.inf
    return {"output": Enclosed(*output), "lse": Enclosed(*lse)}


def blocks(head: Head) -> Iterator[Block]:
    """Blocks of query rows."""
    rows, n = max(PAIRS // head.problem.key_length, 1), head.problem.query_length
    for start in range(0, n, rows):
        index = np.arange(start, min(start + rows, n))
        yield Block(head, head.problem.rows(index), index)


def _scores(block: Block) -> tuple[DoubleDouble, DoubleDouble | None]:
    """t [R, Sk] of all keys, and the slope of what bends the score.

    The scale and log2 e multiply q. What else is in units of a score is multiplied by log2 e.
    """
    head, problem, log2_e = block.head, block.problem, constants()["log2 e"]
    q = number(finite(problem.q[0, 0])) * (head.scale * log2_e)
    t = product(left(q.hi, q.lo), head.transposed_keys, by_row=True)
    t = t.widened(1.01 * problem.head_dim * q.radius.max(axis=1, keepdims=True) * np.abs(head.k).max(initial=0.0))
    p = {name: DOUBLE_DOUBLES.given(x[0, 0]) for name, x in safe_numbers(problem).items()}
    p |= {name: p[name] * log2_e for name in used(problem, (*BENDS, *ADDENDS)) if TERMS[name].is_score}
    after = {"scale": t} | applied(DOUBLE_DOUBLES, problem, t, p, (*BENDS, *ADDENDS))
    return list(after.values())[-1], slope_of_bends(DOUBLE_DOUBLES, problem, after, p)


def _weights(block: Block) -> Weights:
    """Powers of 2 of the scores.

    The low part of a large score may be larger than 1: what is left of scores above n is looked at once more.
    """
    t, slope = _scores(block)
    visible, z = block.visible, block.head.sink
    if z is not None:
        t, visible = _with_sink(block, t, z)
    n = _above(t, visible)
    reference = number(n)
    if np.abs(n).max() > _NEAR:
        t = t - reference
        rest = number(_above(t, visible))
        t, reference = t - rest, reference + rest
        n = np.zeros(n.shape)
    h, l, radius = t.hi, t.lo, t.radius
    if visible is not None:
        h, radius = np.where(visible, h, -np.inf), np.where(visible, radius, 0.0)
    if (h.min(axis=1, keepdims=True, initial=0.0) < n + LEAST_EXPONENT).any():  # hidden keys too
        far = h < n + LEAST_EXPONENT
        h, l, radius = np.where(far, n + LEAST_EXPONENT, h), np.where(far, 0.0, l), np.where(far, 0.0, radius)
    hi, lo = np.empty(h.shape), np.empty(h.shape)
    for at in row_blocks(h.shape):
        hi[at], lo[at] = power(h[at], l[at], n[at])
    if visible is not None:
        hi, lo = hi * visible, lo * visible
    tau = radius.max(axis=1, keepdims=True)
    # A clipped weight is 2^-1000, where the sum of all is at least 1/2; of a score far below, but for its radius.
    relative = np.where(tau <= LARGEST_RADIUS, POWER_ERROR + tau + h.shape[1] * UNDERFLOW, np.inf)
    if z is None:
        return Weights(hi, lo, reference, relative, slope, None)
    of_sink = DoubleDouble(hi[:, -1:], lo[:, -1:], np.zeros((len(hi), 1)))
    return Weights(hi[:, :-1], lo[:, :-1], reference, relative, slope, of_sink)


def _with_sink(block: Block, t: DoubleDouble, z: float) -> tuple[DoubleDouble, np.ndarray | None]:
    """Return t [R, Sk + 1] with a last column for the sink z, and which columns each row sees."""
    of_sink, rows = number(z) * constants()["log2 e"], (len(block.index), 1)
    fields = zip(
        (t.hi, t.lo, np.broadcast_to(t.radius, t.shape)), (of_sink.hi, of_sink.lo, of_sink.radius), strict=True
    )
    joined = DoubleDouble(*(np.concatenate([x, np.broadcast_to(last, rows)], axis=1) for x, last in fields))
    if block.visible is None and block.sees_sink.all():
        return joined, None
    visible = np.broadcast_to(True if block.visible is None else block.visible, t.shape)
    return joined, np.concatenate([visible, block.sees_sink], axis=1)


def _above(t: DoubleDouble, visible: np.ndarray | None) -> np.ndarray:
    """Return the integer just above the largest high part of a row, [R, 1]; 0 in rows that see no key."""
    largest = (t.hi if visible is None else np.where(visible, t.hi, -np.inf)).max(axis=1, keepdims=True)
    return np.where(np.isfinite(largest), np.ceil(largest), 0.0)

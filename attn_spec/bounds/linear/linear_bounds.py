"""Bounds on the errors of output and log-sum-exp of linear attention under a contract.

With a = phi(q), b = phi(k), w_ij = a_i.b_j and N_i = epsilon + sum_j w_ij over the visible keys,

    o_ic = sum_j w_ij v_jc / N_i        L_i = log N_i

Nothing under the sums is negative but v: each is a sum of terms a_id b_jd v_jc, over d and over j, in whichever order.
A kernel may sum over d first, as scores, or over j first, as a state sum_j b_j v_j^T that a meets, or tile by tile one
way and the other. The bound is the larger one of both. A term has each rounding on its way as a factor 1 + e, so the
error of a sum is at most G times the sum of the sizes of its terms, and what the errors of a and b make of it (Higham,
*Accuracy and Stability of Numerical Algorithms*, sections 3.1 and 4.2). N has the same theorem, with v = 1: it may be
one more column of the values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import ref

import numpy as np

from attn_spec.bounds.forward.bounds import ForwardBound
from attn_spec.bounds.forward.domain import lse_fits
from attn_spec.bounds.forward.output_bounds import output_cast
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, INFLATION
from attn_spec.bounds.intermediates import Intermediates, finite, kept, repeated_keys
from attn_spec.bounds.operand_bounds import operand_error
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.coverage import says_nothing
from attn_spec.contract.products import (
    Factors,
    entry,
    left_out,
    multiplicand,
    probability_cast,
    sum_underflow,
    sums,
    terms,
)
from attn_spec.contract.readings import readings_of
from attn_spec.contract.roundoff import elementary_error, growth, row_sum_store
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.handled import check_handled

#: Options whose roundings are in the theorems of linear attention, see ``problem.handled``.
HANDLES = ("feature_epsilon",)
#: Largest error of N, relative to it, of a row that the theorem speaks of.
LARGEST_LOSS = 0.5


@dataclass(frozen=True, eq=False)
class LinearError:
    """Errors of the sums of each row that errors of the features make."""

    #: The intermediates, which results are kept with: one that held them would keep them for ever.
    of: ref[Intermediates]
    c: ResolvedContract
    #: Largest features, a [.., Sq, D] and b [.., Sk, D], and |v| [.., Sk, Dv]; 0 for what is no number.
    a: np.ndarray
    b: np.ndarray
    v: np.ndarray
    #: Rows [.., Sq] that are numbers and see nothing else.
    known: np.ndarray
    #: Errors of a and of b.
    of_a: np.ndarray
    of_b: np.ndarray
    #: Error of w by those, and largest w, [.., Sq, Sk]; 0 where the key is hidden.
    dw: np.ndarray
    w: np.ndarray
    #: Error of N, [.., Sq, 1], and 1 / N at most; infinite where the error is above LARGEST_LOSS.
    dN: np.ndarray
    inverse: np.ndarray

    @property
    def x(self) -> Intermediates:
        found = self.of()
        assert found is not None, "whoever asks for errors holds the intermediates"
        return found


@np.errstate(all="ignore")
def linear_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound under a resolved contract, as :func:`bounds.forward_bound`."""
    o = x.O if o is None else o
    found = [(e, output_error(e, o, slack)) for e in (linear_error(x, c) for c in readings_of(contract, x.problem))]
    output = np.maximum.reduce([error for _, error in found])
    lse = np.maximum.reduce([lse_error(e) for e, _ in found])
    inside = np.logical_and.reduce([in_domain(e, error) for e, error in found])
    held = np.logical_and.reduce([lse_fits(e.x, e.c, lse) for e, _ in found])
    empty = np.logical_and.reduce([e.known for e, _ in found]) & (x.keys[..., 0] == 0)
    return ForwardBound({"output": output, "lse": lse}, inside, empty, lse_domain=inside & held)


@kept
def evaluation_error(x: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves: the same theorem under the float64 contract.

    The sizes in it are sums of computed numbers that are not negative, relatively right to far less than INFLATION.
    """
    return linear_bound(x, EVALUATION)


@kept
@np.errstate(all="ignore")
def linear_error(x: Intermediates, c: ResolvedContract) -> LinearError:
    """The errors that all sums of a row share."""
    check_handled(x.problem, HANDLES, "the bound of linear attention")
    off = operand_error(x, c)
    assert off is not None
    queries = np.isfinite(x.q + off.q).all(axis=-1)
    keys = np.isfinite(x.k + off.k).all(axis=-1) & np.isfinite(x.v).all(axis=-1)
    # An infinite feature of a key that is hidden may be multiplied by 0.
    overflows = np.isfinite(repeated_keys(x.problem)).all(axis=-1) & ~np.isfinite(off.k).all(axis=-1)
    queries &= ~overflows.any(axis=-1, keepdims=True)
    known = queries & ~np.any(x.visible & ~np.expand_dims(keys, -2), axis=-1)
    of_a, a, of_b, b, v = map(finite, (off.q, x.q, off.k, x.k, np.abs(x.v)))

    def of_pairs(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.where(x.visible, rows @ columns.swapaxes(-1, -2), 0.0)

    dw, w = (
        term("features of queries", of_pairs(of_a, b + term("errors of both features", of_b)))
        + term("features of keys", of_pairs(a, of_b)),
        of_pairs(
            a + term("errors of features in the largest linear weight", of_a),
            b + term("errors of features in the largest linear weight", of_b),
        ),
    )
    shared = {"of": ref(x), "c": c, "a": a + of_a, "b": b + of_b, "v": v, "known": known, "of_a": of_a, "of_b": of_b}
    e = LinearError(**shared, dw=dw, w=w, dN=np.zeros(x.N.shape), inverse=1 / x.N)
    ones, softmax = np.ones((*b.shape[:-1], 1)), c.stages.softmax
    dN = np.maximum(
        term("N in the format of row sums", sum_error(e, ones, EXACT, "row_sum")),
        term("N as a column of the values", sum_error(e, ones, EXACT, "output_accumulation")),
    )
    # epsilon is rounded, and so are the sum and, where the softmax's format is narrower, what is stored of it.
    dN = (
        dN
        + growth(
            (softmax.u, count("roundings of epsilon and of the sum with it", 2)),
            (row_sum_store(c), count("the store of N", 1)),
        )
        * (x.N + term("the error of N in its last roundings", dN))
        + term("underflow of N", count("several underflows of N", 3) * softmax.eta)
    )
    dN = np.where(dN <= LARGEST_LOSS * x.N, dN, np.inf)
    return replace(e, dN=dN, inverse=np.where(np.isinf(dN), np.inf, 1 / (x.N - term("the least N", dN))))


@np.errstate(all="ignore")
def sum_error(e: LinearError, size: np.ndarray, of_v: Rounding, stage: str, divisions: int = 0) -> np.ndarray:
    """Error of sum_j w_ij v_jc, [.., Sq, C], for |v| = ``size`` [.., Sk, C] rounded as ``of_v`` on entry.

    ``stage`` is that of the accumulators of the sums over the keys; w or a has so many roundings of ``divisions``.
    """
    x, c, n, D = e.x, e.c, e.x.keys, e.x.problem.head_dim
    operand, cast, state = entry(c, c.stages.operands.format), probability_cast(c), state_rounding(c)
    entered = growth(
        (operand.u, count("entry of features", 2)),
        (of_v.u, count("entry of values to states", 1)),
        (c.stages.softmax.u, divisions),
    )
    summed = np.maximum(
        term("scores before sums over keys", _scores_first(e, stage)),
        term("states before sums over columns", _keys_first(e, stage)),
    )
    G = (
        term("all entries to sums over linear weights", entered)
        + summed
        + term("entries and sums of linear weights", entered * summed)
    )
    tiny, stored = _underflow(c, stage), c.stages.stored_scores
    total = x.visible @ size
    of_scores = total * (
        term(
            "underflow of linear scores' sums",
            count("underflows of linear scores' products and sums", 2) * terms(c, D) * tiny,
        )
        + term("underflow of linear scores that are stored", stored.eta)
        + term("underflow of the cast of linear weights", cast.eta)
        + term("underflow of linear weights", c.stages.softmax.eta)
    )
    widest = np.where(x.visible.any(axis=-1, keepdims=True), e.a.sum(axis=-1, keepdims=True), 0.0)
    of_state = widest * (
        term(
            "underflow of sums of states",
            count("several underflows of sums of states", 4)
            * times("underflow of sums of states for each key", terms(c, n))
            * tiny,
        )
        + term(
            "underflow of states",
            times("underflow of states for each tile", c.tiles(x.problem.key_length)) * state.eta,
        )
    )
    entering = operand.eta * (
        term("underflow of features of queries on entry", x.visible @ (e.b.sum(axis=-1, keepdims=True) * size))
        + (
            term("underflow of features of keys on entry", widest)
            + term("underflow of both features on entry", D * operand.eta)
        )
        * total
    )
    entering = entering + term("underflow of values on entry to states", of_v.eta * e.w.sum(axis=-1, keepdims=True))
    last = (
        count("several underflows of last sums over linear weights", 4)
        * terms(
            c,
            term("underflow of a last sum over keys", n)
            + term("underflow of a last sum over columns", chained(x, c, D)),
        )
        * tiny
    )
    return (
        term("features in sums over linear weights", e.dw @ size)
        + term("roundings of sums over linear weights", G * (e.w @ size))
        + times("roundings make the underflow of linear sums grow", 1 + G)
        * (of_scores + of_state + entering + term("underflow of last sums over linear weights", last))
    )


def chained(x: Intermediates, c: ResolvedContract, columns: int) -> np.ndarray:
    """Additions over the keys that a term passes at most, products included, in a kernel that may sum states of tiles.

    What the state of each tile makes, a sum over D ``columns``, may be added to one accumulator. Then a term of the
    first of tiles t_1, t_2, .. passes t_1 additions, D beside those counted here, and max(D, t_i) of each later tile,
    which is one of states or of scores. All but the last have m keys or more, so max(D, t_i) is at most
    t_i max(1, D / m), and all is at most max(n, D n / m) + D. To tiles that are hidden nothing is added.
    """
    return term(
        "states that are added to one accumulator",
        np.maximum(
            times("keys of a long tile in one accumulator", x.keys),
            columns * np.minimum(c.tiles(x.problem.key_length), x.keys),
        ),
        x.keys,
    ) + term("additions within the state of the first tile", columns)


def state_rounding(c: ResolvedContract) -> Rounding:
    """Return the rounding of a state that waits for the next tile, and that enters the product with a."""
    state = c.stages.partial_outputs
    return Rounding(
        term("the rounding of a state that waits", state.of(c.stages.output_accumulation.format).u),
        term("underflow of a state that waits", state.eta)
        + term("underflow of a state on entry", entry(c, state.format).eta),
    )


def _scores_first(e: LinearError, stage: str) -> np.ndarray:
    """G of a sum over d, then over the keys."""
    c, D = e.c, e.x.problem.head_dim
    stored = c.stages.stored_scores.of(c.stages.score_accumulation.format)
    form, dtype = c.stages.operands.format, FORMATS[e.x.problem.dtype]
    kept = c.stages.softmax.of(c.stages.stored_scores.format)
    missing = (
        (term("pieces left out of linear scores", left_out(c, form, form)), 1),
        (left_out(c, c.stages.probabilities.format, dtype), count("pieces left out of products with linear scores", 1)),
    )
    last = sums(c, stage, chained(e.x, c, D))
    return growth(
        *term("sums of linear scores over columns", sums(c, "score_accumulation", D), ()),
        (stored.u, count("a linear score that is stored", 1)),
        (kept.u, count("a linear weight in the softmax's format", 1)),
        (probability_cast(c).u, count("the cast of linear weights", 1)),
        *missing,
        *term("sums of linear scores over keys", last, ()),
    )


def _keys_first(e: LinearError, stage: str) -> np.ndarray:
    """G of a sum over the keys, as a state, then over d."""
    c, x = e.c, e.x
    tiles = times("states that wait once for each tile", c.tiles(x.problem.key_length))
    of_state: Factors = (
        (state_rounding(c).u, term("states that wait", tiles)),
        (entry(c, c.stages.partial_outputs.format).u, count("entry of states", 1)),
        (left_out(c, c.stages.operands.format, FORMATS[x.problem.dtype]), count("pieces left out of states", 1)),
        (
            left_out(c, c.stages.partial_outputs.format, c.stages.operands.format),
            count("pieces left out of products with states", 1),
        ),
    )
    over_d = np.maximum(
        term("sums of states over columns, as over keys", growth(*sums(c, stage, x.problem.head_dim))),
        term("sums of states over columns, as of scores", growth(*sums(c, "score_accumulation", x.problem.head_dim))),
    )
    G = growth(*term("sums of states over keys", sums(c, stage, chained(x, c, x.problem.head_dim)), ()), *of_state)
    return (
        G
        + term("sums of states over columns", over_d)
        + term("sums over columns and over keys", term("sums of states over columns", G * over_d))
    )


def _underflow(c: ResolvedContract, stage: str) -> float:
    return max(
        term("underflow in the format of states' sums", sum_underflow(c, stage)),
        term("underflow in the format of linear scores' sums", sum_underflow(c, "score_accumulation")),
    )


@np.errstate(all="ignore")
def output_error(e: LinearError, o: np.ndarray, slack: np.ndarray | float) -> np.ndarray:
    """|O_hat - o|, [.., Sq, Dv]: with errors dS of the numerator and dN, (dS - o dN) / N_hat, then last roundings."""
    x, c = e.x, e.c
    # w, a or the sum is divided by N: 1 / N is rounded, its product, and one of both.
    divisions = count("roundings of a quotient by N", 3)
    dS = sum_error(e, e.v, multiplicand(c, x.problem.dtype), "output_accumulation", divisions)
    softmax, out, size = c.stages.softmax, output_cast(c), np.abs(o) + slack
    X = (
        term("the numerator of linear attention", dS) + term("the denominator of linear attention", size * e.dN)
    ) * e.inverse
    narrowed = c.stages.softmax.of(c.stages.output_accumulation.format).u
    finish = growth(
        (narrowed, count("a sum over linear weights narrowed to the softmax's format", 1)),
        (out.u, count("the cast of a linear output", 1)),
    )
    # The sum may be stored before it is divided, and underflow.
    tiny = term(
        "underflow of a quotient by N",
        count("several underflows of a quotient by N", 3)
        * softmax.eta
        * (
            count("underflow of a sum that is divided by N", 1)
            + term("underflow of a quotient by a small N", e.inverse)
        ),
    ) + term("underflow of the cast of a linear output", out.eta)
    if c.normalize == "before_product":  # w / N and a / N may underflow, whatever N is
        operand, features = entry(c, c.stages.operands.format), e.b.sum(axis=-1, keepdims=True)
        tiny = tiny + count("several underflows of a linear weight that is divided by N", 2) * (
            term("underflow of a linear weight that is divided by N", softmax.eta)
            + term("underflow of the cast of a quotient by N", probability_cast(c).eta)
        ) * (x.visible @ e.v)
        tiny = tiny + term(
            "underflow of features that are divided by N", (softmax.eta + operand.eta) * (x.visible @ (features * e.v))
        )
    found = (
        term("errors of both sums of a linear output", X)
        + term("last roundings of a linear output", finish * (size + term("errors of both sums, rounded at last", X)))
        + term("underflow of last operations on a linear output", tiny)
    ) * times("the evaluation of a linear output in float64", INFLATION)
    return np.where(np.isnan(found), np.inf, found)  # where features overflow


@np.errstate(all="ignore")
def lse_error(e: LinearError) -> np.ndarray:
    """|LSE_hat - log N|, [.., Sq]."""
    c, L = e.c, np.where(np.isfinite(e.x.L), np.abs(e.x.L), 0.0)
    softmax, work = c.stages.softmax, c.stages.score_accumulation
    final = c.stages.lse.of(c.stages.softmax.format)
    share = term("N in the log-sum-exp", e.dN) / e.x.N
    X = -np.log1p(-share) if stands("the logarithm's slope at the least N") else share
    X = X + term(
        "the logarithm of N",
        elementary_error(c, "log_error")
        * (
            count("an error of the logarithm near N = 1", 1)
            + term("an error of the logarithm that grows with it", L)
            + term("the error of N in the error of its logarithm", X)
        ),
    )
    X = (
        X
        + growth(
            (softmax.u, count("roundings of the logarithm of N", 3)),
            (work.u, count("ln 2 in the logarithm of N", 2)),
            (final.u, count("the cast of the logarithm of N", 1)),
        )
        * (L + term("the error of N in the cast of its logarithm", X))
        + term("underflow of the logarithm of N", 3 * softmax.eta)
        + term("underflow of the cast of the logarithm of N", final.eta)
    )
    return (np.where(np.isnan(X), np.inf, X) * times("the evaluation of the logarithm of N in float64", INFLATION))[
        ..., 0
    ]


@np.errstate(all="ignore")
def in_domain(e: LinearError, allowed: np.ndarray) -> np.ndarray:
    """Rows [.., Sq] with a visible key, whose N is known, and where nothing can overflow, in either order of sums."""
    x, c = e.x, e.c
    if guard("linear attention of which a contract says nothing", says_nothing(c, x.problem), False):
        return np.zeros(x.keys.shape[:-1], dtype=bool)
    inside = (x.keys[..., 0] > 0) & e.known & np.isfinite(e.inverse[..., 0])
    held = [
        e.w.max(axis=-1, initial=0.0),
        e.w.sum(axis=-1) + (x.problem.feature_epsilon or 0.0),
        (e.w @ e.v).max(axis=-1, initial=0.0),
        (x.visible @ e.b).max(axis=-1, initial=0.0),
        (x.visible @ (e.b.max(axis=-1, keepdims=True) * e.v)).max(axis=-1, initial=0.0),
    ]
    stages = ["score_accumulation", "inner_accumulation", "stored_scores", "output_accumulation", "row_sum"]
    stages += ["softmax", "probabilities", "partial_outputs", "multiplicands"]
    G = np.maximum(_scores_first(e, "output_accumulation"), _keys_first(e, "output_accumulation"))
    G = np.broadcast_to(G, e.x.N.shape)[..., 0]
    inside &= np.maximum.reduce(held) * (1 + G) <= term("sums of linear attention", c.largest(*stages), np.inf)
    smallest = max(c.stages.row_sum.format.smallest_normal, c.stages.softmax.format.smallest_normal)
    least, most = (x.N - e.dN)[..., 0], (x.N + e.dN)[..., 0]
    inside &= guard("the least sum of linear weights", least >= smallest, True) & guard(
        "the inverse of a sum of linear weights", most * c.stages.softmax.format.smallest_normal <= 1, True
    )
    entries = np.where(x.visible, e.v.max(axis=-1, initial=0.0)[..., None, :], 0.0).max(axis=-1, initial=0.0)
    inside &= guard(
        "values of linear attention that enter products",
        (entries <= c.stages.multiplicands.format.largest) | (c.multiplicands == x.problem.dtype),
        True,
    )
    widest = (np.abs(x.O) + allowed).max(axis=-1, initial=0.0)
    return (
        inside
        & np.isfinite(x.L[..., 0])
        & guard("outputs of linear attention", widest <= c.largest("softmax", "output"), True)
    )

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
from attn_spec.bounds.forward.output_terms import output_cast
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, INFLATION
from attn_spec.bounds.intermediates import Intermediates, finite, repeated_keys
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.operand_bounds import operand_error
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.coverage import says_nothing
from attn_spec.contract.products import (
    Factors,
    multiplicand,
    number_of_products,
    probability_cast,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.readings import readings_of
from attn_spec.contract.roundoff import elementary_error, gamma, row_sum_store
from attn_spec.contract.stages import EXACT, Rounding
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.numbers.formats import FORMATS, narrowest
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
    contract: ResolvedContract
    #: Largest features, a [.., Sq, D] and b [.., Sk, D], and |v| [.., Sk, Dv]; 0 for what is no number.
    a: np.ndarray
    b: np.ndarray
    v: np.ndarray
    #: Rows [.., Sq] that are numbers and see nothing else.
    known: np.ndarray
    #: Errors of a and of b.
    E_a: np.ndarray
    E_b: np.ndarray
    #: Error of w by those, and largest w, [.., Sq, Sk]; 0 where the key is hidden.
    E_w: np.ndarray
    w: np.ndarray
    #: Error of N, [.., Sq, 1], and 1 / N at most; infinite where the error is above LARGEST_LOSS.
    E_N: np.ndarray
    inverse: np.ndarray

    @property
    def forward(self) -> Intermediates:
        found = self.of()
        assert found is not None, "whoever asks for errors holds the intermediates"
        return found


@np.errstate(all="ignore")
def linear_bound(
    forward: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """Return the bound under a resolved contract, as :func:`bounds.forward_bound`."""
    o = forward.O if o is None else o
    found = [
        (errors, output_error(errors, o, slack))
        for errors in (linear_error(forward, reading) for reading in readings_of(contract, forward.problem))
    ]
    output = np.maximum.reduce([error for _, error in found])
    lse = np.maximum.reduce([lse_error(errors) for errors, _ in found])
    inside = np.logical_and.reduce([in_domain(errors, error) for errors, error in found])
    held = np.logical_and.reduce([lse_fits(errors.forward, errors.contract, lse) for errors, _ in found])
    empty = np.logical_and.reduce([errors.known for errors, _ in found]) & (forward.keys[..., 0] == 0)
    return ForwardBound({"output": output, "lse": lse}, inside, empty, lse_domain=inside & held)


@memoized
def evaluation_error(forward: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves: the same theorem under the float64 contract.

    The sizes in it are sums of computed numbers that are not negative, relatively right to far less than INFLATION.
    """
    return linear_bound(forward, EVALUATION)


@memoized
@np.errstate(all="ignore")
def linear_error(forward: Intermediates, contract: ResolvedContract) -> LinearError:
    """Return the errors that all sums of a row share."""
    check_handled(forward.problem, HANDLES, "the bound of linear attention")
    off = operand_error(forward, contract)
    assert off is not None
    queries = np.isfinite(forward.q + off.E_q).all(axis=-1)
    keys = np.isfinite(forward.k + off.E_k).all(axis=-1) & np.isfinite(forward.v).all(axis=-1)
    # An infinite feature of a key that is hidden may be multiplied by 0.
    overflows = np.isfinite(repeated_keys(forward.problem)).all(axis=-1) & ~np.isfinite(off.E_k).all(axis=-1)
    queries &= ~overflows.any(axis=-1, keepdims=True)
    known = queries & ~np.any(forward.visible & ~np.expand_dims(keys, -2), axis=-1)
    E_a, a, E_b, b, v = map(finite, (off.E_q, forward.q, off.E_k, forward.k, np.abs(forward.v)))

    def of_pairs(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        return np.where(forward.visible, rows @ columns.swapaxes(-1, -2), 0.0)

    E_w, w = (
        term("features of queries", of_pairs(E_a, b + term("errors of both features", E_b)))
        + term("features of keys", of_pairs(a, E_b)),
        of_pairs(
            a + term("errors of features in the largest linear weight", E_a),
            b + term("errors of features in the largest linear weight", E_b),
        ),
    )
    shared = {
        "of": ref(forward),
        "contract": contract,
        "a": a + E_a,
        "b": b + E_b,
        "v": v,
        "known": known,
        "E_a": E_a,
        "E_b": E_b,
    }
    errors = LinearError(**shared, E_w=E_w, w=w, E_N=np.zeros(forward.N.shape), inverse=1 / forward.N)
    ones, softmax = np.ones((*b.shape[:-1], 1)), contract.stages.softmax
    E_N = np.maximum(
        term("N in the format of row sums", sum_error(errors, ones, EXACT, "row_sum")),
        term("N as a column of the values", sum_error(errors, ones, EXACT, "output_accumulation")),
    )
    # epsilon is rounded, and so are the sum and, where the softmax's format is narrower, what is stored of it.
    E_N = (
        E_N
        + gamma(
            (softmax.u, count("roundings of epsilon and of the sum with it", 2)),
            (row_sum_store(contract), count("the store of N", 1)),
        )
        * (forward.N + term("the error of N in its last roundings", E_N))
        + term("underflow of N", count("several underflows of N", 3) * softmax.eta)
    )
    E_N = np.where(E_N <= LARGEST_LOSS * forward.N, E_N, np.inf)
    return replace(errors, E_N=E_N, inverse=np.where(np.isinf(E_N), np.inf, 1 / (forward.N - term("the least N", E_N))))


@np.errstate(all="ignore")
def sum_error(errors: LinearError, size: np.ndarray, of_v: Rounding, stage: str, divisions: int = 0) -> np.ndarray:
    """Error of sum_j w_ij v_jc, [.., Sq, C], for |v| = ``size`` [.., Sk, C] rounded as ``of_v`` on entry.

    ``stage`` is that of the accumulators of the sums over the keys; w or a has so many roundings of ``divisions``.
    """
    forward, contract, n, D = errors.forward, errors.contract, errors.forward.keys, errors.forward.problem.head_dim
    operand, cast, state = (
        rounding_on_entry(contract, contract.stages.operands.format),
        probability_cast(contract),
        state_rounding(contract),
    )
    entered = gamma(
        (operand.u, count("entry of features", 2)),
        (of_v.u, count("entry of values to states", 1)),
        (contract.stages.softmax.u, divisions),
    )
    summed = np.maximum(
        term("scores before sums over keys", _scores_first(errors, stage)),
        term("states before sums over columns", _keys_first(errors, stage)),
    )
    G = (
        term("all entries to sums over linear weights", entered)
        + summed
        + term("entries and sums of linear weights", entered * summed)
    )
    tiny, stored = _underflow(contract, stage), contract.stages.stored_scores
    total = forward.visible @ size
    of_scores = total * (
        term(
            "underflow of linear scores' sums",
            count("underflows of linear scores' products and sums", 2) * number_of_products(contract, D) * tiny,
        )
        + term("underflow of linear scores that are stored", stored.eta)
        + term("underflow of the cast of linear weights", cast.eta)
        + term("underflow of linear weights", contract.stages.softmax.eta)
    )
    widest = np.where(forward.visible.any(axis=-1, keepdims=True), errors.a.sum(axis=-1, keepdims=True), 0.0)
    of_state = widest * (
        term(
            "underflow of sums of states",
            count("several underflows of sums of states", 4)
            * times("underflow of sums of states for each key", number_of_products(contract, n))
            * tiny,
        )
        + term(
            "underflow of states",
            times("underflow of states for each tile", contract.tiles(forward.problem.key_length)) * state.eta,
        )
    )
    entering = operand.eta * (
        term(
            "underflow of features of queries on entry", forward.visible @ (errors.b.sum(axis=-1, keepdims=True) * size)
        )
        + (
            term("underflow of features of keys on entry", widest)
            + term("underflow of both features on entry", D * operand.eta)
        )
        * total
    )
    entering = entering + term(
        "underflow of values on entry to states", of_v.eta * errors.w.sum(axis=-1, keepdims=True)
    )
    last = (
        count("several underflows of last sums over linear weights", 4)
        * number_of_products(
            contract,
            term("underflow of a last sum over keys", n)
            + term("underflow of a last sum over columns", chained(forward, contract, D)),
        )
        * tiny
    )
    return (
        term("features in sums over linear weights", errors.E_w @ size)
        + term("roundings of sums over linear weights", G * (errors.w @ size))
        + times("roundings make the underflow of linear sums grow", 1 + G)
        * (of_scores + of_state + entering + term("underflow of last sums over linear weights", last))
    )


def chained(forward: Intermediates, contract: ResolvedContract, columns: int) -> np.ndarray:
    """Additions over the keys that a term passes at most, products included, in a kernel that may sum states of tiles.

    What the state of each tile makes, a sum over D ``columns``, may be added to one accumulator. Then a term of the
    first of tiles t_1, t_2, .. passes t_1 additions, D beside those counted here, and max(D, t_i) of each later tile,
    which is one of states or of scores. All but the last have m keys or more, so max(D, t_i) is at most
    t_i max(1, D / m), and all is at most max(n, D n / m) + D. To tiles that are hidden nothing is added.
    """
    return term(
        "states that are added to one accumulator",
        np.maximum(
            times("keys of a long tile in one accumulator", forward.keys),
            columns * np.minimum(contract.tiles(forward.problem.key_length), forward.keys),
        ),
        forward.keys,
    ) + term("additions within the state of the first tile", columns)


def state_rounding(contract: ResolvedContract) -> Rounding:
    """Return the rounding of a state that waits for the next tile, and that enters the product with a."""
    state = contract.stages.partial_outputs
    return Rounding(
        term("the rounding of a state that waits", state.of(contract.stages.output_accumulation.format).u),
        term("underflow of a state that waits", state.eta)
        + term("underflow of a state on entry", rounding_on_entry(contract, state.format).eta),
    )


def _scores_first(errors: LinearError, stage: str) -> np.ndarray:
    """G of a sum over d, then over the keys."""
    contract, D = errors.contract, errors.forward.problem.head_dim
    stored = contract.stages.stored_scores.of(contract.stages.score_accumulation.format)
    form, dtype = contract.stages.operands.format, FORMATS[errors.forward.problem.dtype_of("v")]
    kept = contract.stages.softmax.of(contract.stages.stored_scores.format)
    missing = (
        (term("pieces left out of linear scores", skipped_pieces(contract, form, form)), 1),
        (
            skipped_pieces(contract, contract.stages.probabilities.format, dtype),
            count("pieces left out of products with linear scores", 1),
        ),
    )
    last = roundings_of_sum(contract, stage, chained(errors.forward, contract, D))
    return gamma(
        *term("sums of linear scores over columns", roundings_of_sum(contract, "score_accumulation", D), ()),
        (stored.u, count("a linear score that is stored", 1)),
        (kept.u, count("a linear weight in the softmax's format", 1)),
        (probability_cast(contract).u, count("the cast of linear weights", 1)),
        *missing,
        *term("sums of linear scores over keys", last, ()),
    )


def _keys_first(errors: LinearError, stage: str) -> np.ndarray:
    """G of a sum over the keys, as a state, then over d."""
    contract, forward = errors.contract, errors.forward
    tiles = times("states that wait once for each tile", contract.tiles(forward.problem.key_length))
    of_state: Factors = (
        (state_rounding(contract).u, term("states that wait", tiles)),
        (rounding_on_entry(contract, contract.stages.partial_outputs.format).u, count("entry of states", 1)),
        (
            skipped_pieces(contract, contract.stages.operands.format, FORMATS[forward.problem.dtype_of("v")]),
            count("pieces left out of states", 1),
        ),
        (
            skipped_pieces(contract, contract.stages.partial_outputs.format, contract.stages.operands.format),
            count("pieces left out of products with states", 1),
        ),
    )
    over_d = np.maximum(
        term(
            "sums of states over columns, as over keys",
            gamma(*roundings_of_sum(contract, stage, forward.problem.head_dim)),
        ),
        term(
            "sums of states over columns, as of scores",
            gamma(*roundings_of_sum(contract, "score_accumulation", forward.problem.head_dim)),
        ),
    )
    G = gamma(
        *term(
            "sums of states over keys",
            roundings_of_sum(contract, stage, chained(forward, contract, forward.problem.head_dim)),
            (),
        ),
        *of_state,
    )
    return (
        G
        + term("sums of states over columns", over_d)
        + term("sums over columns and over keys", term("sums of states over columns", G * over_d))
    )


def _underflow(contract: ResolvedContract, stage: str) -> float:
    return max(
        term("underflow in the format of states' sums", sum_underflow(contract, stage)),
        term("underflow in the format of linear scores' sums", sum_underflow(contract, "score_accumulation")),
    )


@np.errstate(all="ignore")
def output_error(errors: LinearError, o: np.ndarray, slack: np.ndarray | float) -> np.ndarray:
    """|O_hat - o|, [.., Sq, Dv]: with errors dS of the numerator and dN, (dS - o dN) / N_hat, then last roundings."""
    forward, contract = errors.forward, errors.contract
    # w, a or the sum is divided by N: 1 / N is rounded, its product, and one of both.
    divisions = count("roundings of a quotient by N", 3)
    E_S = sum_error(
        errors, errors.v, multiplicand(contract, forward.problem.dtype_of("v")), "output_accumulation", divisions
    )
    softmax, out, size = contract.stages.softmax, output_cast(contract), np.abs(o) + slack
    E_o = (
        term("the numerator of linear attention", E_S) + term("the denominator of linear attention", size * errors.E_N)
    ) * errors.inverse
    narrowed = contract.stages.softmax.of(contract.stages.output_accumulation.format).u
    finish = gamma(
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
            + term("underflow of a quotient by a small N", errors.inverse)
        ),
    ) + term("underflow of the cast of a linear output", out.eta)
    if contract.normalize == "before_product":  # w / N and a / N may underflow, whatever N is
        operand, features = (
            rounding_on_entry(contract, contract.stages.operands.format),
            errors.b.sum(axis=-1, keepdims=True),
        )
        tiny = tiny + count("several underflows of a linear weight that is divided by N", 2) * (
            term("underflow of a linear weight that is divided by N", softmax.eta)
            + term("underflow of the cast of a quotient by N", probability_cast(contract).eta)
        ) * (forward.visible @ errors.v)
        tiny = tiny + term(
            "underflow of features that are divided by N",
            (softmax.eta + operand.eta) * (forward.visible @ (features * errors.v)),
        )
    found = (
        term("errors of both sums of a linear output", E_o)
        + term("last roundings of a linear output", finish * (size + term("errors of both sums, rounded at last", E_o)))
        + term("underflow of last operations on a linear output", tiny)
    ) * times("the evaluation of a linear output in float64", INFLATION)
    return np.where(np.isnan(found), np.inf, found)  # where features overflow


@np.errstate(all="ignore")
def lse_error(errors: LinearError) -> np.ndarray:
    """|LSE_hat - log N|, [.., Sq]."""
    contract, L = errors.contract, np.where(np.isfinite(errors.forward.L), np.abs(errors.forward.L), 0.0)
    softmax, work = contract.stages.softmax, contract.stages.score_accumulation
    final = contract.stages.lse.of(contract.stages.softmax.format)
    share = term("N in the log-sum-exp", errors.E_N) / errors.forward.N
    E_L = -np.log1p(-share) if stands("the logarithm's slope at the least N") else share
    E_L = E_L + term(
        "the logarithm of N",
        elementary_error(contract, "log_error")
        * (
            count("an error of the logarithm near N = 1", 1)
            + term("an error of the logarithm that grows with it", L)
            + term("the error of N in the error of its logarithm", E_L)
        ),
    )
    E_L = (
        E_L
        + gamma(
            (softmax.u, count("roundings of the logarithm of N", 3)),
            (work.u, count("ln 2 in the logarithm of N", 2)),
            (final.u, count("the cast of the logarithm of N", 1)),
        )
        * (L + term("the error of N in the cast of its logarithm", E_L))
        + term("underflow of the logarithm of N", 3 * softmax.eta)
        + term("underflow of the cast of the logarithm of N", final.eta)
    )
    return (np.where(np.isnan(E_L), np.inf, E_L) * times("the evaluation of the logarithm of N in float64", INFLATION))[
        ..., 0
    ]


@np.errstate(all="ignore")
def in_domain(errors: LinearError, allowed: np.ndarray) -> np.ndarray:
    """Rows [.., Sq] with a visible key, whose N is known, and where nothing can overflow, in either order of sums."""
    forward, contract = errors.forward, errors.contract
    if guard("linear attention of which a contract says nothing", says_nothing(contract, forward.problem), False):
        return np.zeros(forward.keys.shape[:-1], dtype=bool)
    inside = (forward.keys[..., 0] > 0) & errors.known & np.isfinite(errors.inverse[..., 0])
    held = [
        errors.w.max(axis=-1, initial=0.0),
        errors.w.sum(axis=-1) + (forward.problem.feature_epsilon or 0.0),
        (errors.w @ errors.v).max(axis=-1, initial=0.0),
        (forward.visible @ errors.b).max(axis=-1, initial=0.0),
        (forward.visible @ (errors.b.max(axis=-1, keepdims=True) * errors.v)).max(axis=-1, initial=0.0),
    ]
    stages = ["score_accumulation", "inner_accumulation", "stored_scores", "output_accumulation", "row_sum"]
    stages += ["products", "softmax", "probabilities", "partial_outputs", "multiplicands"]
    G = np.maximum(_scores_first(errors, "output_accumulation"), _keys_first(errors, "output_accumulation"))
    G = np.broadcast_to(G, errors.forward.N.shape)[..., 0]
    inside &= np.maximum.reduce(held) * (1 + G) <= term("sums of linear attention", contract.largest(*stages), np.inf)
    smallest = max(contract.stages.row_sum.format.smallest_normal, contract.stages.softmax.format.smallest_normal)
    least, most = (forward.N - errors.E_N)[..., 0], (forward.N + errors.E_N)[..., 0]
    inside &= guard("the least sum of linear weights", least >= smallest, True) & guard(
        "the inverse of a sum of linear weights", most * contract.stages.softmax.format.smallest_normal <= 1, True
    )
    entries = np.where(forward.visible, errors.v.max(axis=-1, initial=0.0)[..., None, :], 0.0).max(axis=-1, initial=0.0)
    inside &= guard(
        "values of linear attention that enter products",
        (entries <= contract.stages.multiplicands.format.largest)
        | (contract.multiplicands == narrowest(*map(forward.problem.dtype_of, "qkv")).name),
        True,
    )
    widest = (np.abs(forward.O) + allowed).max(axis=-1, initial=0.0)
    return (
        inside
        & np.isfinite(forward.L[..., 0])
        & guard("outputs of linear attention", widest <= contract.largest("softmax", "output"), True)
    )

"""How far each element of dQ, dK, dV of linear attention may lie from the truth under a contract.

With a, b, w, N, o of ``linear_bounds``, P = w / N, and dO and dL the cotangents of output and log-sum-exp,

    dw_ij = (sum_c dO_ic v_jc - D_i + dL_i) / N_i        D_i = sum_c dO_ic o_ic
    da_id = sum_j dw_ij b_jd        db_jd = sum_i dw_ij a_id        dv_jc = sum_i P_ij dO_ic

for visible pairs; dQ and dK are what the feature map makes of da and db. Each is a sum of products of given numbers, of
features, of 1 / N and of o. A kernel may sum them in any order, over states as well: what a term passes on its way is a
factor 1 + e, and |e| is at most G of the longest way. To G times the sum of sizes come what the errors of features, N
and o make of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_spec.error.contract import ResolvedContract
from attn_spec.error.gradient_bounds import GRADIENT_EVALUATION, GradientBound
from attn_spec.error.gradient_sums import (
    accumulated,
    last_cast,
    stored_sums,
    sum_eta,
    summed_over_group,
    where_sums_fit,
)
from attn_spec.error.intermediates import GradientIntermediates, Intermediates, finite, kept
from attn_spec.error.linear_bounds import (
    LinearError,
    in_domain,
    linear_error,
    lse_error,
    output_error,
    state_rounding,
)
from attn_spec.error.operand_bounds import pulled_back, unknown_operands
from attn_spec.error.products import entry, left_out, probability_cast, sum_underflow, sums, terms
from attn_spec.error.roundoff import conversion, elementary_error, growth, rounding
from attn_spec.error.row_sum_bounds import INFLATION
from attn_spec.error.running_error import Approximation
from attn_spec.numbers.formats import FORMATS


@dataclass(frozen=True, eq=False)
class RowGradientError:
    """What rows of the backward pass have in common. Sizes include errors."""

    e: LinearError
    #: 1 / N at most, [.., Sq, 1]; 0 in rows that see no key.
    inverse: np.ndarray
    #: |dO| [.., Sq, Dv], and the size of D, [.., Sq, 1].
    dO: np.ndarray
    D: np.ndarray
    #: Size and error of dw, and of P, [.., Sq, Sk]; 0 where the key is hidden.
    dw: np.ndarray
    of_dw: np.ndarray
    P: np.ndarray
    of_P: np.ndarray


@np.errstate(all="ignore")
def linear_gradient_bound(
    x: Intermediates, g: GradientIntermediates, contract: ResolvedContract, slack: GradientBound | None = None
) -> GradientBound:
    """The bound under one reading of a resolved contract, as :func:`gradient_bounds.gradient_bound`."""
    evaluated = {} if slack is None else slack.allowed
    e = linear_error(x, contract)
    of_o = output_error(e, x.O, 0.0)
    rows = _rows(e, g, of_o)
    per_head = {"q": _of_queries(rows, g), "k": _of_keys(rows, g)}
    (dq, _), (dk, _) = (pulled_back(x, name, gradient) for name, gradient in per_head.items())
    errors = {"dq": dq.error, "dk": summed_over_group(x, contract, dk), "dv": _dv_error(rows)}
    finished: dict[str, np.ndarray] = {}
    for name, value in g.gradients.items():
        error, size = errors[name], np.abs(value) + evaluated.get(name, 0.0)
        out = last_cast(contract, contract.gradients)
        total = (error + out.u * (size + error) + out.eta) * INFLATION
        finished[name] = np.where(size + total <= contract.largest("gradients"), total, np.inf)
    inside = _rows_fit(rows, of_o, g)
    of_queries, of_keys = unknown_operands(x, contract)
    keys = _keys_fit(rows) & ~(x.over_group(of_keys) > 0)
    every = x.over_group(~inside | of_queries) == 0
    return GradientBound(
        finished,
        X=rows.of_dw,
        rows=inside & ~of_queries & ~of_keys.any(axis=-1, keepdims=True),
        keys=keys & np.all(every, axis=-1, keepdims=True),
        whole=bool(every.all() and keys.all()),
    )


@kept
def gradient_evaluation_error(x: Intermediates, g: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves, as :func:`linear_bounds.evaluation_error`."""
    return linear_gradient_bound(x, g, GRADIENT_EVALUATION)


def _rows(e: LinearError, g: GradientIntermediates, of_o: np.ndarray) -> RowGradientError:
    """The errors of 1 / N and of D, that of o, in dw and in P."""
    x, dO = e.x, np.abs(g.cotangent)
    inverse, lost = _inverse(e)
    D = (dO * (np.abs(x.O) + of_o)).sum(axis=-1, keepdims=True)
    P, dP = e.w * inverse, dO @ e.v.swapaxes(-1, -2)
    of_P = e.dw * inverse + np.where(x.visible, x.P, 0.0) * lost / (1 - lost)
    of_D = (dO * of_o).sum(axis=-1, keepdims=True)
    if e.c.delta != "output":  # sum P dP, whose terms may cancel, and which has the errors of P
        D = np.maximum(D, (P * dP).sum(axis=-1, keepdims=True))
        of_D = np.maximum(of_D, (of_P * dP).sum(axis=-1, keepdims=True))
        of_D = of_D + growth(*sums(e.c, "score_accumulation", x.keys)) * (D + of_D)
        of_D = of_D + 4 * terms(e.c, x.keys) * sum_underflow(e.c, "score_accumulation")
    dL = 0.0 if g.lse_cotangent is None else np.abs(g.lse_cotangent)[..., None]
    size = np.where(x.visible, dP + D + dL, 0.0) * inverse
    of_dw = np.where(x.visible, of_D * inverse, 0.0) + size * lost
    return RowGradientError(e, inverse, dO, D, dw=size, of_dw=of_dw, P=P, of_P=of_P)


def _inverse(e: LinearError) -> tuple[np.ndarray, np.ndarray]:
    """1 / N at most, 0 in rows that see no key, and its error relative to 1 / N at most, [.., Sq, 1].

    Where weights are computed again from the log-sum-exp, it is exp(-L).
    """
    x, c = e.x, e.c
    lost = e.dN / x.N
    if c.backward_weights == "recomputed":
        of_L = lse_error(e)[..., None]
        in_exponent = of_L + growth((rounding(c, "softmax").u, 3)) * (np.abs(x.L) + of_L)
        lost = np.maximum(lost, -np.expm1(-in_exponent - elementary_error(c, "exp_error")))
    inverse = np.where(lost < 1, 1 / (x.N * (1 - lost)), np.inf)
    return np.where(x.keys > 0, inverse, 0.0), np.where(x.keys > 0, lost, 0.0)


def _lengths(e: LinearError) -> tuple[int, int]:
    """Terms of the longest sum over columns, and tiles that a sum over queries or keys passes."""
    problem = e.x.problem
    columns = max(problem.value_dim, problem.head_dim)
    return columns, e.c.tiles(problem.key_length) + e.c.tiles(problem.query_length)


def _growth(e: LinearError, n: np.ndarray) -> np.ndarray:
    """G of a term on the longest way: sums over Dv or D and over ``n`` queries or keys, stores, casts and factors."""
    x, c = e.x, e.c
    dtype, form, out = FORMATS[x.problem.dtype], c.format("operands"), c.format("output")
    entries = [(entry(c, each).u, 1) for each in (dtype, form, form, out, c.format("score_gradients"))]
    entries += [(entry(c, c.format("partial_outputs")).u, 1), (probability_cast(c).u, 1)]
    formats = (dtype, form, out, c.format("score_gradients"), c.format("probabilities"), c.format("partial_outputs"))
    missing = (2 * max(left_out(c, one, other) for one in formats for other in formats), 1)
    summed, stages = c.format("score_accumulation"), ("stored_scores", "weight_gradients", "score_gradients")
    narrowed = [(conversion(c, stage, summed).u, 2) for stage in (*stages, "softmax")]
    columns, tiles = _lengths(e)
    short = np.maximum.reduce(
        [growth(*sums(c, stage, columns + 2)) for stage in ("score_accumulation", "gradient_accumulation")]
    )
    passed = np.maximum(n, columns * np.minimum(tiles, n)) + columns  # as :func:`linear_bounds.chained`
    long = np.maximum(growth(*accumulated(c, passed)), growth(*sums(c, "output_accumulation", passed)))
    rest = growth(*entries, missing, (state_rounding(c).u, tiles), (rounding(c, "softmax").u, 6), *narrowed)
    return (1 + short) * (1 + long) * (1 + rest) - 1


@dataclass(frozen=True)
class _Underflow:
    """Absolute errors of single results: of sums over columns, of sums over rows, of entries, of stores."""

    columns: np.ndarray | float
    rows: np.ndarray
    entry: float
    stored: float


def _underflow(e: LinearError, n: np.ndarray) -> _Underflow:
    x, c = e.x, e.c
    least = max(sum_underflow(c, "score_accumulation"), sum_underflow(c, "output_accumulation"), sum_eta(c))
    stores, partial = stored_sums(c, n)
    columns, tiles = _lengths(e)
    formats = (FORMATS[x.problem.dtype], *(c.format(stage) for stage in ("operands", "output", "score_gradients")))
    stages = ("softmax", "softmax", "stored_scores", "stored_scores", "weight_gradients", "score_gradients")
    return _Underflow(
        columns=4 * terms(c, columns) * least,
        rows=4 * terms(c, np.maximum(n, columns * np.minimum(tiles, n)) + columns) * least
        + tiles * state_rounding(c).eta
        + 2 * partial.eta * (stores + n),
        entry=max(entry(c, form).eta for form in formats),
        stored=sum(rounding(c, stage).eta for stage in stages) + probability_cast(c).eta,
    )


def _of_queries(r: RowGradientError, g: GradientIntermediates) -> Approximation:
    """da per head, [.., Sq, D]."""
    e, x = r.e, r.e.x
    b, inverse, n = e.b, r.inverse, x.keys
    G, tiny, dw = _growth(e, n), _underflow(e, n), r.dw + r.of_dw
    seen, values = x.visible @ b, x.visible @ (b * e.v.sum(axis=-1, keepdims=True))
    cotangents = r.dO.sum(axis=-1, keepdims=True)
    # A quotient by N may underflow before the sum over the columns: dO / N, and o / N, which dO multiplies.
    under = (1 + inverse) * (tiny.columns + tiny.stored * (1 + cotangents)) * seen
    under = under + inverse * tiny.entry * (values + cotangents * seen)
    under = under + tiny.entry * dw.sum(axis=-1, keepdims=True) + (tiny.stored + tiny.entry) * (seen + values)
    under = under + tiny.rows * (1 + inverse * (cotangents + r.D)) + tiny.columns
    error = r.of_dw @ b + dw @ e.of_b + G * (dw @ b) + (1 + G) * under
    return _summed(e, g.of_q, dw @ b, error)


def _of_keys(r: RowGradientError, g: GradientIntermediates) -> Approximation:
    """db per query head, [.., Sk, D]."""
    e, x = r.e, r.e.x
    n = x.visible.sum(axis=-2)[..., None]
    G, tiny, dw = _growth(e, n), _underflow(e, n), (r.dw + r.of_dw).swapaxes(-1, -2)
    a, of_keys = e.a * r.inverse, x.visible.swapaxes(-1, -2)
    seen, unscaled, values = of_keys @ a, of_keys @ e.a, e.v.sum(axis=-1, keepdims=True)
    cotangents, both = (of_keys @ (one * r.dO.sum(axis=-1, keepdims=True)) for one in (a, a + e.a))
    under = (tiny.columns + tiny.stored) * (seen + unscaled) + tiny.stored * both
    under = under + tiny.entry * (values * seen + cotangents)
    under = under + tiny.entry * dw.sum(axis=-1, keepdims=True) + (tiny.stored + tiny.entry) * unscaled * (1 + values)
    under = under + tiny.rows * (2 + values) + tiny.columns
    error = r.of_dw.swapaxes(-1, -2) @ e.a + dw @ e.of_a + G * (dw @ e.a) + (1 + G) * under
    return _summed(e, g.of_k, dw @ e.a, error)


def _summed(e: LinearError, value: np.ndarray, size: np.ndarray, error: np.ndarray) -> Approximation:
    """A finished sum; infinite errors where it could overflow."""
    error = where_sums_fit(e.c, size, error)
    return Approximation(finite(value), size, error, e.c.format("gradient_accumulation"), e.c)


def _dv_error(r: RowGradientError) -> np.ndarray:
    """Error of dV, [B, Hkv, Sk, Dv]."""
    e, x = r.e, r.e.x
    n = x.over_group(x.visible.sum(axis=-2)[..., None])
    per_head = x.problem.per_query_head(n)
    G, tiny, of_keys = _growth(e, per_head), _underflow(e, per_head), x.visible.swapaxes(-1, -2)
    inverse, features = r.inverse, e.b.sum(axis=-1, keepdims=True)
    P, size = (r.P + r.of_P).swapaxes(-1, -2), r.dO
    under = (tiny.stored + tiny.columns) * (of_keys @ ((1 + inverse) * size)) + tiny.rows * (1 + features)
    under = under + tiny.entry * (P.sum(axis=-1, keepdims=True) + of_keys @ size * (1 + features) + tiny.columns)
    under = under + tiny.entry * (of_keys @ (inverse * size)) * (1 + features) + tiny.columns
    under = under + tiny.entry * (of_keys @ (inverse * size * e.a.sum(axis=-1, keepdims=True)))
    under = under + (tiny.stored + tiny.entry) * e.w.sum(axis=-2)[..., None]
    error = r.of_P.swapaxes(-1, -2) @ size + G * (P @ size) + (1 + G) * under
    total = x.over_group(P @ size)
    return where_sums_fit(e.c, total, x.over_group(error))


#: What holds the terms of gradients, and their sums.
_HOLD = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "partial_outputs"),
    *("weight_gradients", "score_gradients"),
    *("inner_accumulation", "gradient_accumulation", "partial_gradients", "output_accumulation"),
)


@np.errstate(all="ignore")
def _rows_fit(r: RowGradientError, of_o: np.ndarray, g: GradientIntermediates) -> np.ndarray:
    """Rows [B, Hq, Sq] in the forward domain, whose sums overflow in no order, or that see no key.

    The derivative of a quotient as it is written has the square of N below.
    """
    e, x, form = r.e, r.e.x, r.e.c.format("score_accumulation")
    least, most = ((x.N + sign * e.dN)[..., 0] ** 2 for sign in (-1, 1))
    squares = (most * (1 + 4 * form.unit_roundoff) <= form.largest) & (most * form.smallest_normal <= 1)
    dw, scaled = r.dw + r.of_dw, np.maximum(r.inverse, 1.0)
    held = [
        np.maximum(dw, dw / scaled).max(axis=-1, initial=0.0),
        (dw @ e.b).max(axis=-1, initial=0.0),
        (scaled * r.dO).max(axis=-1, initial=0.0),
        (r.D * scaled)[..., 0],
    ]
    widest = np.maximum.reduce(held) * (1 + _growth(e, x.keys)[..., 0])
    fits = squares & (least >= form.smallest_normal) & (widest <= e.c.largest(*_HOLD)) & np.isfinite(widest)
    seen = in_domain(e, of_o) & fits
    return (seen | (e.known & (x.keys[..., 0] == 0))) & np.isfinite(g.cotangent).all(axis=-1)


@np.errstate(all="ignore")
def _keys_fit(r: RowGradientError) -> np.ndarray:
    """Keys [B, Hkv, Sk] whose sums over all rows of the group, states included, overflow in no order."""
    e, x = r.e, r.e.x
    dw, scaled = (r.dw + r.of_dw).swapaxes(-1, -2), np.maximum(r.inverse, 1.0)
    states = (e.a * scaled).swapaxes(-1, -2) @ (r.dO + r.D)
    held = [
        (dw @ e.a).max(axis=-1, initial=0.0),
        (r.P.swapaxes(-1, -2) @ r.dO).max(axis=-1, initial=0.0),
        np.broadcast_to(states.max(axis=(-1, -2), initial=0.0)[..., None], dw.shape[:-1]),
    ]
    n = x.visible.sum(axis=-2)[..., None]
    widest = x.over_group(np.maximum.reduce(held) * (1 + _growth(e, n)[..., 0]))
    return (widest <= e.c.largest(*_HOLD)) & np.isfinite(widest)

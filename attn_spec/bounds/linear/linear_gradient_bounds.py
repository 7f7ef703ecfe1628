"""Bounds on the error of each element of dQ, dK, dV of linear attention under a contract.

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

from attn_spec.bounds.backward.gradient_bounds import GRADIENT_EVALUATION, GradientBound
from attn_spec.bounds.backward.gradient_sums import (
    accumulated,
    last_cast,
    stored_sums,
    sum_eta,
    summed_over_group,
    where_sums_fit,
)
from attn_spec.bounds.forward.row_sum_bounds import INFLATION
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, finite, memoized
from attn_spec.bounds.linear.linear_bounds import (
    LinearError,
    in_domain,
    linear_error,
    lse_error,
    output_error,
    state_rounding,
)
from attn_spec.bounds.operand_bounds import pulled_back, unknown_operands
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    number_of_products,
    probability_cast,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.roundoff import elementary_error, gamma
from attn_spec.contract.terms import count, guard, standing, term, times
from attn_spec.numbers.formats import FORMATS


@dataclass(frozen=True, eq=False)
class RowGradientError:
    """Errors and sizes that the gradients of all operands read of the backward pass's rows. Sizes include errors."""

    errors: LinearError
    #: 1 / N at most, [.., Sq, 1]; 0 in rows that see no key.
    inverse: np.ndarray
    #: |dO| [.., Sq, Dv], and the size of D, [.., Sq, 1].
    dO: np.ndarray
    D: np.ndarray
    #: Size and error of dw, and of P, [.., Sq, Sk]; 0 where the key is hidden.
    dw: np.ndarray
    E_dw: np.ndarray
    P: np.ndarray
    E_P: np.ndarray


@np.errstate(all="ignore")
def linear_gradient_bound(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, slack: GradientBound | None = None
) -> GradientBound:
    """Return the bound under one reading of a resolved contract, as :func:`gradient_bounds.gradient_bound`."""
    evaluated = {} if slack is None else slack.allowed
    errors = linear_error(forward, contract)
    E_o = output_error(errors, forward.O, 0.0)
    rows = _rows(errors, grad, E_o)
    per_head = {"q": _of_queries(rows, grad), "k": _of_keys(rows, grad)}
    (dq, _), (dk, _) = (pulled_back(forward, name, gradient) for name, gradient in per_head.items())
    unfinished = {
        "dq": dq.error,
        "dk": term(
            "sums of linear dk over heads", summed_over_group(forward, contract, dk), forward.over_group(dk.error)
        ),
        "dv": _dv_error(rows),
    }
    finished: dict[str, np.ndarray] = {}
    for name, value in grad.gradients.items():
        error, size = unfinished[name], np.abs(value) + evaluated.get(name, 0.0)
        out = last_cast(contract, contract.gradients)
        total = (
            error
            + term(
                "the cast of linear gradients", out.u * (size + term("errors of linear gradients in their cast", error))
            )
            + term("underflow of the cast of linear gradients", out.eta)
        ) * times("the evaluation of linear gradients in float64", INFLATION)
        finished[name] = np.where(size + total <= contract.largest("gradients"), total, np.inf)
    inside = _rows_fit(rows, E_o, grad)
    of_queries, of_keys = unknown_operands(forward, contract)
    keys = guard("sums over rows of linear gradients", _keys_fit(rows), True) & ~(forward.over_group(of_keys) > 0)
    every = forward.over_group(~inside | of_queries) == 0
    return GradientBound(
        finished,
        E_X=rows.E_dw,
        rows=inside & ~of_queries & ~of_keys.any(axis=-1, keepdims=True),
        keys=keys & guard("rows outside the domain that add to linear dk", np.all(every, axis=-1, keepdims=True), True),
        whole=bool(every.all() and keys.all()),
    )


@memoized
def gradient_evaluation_error(forward: Intermediates, grad: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves, as :func:`linear_bounds.evaluation_error`."""
    return linear_gradient_bound(forward, grad, GRADIENT_EVALUATION)


def _rows(errors: LinearError, grad: GradientIntermediates, E_o: np.ndarray) -> RowGradientError:
    """Return the errors of 1 / N and of D, which is the error of o, in dw and in P."""
    forward, dO = errors.forward, np.abs(grad.cotangent)
    inverse, lost = _inverse(errors)
    D = (dO * (np.abs(forward.O) + term("the error of o in the size of linear delta", E_o))).sum(axis=-1, keepdims=True)
    P, dP = errors.w * inverse, dO @ errors.v.swapaxes(-1, -2)
    E_P = term("errors of features in dv", errors.E_w * inverse) + term(
        "the error of 1 / N in dv",
        np.where(forward.visible, forward.P, 0.0) * lost / times("the largest 1 / N in dv", 1 - lost),
    )
    E_D = (dO * E_o).sum(axis=-1, keepdims=True)
    if errors.contract.delta != "output":  # sum P dP, whose terms may cancel, and which has the errors of P
        D = np.maximum(D, term("sums of P dP in linear delta", (P * dP).sum(axis=-1, keepdims=True)))
        E_D = np.maximum(E_D, term("errors of P in linear delta", (E_P * dP).sum(axis=-1, keepdims=True)))
        E_D = E_D + term(
            "sums of linear delta over keys",
            gamma(*roundings_of_sum(errors.contract, "score_accumulation", forward.keys))
            * (
                term("linear delta in its sums over keys", D)
                + term("the error of linear delta in its sums over keys", E_D)
            ),
        )
        E_D = E_D + term(
            "underflow of linear delta's sum over keys",
            count("several underflows of linear delta", 4)
            * times("underflow of linear delta for each key", number_of_products(errors.contract, forward.keys))
            * sum_underflow(errors.contract, "score_accumulation"),
        )
    dL = 0.0 if grad.lse_cotangent is None else np.abs(grad.lse_cotangent)[..., None]
    size = (
        np.where(
            forward.visible,
            term("dP in linear dw", dP) + term("delta in linear dw", D) + term("dL in linear dw", dL),
            0.0,
        )
        * inverse
    )
    E_dw = np.where(forward.visible, term("the error of o in linear dw", E_D * inverse), 0.0)
    E_dw = E_dw + term("the error of 1 / N in dw", size * lost)
    return RowGradientError(errors, inverse, dO, D, dw=size, E_dw=E_dw, P=P, E_P=E_P)


def _inverse(errors: LinearError) -> tuple[np.ndarray, np.ndarray]:
    """1 / N at most, 0 in rows that see no key, and its error relative to 1 / N at most, [.., Sq, 1].

    Where weights are computed again from the log-sum-exp, it is exp(-L).
    """
    forward, contract = errors.forward, errors.contract
    lost = term("the error of N in the backward pass", errors.E_N / forward.N)
    if contract.backward_weights == "recomputed":
        E_L = lse_error(errors)[..., None]
        size = np.abs(forward.L) + term("the error of the LSE in roundings of -LSE", E_L)
        rounded = gamma((contract.stages.softmax.u, count("roundings of -LSE", 3))) * size
        in_exponent = term("the LSE in 1 / N", E_L) + rounded
        again = -np.expm1(-in_exponent - term("the exponential of -LSE", elementary_error(contract, "exp_error")))
        lost = np.maximum(lost, term("1 / N as exp(-LSE)", again))
    inverse = np.where(lost < 1, 1 / (forward.N * times("the largest 1 / N in dw", 1 - lost)), np.inf)
    return np.where(forward.keys > 0, inverse, 0.0), np.where(forward.keys > 0, lost, 0.0)


def _lengths(errors: LinearError) -> tuple[int, int]:
    """Terms of the longest sum over columns, and tiles that a sum over queries or keys passes."""
    problem = errors.forward.problem
    columns = max(problem.value_dim, problem.head_dim)
    return columns, term(
        "states of gradients for each tile", errors.contract.tiles(problem.key_length)
    ) + errors.contract.tiles(problem.query_length)


def _growth(errors: LinearError, n: np.ndarray) -> np.ndarray:
    """G of a term on the longest way: sums over Dv or D and over ``n`` queries or keys, stores, casts and factors."""
    forward, contract = errors.forward, errors.contract
    dtype, form, out = (
        FORMATS[forward.problem.dtype_of("v")],
        contract.stages.operands.format,
        contract.stages.output.format,
    )
    entering = standing(
        ("entry of values to linear dP", dtype),
        ("entry of one feature to the linear backward pass", form),
        ("entry of the other feature to the linear backward pass", form),
        ("entry of dO to the linear backward pass", out),
        ("entry of dw", contract.stages.score_gradients.format),
    )
    entries = [(rounding_on_entry(contract, each).u, 1) for each in entering]
    entries += [
        (
            rounding_on_entry(contract, contract.stages.partial_outputs.format).u,
            count("entry of states of gradients", 1),
        ),
        (probability_cast(contract).u, count("the cast of P in linear dv", 1)),
    ]
    formats = (
        dtype,
        form,
        out,
        contract.stages.score_gradients.format,
        contract.stages.probabilities.format,
        contract.stages.partial_outputs.format,
    )
    left = max(skipped_pieces(contract, one, other) for one in formats for other in formats)
    summed = contract.stages.score_accumulation.format
    stages = standing(
        ("the store of linear weights and of dw", "stored_scores"),
        ("the store of linear dP", "weight_gradients"),
        ("the cast of dw", "score_gradients"),
    )
    narrowed = [
        (contract.stage(stage).of(summed).u, count("two stores of one number of the linear backward pass", 2))
        for stage in (*stages, "softmax")
    ]
    columns, tiles = _lengths(errors)
    terms_of_column = columns + count("the sums of delta and dL with dP", 2)
    short = np.maximum(
        term(
            "sums over columns in the format of scores",
            gamma(*roundings_of_sum(contract, "score_accumulation", terms_of_column)),
        ),
        term(
            "sums over columns in the format of gradients",
            gamma(*roundings_of_sum(contract, "gradient_accumulation", terms_of_column)),
        ),
    )
    passed = term(
        "states of gradients that are added to one accumulator", np.maximum(n, columns * np.minimum(tiles, n)), n
    ) + term("additions within the state of gradients of the first tile", columns)  # as :func:`linear_bounds.chained`
    long = np.maximum(
        term("sums over rows in the format of gradients", gamma(*accumulated(contract, passed))),
        term(
            "sums over rows in the format of outputs", gamma(*roundings_of_sum(contract, "output_accumulation", passed))
        ),
    )
    rest = gamma(
        *entries,
        (left, count("pieces left out of two products of the linear backward pass", 2)),
        (state_rounding(contract).u, term("states of gradients that wait", tiles)),
        (contract.stages.softmax.u, count("products with 1 / N in the backward pass", 6)),
        *term("stores of the linear backward pass", narrowed, ()),
    )
    return (
        times("sums over columns of the linear backward pass", 1 + short)
        * (1 + term("sums over rows of the linear backward pass", long))
        * times("casts of the linear backward pass", 1 + rest)
        - 1
    )


@dataclass(frozen=True)
class _Underflow:
    """Absolute errors of single results: of sums over columns, of sums over rows, of entries, of stores."""

    columns: np.ndarray | float
    rows: np.ndarray
    entry: float
    stored: float


def _underflow(errors: LinearError, n: np.ndarray) -> _Underflow:
    forward, contract = errors.forward, errors.contract
    least = max(
        term(
            "underflow in the format of scores in the linear backward pass",
            sum_underflow(contract, "score_accumulation"),
        ),
        term(
            "underflow in the format of outputs in the linear backward pass",
            sum_underflow(contract, "output_accumulation"),
        ),
        term("underflow in the format of gradients in the linear backward pass", sum_eta(contract)),
    )
    stores, partial = stored_sums(contract, n)
    columns, tiles = _lengths(errors)
    formats = (
        FORMATS[forward.problem.dtype_of("v")],
        *(contract.format(stage) for stage in ("operands", "output", "score_gradients")),
    )
    stages = standing(
        ("underflow of products with 1 / N", "softmax"),
        ("underflow of products with 1 / N", "softmax"),
        ("underflow of linear weights and of dw that are stored", "stored_scores"),
        ("underflow of linear weights and of dw that are stored", "stored_scores"),
        ("underflow of linear dP that is stored", "weight_gradients"),
        ("underflow of the cast of dw", "score_gradients"),
    )
    return _Underflow(
        columns=term(
            "underflow of linear sums over columns",
            count("several underflows of linear sums over columns", 4) * number_of_products(contract, columns) * least,
        ),
        rows=count("several underflows of linear sums over rows", 4)
        * number_of_products(
            contract,
            term(
                "underflow of states of gradients in one accumulator", np.maximum(n, columns * np.minimum(tiles, n)), n
            )
            + columns,
        )
        * least
        + tiles * state_rounding(contract).eta
        + 2 * partial.eta * (stores + n),
        entry=term(
            "underflow on entry in the linear backward pass",
            max(rounding_on_entry(contract, form).eta for form in formats),
        ),
        stored=term(
            "underflow of what the linear backward pass stores", sum(contract.stage(stage).eta for stage in stages)
        )
        + term("underflow of the cast of P in linear dv", probability_cast(contract).eta),
    )


def _of_queries(rows: RowGradientError, grad: GradientIntermediates) -> Approximation:
    """da per head, [.., Sq, D]."""
    errors, forward = rows.errors, rows.errors.forward
    b, inverse, n = errors.b, rows.inverse, forward.keys
    G, tiny, dw = (
        _growth(errors, n),
        _underflow(errors, n),
        rows.dw + term("the error of dw in its size in linear dq", rows.E_dw),
    )
    seen, values = forward.visible @ b, forward.visible @ (b * errors.v.sum(axis=-1, keepdims=True))
    cotangents = rows.dO.sum(axis=-1, keepdims=True)
    # A quotient by N may underflow before the sum over the columns: dO / N, and o / N, which dO multiplies.
    under = (
        (
            count("underflow that 1 / N does not multiply in linear dq", 1)
            + term("underflow that 1 / N multiplies in linear dq", inverse)
        )
        * (
            term("underflow of sums over columns in linear dq", tiny.columns)
            + term(
                "underflow of stores in linear dq",
                tiny.stored * (1 + term("underflow of a quotient by N that dO multiplies in linear dq", cotangents)),
            )
        )
        * seen
    )
    under = under + term(
        "underflow on entry that 1 / N multiplies in linear dq",
        inverse
        * tiny.entry
        * (
            term("underflow of dO on entry in linear dq", values)
            + term("underflow of values on entry in linear dq", cotangents * seen)
        ),
    )
    under = (
        under
        + term("underflow of the other feature on entry in linear dq", tiny.entry * dw.sum(axis=-1, keepdims=True))
        + term("underflow of products that are states in linear dq", (tiny.stored + tiny.entry) * (seen + values))
    )
    under = (
        under
        + term(
            "underflow of sums over rows in linear dq",
            tiny.rows
            * (
                1
                + term(
                    "underflow of sums over rows that 1 / N multiplies in linear dq", inverse * (cotangents + rows.D)
                )
            ),
        )
        + term("a last underflow of sums over columns in linear dq", tiny.columns)
    )
    error = (
        term("the error of dw in linear dq", rows.E_dw @ b)
        + term("errors of features in linear dq", dw @ errors.E_b)
        + term("roundings in linear dq", G * (dw @ b))
        + term("all underflow in linear dq", times("roundings make underflow grow in linear dq", 1 + G) * under)
    )
    return _summed(errors, grad.of_q, dw @ b, error)


def _of_keys(rows: RowGradientError, grad: GradientIntermediates) -> Approximation:
    """db per query head, [.., Sk, D]."""
    errors, forward = rows.errors, rows.errors.forward
    n = forward.visible.sum(axis=-2)[..., None]
    G, tiny, dw = _growth(errors, n), _underflow(errors, n), (rows.dw + rows.E_dw).swapaxes(-1, -2)
    a, of_keys = errors.a * rows.inverse, forward.visible.swapaxes(-1, -2)
    seen, unscaled, values = of_keys @ a, of_keys @ errors.a, errors.v.sum(axis=-1, keepdims=True)
    cotangents, both = (of_keys @ (one * rows.dO.sum(axis=-1, keepdims=True)) for one in (a, a + errors.a))
    under = term(
        "underflow of sums over columns and stores in linear dk",
        (tiny.columns + tiny.stored)
        * (
            term("underflow of what 1 / N has multiplied in linear dk", seen)
            + term("underflow of what 1 / N multiplies last in linear dk", unscaled)
        ),
    ) + term("underflow of stores that dO multiplies in linear dk", tiny.stored * both)
    under = under + term(
        "underflow on entry in linear dk",
        tiny.entry
        * (
            term("underflow of dO on entry in linear dk", values * seen)
            + term("underflow of values on entry in linear dk", cotangents)
        ),
    )
    under = (
        under
        + term("underflow of the other feature on entry in linear dk", tiny.entry * dw.sum(axis=-1, keepdims=True))
        + term(
            "underflow of products that are states in linear dk", (tiny.stored + tiny.entry) * unscaled * (1 + values)
        )
    )
    under = (
        under
        + term(
            "underflow of sums over rows in linear dk",
            tiny.rows * (2 + term("underflow of sums over rows that values multiply in linear dk", values)),
        )
        + term("a last underflow of sums over columns in linear dk", tiny.columns)
    )
    error = (
        term("the error of dw in linear dk", rows.E_dw.swapaxes(-1, -2) @ errors.a)
        + term("errors of features in linear dk", dw @ errors.E_a)
        + term("roundings in linear dk", G * (dw @ errors.a))
        + term("all underflow in linear dk", times("roundings make underflow grow in linear dk", 1 + G) * under)
    )
    return _summed(errors, grad.of_k, dw @ errors.a, error)


def _summed(errors: LinearError, value: np.ndarray, size: np.ndarray, error: np.ndarray) -> Approximation:
    """Return a finished sum, with infinite errors where it could overflow."""
    error = where_sums_fit(errors.contract, size, error)
    return Approximation(
        finite(value), size, error, errors.contract.stages.gradient_accumulation.format, errors.contract
    )


def _dv_error(rows: RowGradientError) -> np.ndarray:
    """Error of dV, [B, Hkv, Sk, Dv]."""
    errors, forward = rows.errors, rows.errors.forward
    n = forward.over_group(forward.visible.sum(axis=-2)[..., None])
    per_head = forward.problem.per_query_head(n)
    G, tiny, of_keys = _growth(errors, per_head), _underflow(errors, per_head), forward.visible.swapaxes(-1, -2)
    inverse, features = rows.inverse, errors.b.sum(axis=-1, keepdims=True)
    P, size = (rows.P + term("the error of P in its size in linear dv", rows.E_P)).swapaxes(-1, -2), rows.dO
    under = term(
        "underflow of stores in linear dv",
        (tiny.stored + tiny.columns)
        * (
            of_keys
            @ (
                (
                    count("underflow that 1 / N does not multiply in linear dv", 1)
                    + term("underflow that 1 / N multiplies in linear dv", inverse)
                )
                * size
            )
        ),
    ) + term(
        "underflow of sums over rows in linear dv",
        tiny.rows * (1 + term("underflow of sums over rows that features multiply in linear dv", features)),
    )
    under = under + term(
        "underflow on entry in linear dv",
        tiny.entry
        * (
            term("underflow of dO on entry in linear dv", P.sum(axis=-1, keepdims=True))
            + term("underflow of P on entry in linear dv", of_keys @ size * (1 + features))
            + tiny.columns
        ),
    )
    under = (
        under
        + term(
            "underflow of features on entry in linear dv", tiny.entry * (of_keys @ (inverse * size)) * (1 + features)
        )
        + term("underflow of sums over columns in linear dv", tiny.columns)
    )
    under = under + term(
        "underflow of dO / N on entry in linear dv",
        tiny.entry * (of_keys @ (inverse * size * errors.a.sum(axis=-1, keepdims=True))),
    )
    under = under + term(
        "underflow of w before its product with dO in linear dv",
        (tiny.stored + tiny.entry) * errors.w.sum(axis=-2)[..., None],
    )
    error = (
        term("the error of P in linear dv", rows.E_P.swapaxes(-1, -2) @ size)
        + term("roundings in linear dv", G * (P @ size))
        + term("all underflow in linear dv", times("roundings make underflow grow in linear dv", 1 + G) * under)
    )
    total = forward.over_group(P @ size)
    return where_sums_fit(errors.contract, total, forward.over_group(error))


#: Stages that hold the terms of gradients, and their sums.
_HOLD = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "partial_outputs"),
    *("weight_gradients", "score_gradients"),
    *("inner_accumulation", "gradient_accumulation", "partial_gradients", "output_accumulation"),
)


@np.errstate(all="ignore")
def _rows_fit(rows: RowGradientError, E_o: np.ndarray, grad: GradientIntermediates) -> np.ndarray:
    """Rows [B, Hq, Sq] in the forward domain, whose sums overflow in no order, or that see no key.

    The derivative of a quotient as it is written has the square of N below.
    """
    errors, forward, form = rows.errors, rows.errors.forward, rows.errors.contract.stages.score_accumulation.format
    least, most = ((forward.N + sign * errors.E_N)[..., 0] ** 2 for sign in (-1, 1))
    squares = (most * (1 + 4 * form.unit_roundoff) <= form.largest) & guard(
        "the square of a sum of linear weights, inverted", most * form.smallest_normal <= 1, True
    )
    dw, scaled = rows.dw + rows.E_dw, np.maximum(rows.inverse, 1.0)
    held = [
        np.maximum(dw, dw / scaled).max(axis=-1, initial=0.0),
        (dw @ errors.b).max(axis=-1, initial=0.0),
        (scaled * rows.dO).max(axis=-1, initial=0.0),
        (rows.D * scaled)[..., 0],
    ]
    widest = np.maximum.reduce(held) * (1 + np.broadcast_to(_growth(errors, forward.keys), forward.N.shape)[..., 0])
    fits = (
        squares
        & guard("the least square of a sum of linear weights", least >= form.smallest_normal, True)
        & guard("gradients of a row of linear attention", widest <= errors.contract.largest(*_HOLD), True)
        & np.isfinite(widest)
    )
    seen = guard("linear gradients of rows outside the forward domain", in_domain(errors, E_o), True) & fits
    return (seen | (errors.known & (forward.keys[..., 0] == 0))) & np.isfinite(grad.cotangent).all(axis=-1)


@np.errstate(all="ignore")
def _keys_fit(rows: RowGradientError) -> np.ndarray:
    """Keys [B, Hkv, Sk] whose sums over all rows of the group, states included, overflow in no order."""
    errors, forward = rows.errors, rows.errors.forward
    dw, scaled = (rows.dw + rows.E_dw).swapaxes(-1, -2), np.maximum(rows.inverse, 1.0)
    states = (errors.a * scaled).swapaxes(-1, -2) @ (rows.dO + rows.D)
    held = [
        (dw @ errors.a).max(axis=-1, initial=0.0),
        (rows.P.swapaxes(-1, -2) @ rows.dO).max(axis=-1, initial=0.0),
        np.broadcast_to(states.max(axis=(-1, -2), initial=0.0)[..., None], dw.shape[:-1]),
    ]
    n = forward.visible.sum(axis=-2)[..., None]
    widest = forward.over_group(np.maximum.reduce(held) * (1 + np.broadcast_to(_growth(errors, n), n.shape)[..., 0]))
    return (widest <= errors.contract.largest(*_HOLD)) & np.isfinite(widest)

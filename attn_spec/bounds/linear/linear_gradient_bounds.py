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

import numpy as np

from attn_spec.bounds.backward.gradient_bounds import GRADIENT_EVALUATION, GradientBound
from attn_spec.bounds.backward.gradient_sums import (
    last_cast,
    summed_over_group,
    where_sums_fit,
)
from attn_spec.bounds.forward.row_sum_bounds import INFLATION
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, finite
from attn_spec.bounds.linear.linear_bounds import (
    LinearError,
    linear_error,
    output_error,
)
from attn_spec.bounds.linear.linear_gradient_domain import keys_fit, rows_fit
from attn_spec.bounds.linear.linear_gradient_rows import RowGradientError, growth, row_errors, underflow
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.operand_bounds import pulled_back, unknown_operands
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import count, guard, term, times


@np.errstate(all="ignore")
def linear_gradient_bound(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, slack: GradientBound | None = None
) -> GradientBound:
    """Return the bound under one reading of a resolved contract, as :func:`gradient_bounds.gradient_bound`."""
    evaluated = {} if slack is None else slack.allowed
    errors = linear_error(forward, contract)
    E_o = output_error(errors, forward.O, 0.0)
    rows = row_errors(errors, grad, E_o)
    per_head = {"q": _of_queries(rows, grad), "k": _of_keys(rows, grad)}
    (dq, _), (dk, _) = (pulled_back(forward, name, gradient) for name, gradient in per_head.items())
    unfinished = {
        "dq": dq.error,
        "dk": term(
            "sums of linear dk over heads", summed_over_group(forward, contract, dk), forward.over_group(dk.error)
        ),
        "dv": _dv_error(rows),
    }
    if "dkv" in grad.gradients:  # no theorem knows the sum of both
        unfinished["dkv"] = np.full(unfinished["dk"].shape, np.inf)
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
    inside = rows_fit(rows, E_o, grad)
    of_queries, of_keys = unknown_operands(forward, contract)
    keys = guard("sums over rows of linear gradients", keys_fit(rows), True) & ~(forward.over_group(of_keys) > 0)
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


def _of_queries(rows: RowGradientError, grad: GradientIntermediates) -> Approximation:
    """da per head, [.., Sq, D]."""
    errors, forward = rows.errors, rows.errors.forward
    b, inverse, n = errors.b, rows.inverse, forward.keys
    G, tiny, dw = (
        growth(errors, n),
        underflow(errors, n),
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
    G, tiny, dw = growth(errors, n), underflow(errors, n), (rows.dw + rows.E_dw).swapaxes(-1, -2)
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
    G, tiny, of_keys = growth(errors, per_head), underflow(errors, per_head), forward.visible.swapaxes(-1, -2)
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

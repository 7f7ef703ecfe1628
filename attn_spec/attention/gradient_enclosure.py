"""Gradients as intervals proved to contain the truth: the formulas of ``gradients`` in ball arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flint import arb, arb_mat, ctx

from attn_spec.attention.arithmetic import BALLS, entries, matrix_of, table
from attn_spec.attention.definition import working_precision
from attn_spec.attention.enclosure import (
    Enclosed,
    as_row,
    by_row,
    dropped,
    exact,
    exact_table,
    floats,
    matrix,
    operands,
    parameters,
    real_scale,
    sees_nonfinite,
    values,
    weights,
    with_sink,
    with_terms,
)
from attn_spec.attention.gradients import check_cotangents
from attn_spec.attention.latent import key_gradient
from attn_spec.attention.scores import parameters_of, score_of
from attn_spec.attention.terms import BENDS, known_to, numbers_in_head, slope_of_bends, used
from attn_spec.attention.weightings import weighting_of
from attn_spec.problem.handled import check_handled
from attn_spec.problem.problem import Problem

#: Options whose gradients, or slopes, are evaluated here, see ``problem.handled``.
HANDLES = (*known_to(BALLS, slopes=True), "dropout_keep", "dropout_p", "feature_epsilon", "sinks", "v_descale")


def enclose_gradients(
    problem: Problem, cotangent: np.ndarray, precision: int = 113, lse_cotangent: np.ndarray | None = None
) -> dict[str, Enclosed]:
    """Enclose all gradients, for dO = ``cotangent`` [B, Hq, Sq, Dv] and dL = ``lse_cotangent`` [B, Hq, Sq], or 0.

    They are returned by name, as those of ``gradients``. Radii are near 2**-precision times each
    entry's formula with every factor replaced by its magnitude and every difference by a sum. A row whose dO or dL, or
    that sees a number that, is NaN or infinite has no true gradient: NaN with infinite radius in its dQ, and in all it
    adds to. Hidden ones do no harm. Raises :class:`ProblemError`.
    """
    check_handled(problem, HANDLES, "ball arithmetic of gradients")
    check_cotangents(problem, cotangent, lse_cotangent)
    dL = np.zeros(problem.score_shape[:3]) if lse_cotangent is None else lse_cotangent
    undefined = _undefined(problem, cotangent, dL)
    queries, keys = (np.any(undefined, axis=axis)[..., None] for axis in (3, 2))
    if problem.projects:  # all heads read the one of q
        queries = queries.any(axis=1, keepdims=True)
    grouped = (problem.batch, problem.kv_heads, problem.group, problem.key_length)
    keys = np.any(keys.reshape(*grouped, 1), axis=2)
    with ctx.workprec(working_precision(problem, precision)):
        heads = [_head(problem, cotangent, dL, b, h) for b, h in np.ndindex(problem.score_shape[:2])]
        dq, dk, dv, dA = ([head[name] for head in heads] for name in ("q", "k", "v", "A"))
        of_k = _stack(dk, (*grouped, problem.head_dim)).sum(axis=2)
        of_v = _stack(dv, (*grouped, problem.value_dim)).sum(axis=2)
        found = {
            "dq": _enclosed(_over_queries(problem, dq), queries),
            "dk": _enclosed(of_k, keys),
            "dv": _enclosed(of_v, keys),
        }
        if problem.latent:
            found["dkv"] = _enclosed(key_gradient(of_k, of_v), keys)
        if problem.bias is not None:
            found["dbias"] = _option_gradient(problem, "bias", _stack(dA, problem.score_shape), undefined)
        if problem.sinks is not None:
            of_rows = _stack([head["z"] for head in heads], (*problem.score_shape[:3], 1))
            found["dsinks"] = _option_gradient(problem, "sinks", of_rows, _undefined_sinks(problem, cotangent, dL))
        whole = np.any(undefined, axis=(2, 3), keepdims=True)
        if problem.projects:  # a number that is none in dO is that of all heads
            whole = whole | ~np.isfinite(cotangent).all(axis=(1, 2, 3), keepdims=True)
        for name, tensor in parameters_of(problem).items():
            found[f"d{name}"] = _option_gradient(problem, name, _stack([h[name] for h in heads], tensor.shape), whole)
        return found


def _over_queries(problem: Problem, dq: list[arb_mat]) -> np.ndarray:
    """Return the gradient of q from the contribution of each head; the heads of a layer share one q."""
    per_head = _stack(dq, (*problem.score_shape[:3], problem.head_dim))
    return np.add.reduce(per_head, axis=1, keepdims=True) if problem.projects else per_head


def _undefined(problem: Problem, dO: np.ndarray, dL: np.ndarray) -> np.ndarray:
    """Return which pairs [B, Hq, Sq, Sk] are visible in a row where a number that matters is NaN or infinite."""
    finite = np.isfinite(dO).all(axis=-1) & np.isfinite(dL) & ~sees_nonfinite(problem)  # dO may be that of all heads
    return problem.visible & ~finite[..., None]


def _undefined_sinks(problem: Problem, dO: np.ndarray, dL: np.ndarray) -> np.ndarray:
    """Return the rows [B, Hq, Sq, 1] that have a sink, and in which a number that matters is NaN or infinite."""
    finite = np.isfinite(dO).all(axis=-1) & np.isfinite(dL) & ~sees_nonfinite(problem)
    return (problem.sees_sink & ~finite)[..., None]


def _head(problem: Problem, dO: np.ndarray, dL: np.ndarray, b: int, h: int) -> dict[str, arb_mat]:
    """Balls around what one query head contributes to the gradients of q, k, v, the scores A and their parameters."""
    g, keys = h // problem.group, problem.key_length
    after = with_terms(problem, b, h)
    every_s = with_sink(problem, by_row(problem.visible[b, h], list(after.values())[-1]), b, h)
    every = [weights(problem, s)[0] for s in every_s]
    v, of_head = values(problem, b, h), _head_cotangent(problem, dO, b, h)
    products = (of_head * v.transpose()).table()
    dP = dropped(problem, [dict(enumerate(row)) for row in products], b, h)
    lse_cotangents = exact(dL[b, h, :, None]).entries()
    rows = [_score_gradients(problem, *row) for row in zip(every_s, every, dP, lse_cotangents, strict=True)]
    dA, scale, of_sink = matrix(rows, keys), real_scale(problem), [row.get(keys, 0) for row in rows]
    dS = matrix(_before_bends(problem, rows, after, b, h), keys)
    (q, k), score, p = operands(problem, b, h), score_of(problem), parameters(problem, b, h)
    kept = matrix(dropped(problem, every, b, h), keys)
    found = {"v": kept.transpose() * of_head, "A": dA, "z": arb_mat(problem.query_length, 1, of_sink)}
    if score.plain:
        return found | {"q": dS * k * scale, "k": dS.transpose() * q * scale}
    if score.pairs is None:
        of_q, of_k, of_p = table(dS * k * scale), table(dS.transpose() * q * scale), {}
    else:
        of_q, of_k, of_p = score.pairs.pull(BALLS, table(q), table(k), p, table(dS * scale))
    dq, by_queries = score.queries.pull(BALLS, exact_table(problem.q[b, problem.query_head(h)]), p, of_q)
    dk, by_keys = score.keys.pull(BALLS, exact_table(problem.k[b, g]), p, of_k)
    every = {"q": dq, "k": dk, **of_p, **by_queries, **by_keys}
    if problem.projects:
        every |= _through_projections(problem, dO, b, h, of_v=table(found["v"]), o=table(kept * v))
    return found | {name: matrix_of(x) for name, x in every.items()}


def _head_cotangent(problem: Problem, dO: np.ndarray, b: int, h: int) -> arb_mat:
    """Balls around dO [Sq, Dv] of one head."""
    outputs = score_of(problem).outputs
    if outputs is None:
        return exact(dO[b, h])
    # What has that gradient matters to that of W_O alone.
    nothing = table(arb_mat(problem.query_length, problem.head_value_dim))
    return matrix_of(outputs.pull(BALLS, nothing, parameters(problem, b, h), exact_table(dO[b, 0]))[0])


def _through_projections(
    problem: Problem, dO: np.ndarray, b: int, h: int, *, of_v: np.ndarray, o: np.ndarray
) -> dict[str, np.ndarray]:
    """Balls around what a head of a layer contributes to the gradients of v and the parameters behind v' and o."""
    score, p, of_output = score_of(problem), parameters(problem, b, h), exact_table(dO[b, 0])
    assert score.outputs is not None
    of_v, by_values = score.values.pull(BALLS, exact_table(problem.v[b, 0]), p, of_v)
    found = {"v": of_v, **by_values, **score.outputs.pull(BALLS, o, p, of_output)[1]}
    if problem.output_projection_bias is not None:  # which is added once
        rows = of_output if h == 0 else of_output * arb(0)
        found["output_projection_bias"] = np.add.reduce(rows, axis=0, keepdims=True, initial=arb(0))
    return found


def _score_gradients(
    problem: Problem, s: dict[int, arb], P: dict[int, arb], dP: dict[int, arb], dL: arb
) -> dict[int, arb]:
    """Balls around dA of one query by visible key, and of its sink, whose dP is 0, by the key Sk."""
    if not P:
        return {}
    of_each = {j: dP[j] if j < problem.key_length else arb(0) for j in P}
    dA = weighting_of(problem).pull(BALLS, as_row(s), as_row(P), as_row(of_each), dL)
    return dict(zip(P, dA.ravel(), strict=True))


def _before_bends(
    problem: Problem, dA: list[dict[int, arb]], after: Mapping[str, np.ndarray], b: int, h: int
) -> list[dict[int, arb]]:
    """Balls around dS: dA times the slope of what bends the score."""
    if not used(problem, BENDS):
        return dA
    slope = slope_of_bends(BALLS, problem, after, numbers_in_head(BALLS, problem, b, h))
    slopes = by_row(problem.visible[b, h], np.broadcast_to(slope, after["scale"].shape))
    return [{j: row[j] * slope for j, slope in slopes[i].items()} for i, row in enumerate(dA)]


def _option_gradient(problem: Problem, name: str, whole: np.ndarray, undefined: np.ndarray) -> Enclosed:
    """Return the sums over the axes along which the tensor of an option was broadcast."""
    axes = problem.broadcast_axes(name)
    summed = np.add.reduce(whole, axis=axes, keepdims=True, initial=arb(0)) if axes else whole
    return _enclosed(summed, np.any(undefined, axis=axes, keepdims=True) if axes else undefined)


def _stack(parts: list[arb_mat], shape: tuple[int, ...]) -> np.ndarray:
    """Return the entries of the matrices, one matrix after the other, as an object array of ``shape``."""
    return entries([ball for part in parts for ball in part.entries()], shape)


def _enclosed(balls: np.ndarray, undefined: np.ndarray) -> Enclosed:
    """Balls as floats; NaN with infinite radius where ``undefined``, which broadcasts to their shape."""
    # NumPy's sum over no balls is the integer 0.
    stacked = floats([arb(ball) for ball in balls.ravel()]).reshape(3, *balls.shape)
    return Enclosed(*np.where(undefined, np.array([np.nan, 0.0, np.inf]).reshape(3, 1, 1, 1, 1), stacked))

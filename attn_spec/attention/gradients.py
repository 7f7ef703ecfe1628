"""Gradients of attention in closed form, in mpmath, at any precision: the root of truth for a backward pass.

With s_ij the scaled product, a_ij = softcap * tanh(s_ij / softcap) + bias_ij the final score, P_ij, o_ic and L_i of
the final scores as in ``definition``, and the cotangents dO and dL that arrive on o and L:

    dP_ij    = c_ij sum_c dO_ic v_jc                          c_ij = 1 unless weights are dropped
    delta_i  = sum_c dO_ic o_ic
    dA_ij    = P_ij (dP_ij - delta_i + dL_i)                  for j in H(i), else 0
    dS_ij    = dA_ij (1 - tanh(s_ij / softcap)**2)            dA_ij when there is no softcap
    dQ_id    = scale * sum_j dS_ij k_jd
    dK_jd    = scale * sum_i dS_ij q_id                       over every query of every head that reads k
    dV_jc    = sum_i c_ij P_ij dO_ic                          likewise
    dBias    = sum dA_ij                                      over the axes along which the bias was broadcast
    dKV      = dK + [dV, 0]                                   if v is the first columns of k (``latent``)
    dSinks   = sum dA_iz,  dA_iz = P_iz (0 - delta_i + dL_i)  over the rows, batch entries and heads that share a sink z

In a layer dO is dO W_O of each head, v is v', and what has the gradient of v' is W_V v + b_V; W_O has dO^T o.

These are the partial derivatives of sum_ic dO_ic o_ic + sum_i dL_i L_i: dA follows from the Jacobian of softmax,
dP_ij/da_il = P_ij (1[j = l] - P_il), and from dL_i/da_ij = P_ij. Dao et al., "FlashAttention" (2022), appendix B.2.
A row that sees neither a key nor a sink is constant and contributes exactly 0.

``precision`` bits are correct: every entry lies within 2**-precision of the truth, times its own formula with every
factor replaced by its magnitude and every difference by a sum.
"""

from __future__ import annotations

import numpy as np
from mpmath import mp

from attn_spec.attention.arithmetic import REALS
from attn_spec.attention.definition import (
    PerHead,
    dropped,
    exact,
    head_outputs,
    operands,
    parameters,
    products,
    real_scale,
    scores,
    values,
    weights,
    with_sink,
    working_precision,
)
from attn_spec.attention.dropout import weight_factors
from attn_spec.attention.latent import key_gradient
from attn_spec.attention.scores import score_of
from attn_spec.attention.terms import BENDS, applied, known_to, numbers_in_head, slope_of_bends, used
from attn_spec.attention.weightings import weighting_of
from attn_spec.problem.handled import check_handled
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Options whose gradients, or slopes, are evaluated here, see ``problem.handled``.
HANDLES = (*known_to(REALS, slopes=True), "dropout_keep", "dropout_p", "feature_epsilon", "sinks", "v_descale")
#: Weights, output and slopes are found to this many more bits, for the handful of errors that meet in one dA.
GUARD = 3


def gradients(
    problem: Problem, cotangent: np.ndarray, precision: int, lse_cotangent: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """All gradients by name as object arrays of mpf, for dO = ``cotangent`` and dL = ``lse_cotangent``, or 0.

    Names and axes are those of ``problem.quantities``: "dq", "dk", "dv", "dkv" with ``latent``, "dbias" with a
    bias, and those of the parameters of the score.
    The cotangents are float64 arrays [B, Hq, Sq, Dv] and [B, Hq, Sq]. Raises :class:`ProblemError` for others.
    """
    with_sinks = _score_gradients(problem, cotangent, precision, lse_cotangent)
    dA, dA_z = with_sinks[..., :-1], with_sinks[..., -1:]
    P, dO = weights(problem, precision + GUARD), exact(cotangent)
    with mp.workprec(working_precision(problem, precision + GUARD)):
        scale = real_scale(problem)
        dS = _before_bends(problem, dA)
        found = _score_inputs(problem, scale * dS)
        if problem.projects:
            found |= _projected_values(problem, dropped(problem, P), dO, head_outputs(problem, precision + GUARD))
        else:
            found["dv"] = _sum_over_queries(problem, dropped(problem, P), dO)
        if problem.latent:
            found["dkv"] = key_gradient(found["dk"], found["dv"])
        if problem.bias is not None:
            found["dbias"] = _sum_to_shape(dA, problem.bias.shape)
        if problem.sinks is not None:
            found["dsinks"] = _sum_to_shape(dA_z, problem.sinks.shape)
        return found


def score_gradients(
    problem: Problem, cotangent: np.ndarray, precision: int, lse_cotangent: np.ndarray | None = None
) -> np.ndarray:
    """dA [B, Hq, Sq, Sk], the gradient of the final score; 0 where the key is hidden. Raises :class:`ProblemError`."""
    return _score_gradients(problem, cotangent, precision, lse_cotangent)[..., :-1]


def _score_gradients(
    problem: Problem, cotangent: np.ndarray, precision: int, lse_cotangent: np.ndarray | None
) -> np.ndarray:
    """dA [B, Hq, Sq, Sk + 1]: that of the keys, then that of the sink, which is 0 where there is none."""
    check_handled(problem, HANDLES, "the definition of gradients")
    check_cotangents(problem, cotangent, lse_cotangent)
    s = scores(problem, precision + GUARD)
    weighting = weighting_of(problem)
    dL = exact(np.zeros(problem.score_shape[:3]) if lse_cotangent is None else lse_cotangent)
    dA = np.full((*problem.score_shape[:3], problem.key_length + 1), mp.zero, dtype=object)
    with mp.workprec(working_precision(problem, precision + GUARD)):
        c, v, dO = weight_factors(problem, mp.one), values(problem), head_cotangents(problem, exact(cotangent))
        for b, h, i in np.argwhere(~problem.empty_rows):
            seen: np.ndarray = problem.visible[b, h, i]
            dP = REALS.product(dO[b, h][i][None], v[b, h][seen].T)
            dP = dP if c is None else c[b, h, i, seen] * dP
            of_row, of_sink = with_sink(problem, s[b, h, i][seen], h), problem.sees_sink[b, h, i]
            P = weighting.value(REALS, of_row)[0]
            of_no_value = exact(np.zeros((1, int(of_sink))))
            dP = np.concatenate([dP, of_no_value], axis=1)
            dA[b, h, i, np.append(seen, of_sink)] = weighting.pull(REALS, of_row, P, dP, dL[b, h, i]).ravel()
    return dA


def head_cotangents(problem: Problem, dO: np.ndarray) -> PerHead:
    """dO [Sq, Dv] of each batch entry and query head, at mpmath's present precision."""
    outputs, heads = score_of(problem).outputs, np.ndindex(problem.score_shape[:2])
    if outputs is None:
        return {(b, h): dO[b, h] for b, h in heads}
    # What has that gradient matters to that of W_O alone.
    nothing = exact(np.zeros((problem.query_length, problem.head_value_dim)))
    return {(b, h): outputs.pull(REALS, nothing, parameters(problem, b, h), dO[b, 0])[0] for b, h in heads}


def check_cotangents(problem: Problem, cotangent: np.ndarray, lse_cotangent: np.ndarray | None) -> None:
    """Raise :class:`ProblemError` unless both are float64 arrays of the shapes of output and log-sum-exp."""
    axes = "[B, 1, Sq, O]" if problem.projects else "[B, Hq, Sq, Dv]"
    _check("cotangent", cotangent, axes, problem.output_shape)
    if lse_cotangent is not None:
        _check("lse_cotangent", lse_cotangent, "[B, Hq, Sq]", problem.score_shape[:3])


def _check(name: str, array: object, axes: str, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float64 or array.shape != shape:
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        hint = "kernels.frameworks reads the exact values of a tensor"
        raise ProblemError(f"{name} must be a float64 array {axes} = {shape}, not {got}; {hint}")


def _before_bends(problem: Problem, dA: np.ndarray) -> np.ndarray:
    """dS [B, Hq, Sq, Sk]: dA times the slope of what bends the score; at mpmath's present precision."""
    if not used(problem, BENDS):
        return dA
    dS = dA.copy()
    for at, s in products(problem).items():
        p = numbers_in_head(REALS, problem, *at)
        slope = slope_of_bends(REALS, problem, applied(REALS, problem, s, p), p)
        dS[at][problem.visible[at]] *= np.broadcast_to(slope, s.shape).ravel()
    return dS


def _score_inputs(problem: Problem, dS: np.ndarray) -> dict[str, np.ndarray]:
    """Gradients of q, k and the score's parameters from those of q'.k', or of what else a pair becomes."""
    score, (q, k) = score_of(problem), operands(problem)
    dq, dk = exact(np.zeros(problem.q.shape)), exact(np.zeros(problem.k.shape))
    of_parameters: dict[str, np.ndarray] = {}
    for b, h in np.ndindex(problem.score_shape[:2]):
        g, p = h // problem.group, parameters(problem, b, h)
        seen: np.ndarray = problem.visible[b, h]
        if score.pairs is None:
            of_q, of_k = _product(dS[b, h], k[b, h], seen), _product(dS[b, h].T, q[b, h], seen.T)
            of_p: dict[str, np.ndarray] = {}
        else:
            of_q, of_k, of_p = score.pairs.pull(REALS, _finite(q[b, h]), _finite(k[b, h]), p, dS[b, h])
        of_q, by_queries = score.queries.pull(REALS, _finite(exact(problem.q[b, problem.query_head(h)])), p, of_q)
        of_k, by_keys = score.keys.pull(REALS, _finite(exact(problem.k[b, g])), p, of_k)
        for name, found in (of_p | by_queries | by_keys).items():
            of_parameters.setdefault(name, exact(np.zeros((*problem.score_shape[:2], *found.shape))))[b, h] = found
        # What no query sees, or sees no key, may be no number.
        dq[b, problem.query_head(h)] += np.where(seen.any(axis=1, keepdims=True), of_q, mp.zero)
        dk[b, g] += np.where(seen.T.any(axis=1, keepdims=True), of_k, mp.zero)
    summed = {f"d{name}": _sum_to_shape(x, getattr(problem, name).shape) for name, x in of_parameters.items()}
    return {"dq": dq, "dk": dk, **summed}


def _projected_values(problem: Problem, P: np.ndarray, dO: np.ndarray, o: np.ndarray) -> dict[str, np.ndarray]:
    """Gradients of v and of the parameters of W_V v + b_V and b_O + sum_h W_O o, for weights P as they met values."""
    score, of_heads = score_of(problem), head_cotangents(problem, dO)
    assert score.outputs is not None
    dv, found = exact(np.zeros(problem.v.shape)), {}
    for b, h in np.ndindex(problem.score_shape[:2]):
        p = parameters(problem, b, h)
        seen: np.ndarray = problem.visible[b, h].T
        of_v = _product(P[b, h].T, of_heads[b, h], seen)
        of_v, by_values = score.values.pull(REALS, _finite(exact(problem.v[b, 0])), p, of_v)
        _, by_outputs = score.outputs.pull(REALS, o[b, h], p, dO[b, 0])
        dv[b, 0] += of_v
        for name, of in (by_values | by_outputs).items():
            found.setdefault(name, exact(np.zeros((*problem.score_shape[:2], *of.shape))))[b, h] = of
    summed = {f"d{name}": _sum_to_shape(x, getattr(problem, name).shape) for name, x in found.items()}
    if problem.output_projection_bias is not None:
        summed["doutput_projection_bias"] = _sum_to_shape(dO, problem.output_projection_bias.shape)
    return {"dv": dv, **summed}


def _finite(x: np.ndarray) -> np.ndarray:
    """Return x with 0 in place of NaN and infinities; where a query sees one, the score's gradient is undefined too."""
    return np.where(np.vectorize(mp.isfinite, otypes=[bool])(x), x, mp.zero)


def _product(x: np.ndarray, y: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """sum_j x_ij y_jd over the pairs that are seen: what is hidden may be no number."""
    result = np.full((len(x), y.shape[1]), mp.zero, dtype=object)
    for i, d in np.ndindex(result.shape):
        result[i, d] = mp.fdot(x[i, seen[i]], y[seen[i], d])
    return result


def _sum_over_queries(problem: Problem, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """sum_i x_ij y_id over the queries, of every head that reads j, that see j: [B, Hkv, Sk, D] from [B, Hq, ..]."""
    result = np.full((*problem.k.shape[:3], y.shape[3]), mp.zero, dtype=object)
    for b, g, j, d in np.ndindex(result.shape):
        heads = slice(g * problem.group, (g + 1) * problem.group)
        seen = problem.visible[b, heads, :, j]
        result[b, g, j, d] = mp.fdot(x[b, heads, :, j][seen], y[b, heads, :, d][seen])
    return result


def _sum_to_shape(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum over the axes along which an array of ``shape`` broadcasts to the shape of ``x``."""
    result = np.full(shape, mp.zero, dtype=object)
    for at in np.ndindex(shape):
        block = tuple(slice(None) if n == 1 else slice(index, index + 1) for n, index in zip(shape, at, strict=True))
        result[at] = mp.fsum(x[block].ravel())
    return result

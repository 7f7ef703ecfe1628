"""Attention straight from the formula, in mpmath, at any precision: the root of truth.

For a query i, a key j and an output column c, with H(i) the keys that i may see:

    s_ij = scale * sum_d q'_id k'_jd    then  softcap * tanh(s_ij / softcap)  then  + bias_ij  then  - m |i' - j|
    N_i  = exp(z) + sum_{j in H(i)} exp(s_ij)           without exp(z) where the head has no sink z
    P_ij = exp(s_ij) / N_i                              for j in H(i), else 0
    o_ic = sum_{j in H(i)} c_ij P_ij v_jc               and 0 when H(i) is empty
    L_i  = log N_i                                      and -inf when H(i) is empty and there is no sink

In a layer v is v' = W_V v + b_V of each head, and the output is b_O + sum_h W_O o (``scores``).

Vaswani et al., "Attention is all you need" (2017), equation 1, where q' = q and k' = k; other scores have operands of
their own (``scores``). The slope m is that of ALiBi (Press et al., arXiv 2108.12409), i' the key that query i is
aligned with. c_ij is 1, unless weights are dropped (``dropout``). The formulas of P and L are in ``weightings``.
A sink is one more key of value 0 whose score z is given, so that its weight is the last of a row (:func:`with_sink`).
Nothing is subtracted from the scores: the exponents of mpmath are unbounded, so the exponentials cannot overflow. Every
function returns an object array of mpf and leaves mpmath's precision as it found it. ``precision`` bits are correct: a
score and an L lie within 2**-precision of the truth, a P within that relatively, and an o within that times sum_j c_ij
P_ij |v_jc|.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from mpmath import mp

from attn_spec.attention.arithmetic import REALS, entries
from attn_spec.attention.dropout import weight_factors
from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import parameters_of, score_of
from attn_spec.attention.terms import ADDENDS, applied, divisor, known_to, numbers_in_head, numbers_of, scale_of
from attn_spec.attention.weightings import weighting_of
from attn_spec.problem.handled import check_handled

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem

#: Options that the formulas here evaluate, see ``problem.handled``.
HANDLES = (*known_to(REALS), "dropout_keep", "dropout_p", "feature_epsilon", "o_scale", "sinks", "v_descale")
#: Arrays by batch entry and query head.
PerHead = dict[tuple[int, ...], np.ndarray]


def scores(problem: Problem, precision: int) -> np.ndarray:
    """Scores s [B, Hq, Sq, Sk], -inf where the key is hidden from the query."""
    check_handled(problem, HANDLES, "the definition")
    result = np.full(problem.score_shape, mp.ninf, dtype=object)
    with mp.workprec(working_precision(problem, precision)):
        dots = products(problem)
        for at in dots:
            *_, finished = applied(REALS, problem, dots[at], numbers_in_head(REALS, problem, *at)).values()
            result[at][problem.visible[at]] = finished.ravel()
    return result


def products(problem: Problem) -> PerHead:
    """Return q'.k', or what else a pair becomes, at the visible pairs of each head, [1, n]."""
    (q, k), pairs, found = operands(problem), score_of(problem).pairs, {}
    for at in q:
        seen = np.argwhere(problem.visible[at])
        if pairs is None:
            dots = [mp.fdot(q[at][i], k[at][j]) for i, j in seen]
        else:
            dots = list(pairs.value(REALS, q[at], k[at], parameters(problem, *at))[problem.visible[at]])
        found[at] = entries(dots, (1, len(seen)))
    return found


def weights(problem: Problem, precision: int) -> np.ndarray:
    """Weights P [B, Hq, Sq, Sk] of the keys; a row that sees no key is all 0."""
    s, weighting = scores(problem, precision), weighting_of(problem)
    result = np.full(problem.score_shape, mp.zero, dtype=object)
    with mp.workprec(working_precision(problem, precision)):
        for row in np.argwhere(~problem.empty_rows):
            seen: np.ndarray = problem.visible[*row]
            # NaN if every score seen is -inf.
            P = weighting.value(REALS, with_sink(problem, s[*row][seen], row[1]))[0].ravel()
            result[*row][seen] = P[: seen.sum()]
    return result


def with_sink(problem: Problem, s: np.ndarray, h: int) -> np.ndarray:
    """Return the scores [n] of the keys that a query of head h sees, then its sink if there is one, as a row [1, n]."""
    z = problem.sinks_of_heads[0, h].ravel()
    return np.concatenate([s, exact(z[z > -np.inf])])[None]


def attention(problem: Problem, precision: int) -> np.ndarray:
    """Output o [B, Hq, Sq, Dv], or [B, 1, Sq, O] of a layer; a row that sees no key is all 0, or b_O."""
    with mp.workprec(working_precision(problem, precision)):
        o = head_outputs(problem, precision)
        return joined(problem, o) if problem.projects else o


def head_outputs(problem: Problem, precision: int) -> np.ndarray:
    """o [B, Hq, Sq, Dv] of each head, at mpmath's present precision, for weights of ``precision`` bits."""
    P, v = dropped(problem, weights(problem, precision)), values(problem)
    result = np.full((*problem.score_shape[:3], problem.head_value_dim), mp.zero, dtype=object)
    for b, h, i, c in np.ndindex(result.shape):
        H = problem.visible[b, h, i]
        result[b, h, i, c] = mp.fdot(P[b, h, i, H], v[b, h][H, c])
    return result


def joined(problem: Problem, o: np.ndarray) -> np.ndarray:
    """Return the output [B, 1, Sq, O] of a layer, b_O + sum_h W_O o, at mpmath's present precision."""
    outputs = score_of(problem).outputs
    assert outputs is not None
    result = exact(np.zeros(problem.output_shape))
    if (bias := problem.output_projection_bias) is not None:
        result += exact(bias)
    for b, h in np.ndindex(problem.score_shape[:2]):
        result[b, 0] += outputs.value(REALS, o[b, h], parameters(problem, b, h))
    return result


def dropped(problem: Problem, x: np.ndarray) -> np.ndarray:
    """c_ij x_ij for numbers [B, Hq, Sq, Sk], at mpmath's present precision."""
    c = weight_factors(problem, mp.one)
    return x if c is None else c * x


def log_sum_exp(problem: Problem, precision: int) -> np.ndarray:
    """Log-sum-exp L [B, Hq, Sq], natural logarithm; -inf for a row that sees neither a key nor a sink."""
    s, weighting = scores(problem, precision), weighting_of(problem)
    result = np.full(problem.score_shape[:3], mp.ninf, dtype=object)
    with mp.workprec(working_precision(problem, precision)):
        for row in np.argwhere(~problem.empty_rows):
            seen: np.ndarray = problem.visible[*row]
            result[*row] = weighting.value(REALS, with_sink(problem, s[*row][seen], row[1]))[1].item()
    return result


def operands(problem: Problem) -> tuple[PerHead, PerHead]:
    """q' [Sq, D] and k' [Sk, D] of each batch entry and query head, at mpmath's present precision."""
    score = score_of(problem)
    found: tuple[PerHead, PerHead] = {}, {}
    for b, h in np.ndindex(problem.score_shape[:2]):
        p = parameters(problem, b, h)
        found[0][b, h] = score.queries.value(REALS, exact(problem.q[b, problem.query_head(h)]), p)
        found[1][b, h] = score.keys.value(REALS, exact(problem.k[b, h // problem.group]), p)
    return found


def values(problem: Problem) -> PerHead:
    """v' [Sk, Dv] of each batch entry and query head, at mpmath's present precision."""
    v, of = exact(problem.v), score_of(problem).values
    heads = np.ndindex(problem.score_shape[:2])
    return {(b, h): of.value(REALS, v[b, h // problem.group], parameters(problem, b, h)) for b, h in heads}


def parameters(problem: Problem, b: int, h: int) -> dict[str, Any]:
    """Return the parameters of the score of one batch entry and query head, and the rotations of its operands."""
    return {name: exact(tensor[b, h]) for name, tensor in parameters_of(problem).items()} | rotations_of(problem, b)


def real_scale(problem: Problem) -> Any:
    """Return the factor on q'.k' at mpmath's present precision; by default the real 1/sqrt(D) if it is a product."""
    return scale_of(REALS, problem).item()


def working_precision(problem: Problem, precision: int) -> int:
    """Bits that leave ``precision`` of them after the dot products: rounding a score of 2**m costs m bits."""

    def magnitude(x: np.ndarray) -> int:
        largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(initial=0.0)
        return int(np.frexp(largest)[1])

    scale = np.array(1.0 if problem.scale is None else problem.scale)
    product = magnitude(problem.q) + magnitude(problem.k) + magnitude(scale)
    terms = problem.head_dim * max(problem.key_length, 1)
    if factors := parameters_of(problem):  # a norm may divide what is small, and leave what is large
        product = sum(max(magnitude(x), 0) for x in (problem.q, problem.k, scale, *factors.values()))
        terms *= problem.head_dim * problem.score_width
    if problem.projects:
        product += max(magnitude(problem.v), 0)
        terms *= problem.query_heads * problem.value_dim * problem.head_value_dim
    if turns := rotations_of(problem).values():  # an angle has the bits before the point of its position and its power
        product += max(magnitude(turn.positions) + max(1 - magnitude(np.array(turn.base)), 0) for turn in turns) + 2
    if (divided_by := divisor(problem)) is not None:
        product += max(magnitude(np.array(1 / divided_by)), 0)
    added = sum(max(magnitude(x), 0) for x in numbers_of(problem, ADDENDS).values())
    added = max(added, magnitude(problem.sinks_of_heads))
    return precision + max(product, added, 0) + terms.bit_length() + 16


def exact(x: np.ndarray) -> np.ndarray:
    """Return the values of ``x`` as mpf; no float is rounded, whatever the precision."""
    return REALS.given(x)

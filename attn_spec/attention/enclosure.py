"""Attention as intervals proved to contain the truth: ball arithmetic (python-flint), at any precision.

Inputs enter exactly. Every operation on an ``arb``, a midpoint with a radius, returns a ball that contains every
result for arguments in the given balls; so does the whole formula, and no error analysis of this file is needed.
F. Johansson, "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic", IEEE Trans. Comput. 66 (2017).
The formula is that of ``definition``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from flint import arb, arb_mat, ctx

from attn_spec.attention.arithmetic import BALLS, entries, matrix_of, table
from attn_spec.attention.definition import working_precision
from attn_spec.attention.dropout import weight_factors
from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import parameters_of, score_of
from attn_spec.attention.terms import applied, known_to, numbers_in_head, scale_of
from attn_spec.attention.weightings import weighting_of
from attn_spec.problem.handled import check_handled

if TYPE_CHECKING:
    from attn_spec.problem.problem import Problem

#: Options that the formulas here evaluate, see ``problem.handled``.
HANDLES = (*known_to(BALLS), "dropout_keep", "dropout_p", "feature_epsilon", "o_scale", "sinks", "v_descale")


@dataclass(frozen=True, eq=False)
class Enclosed:
    """Real numbers known within a radius: each lies in ``value + low`` +- ``radius``, all float64 of one shape."""

    #: The float64 nearest the midpoint; infinite where the midpoint lies beyond float64, NaN where undefined.
    value: np.ndarray
    #: The float64 nearest midpoint - value; 0 where value is not finite.
    low: np.ndarray
    #: Upper bound on the distance from the truth, 0 only where exact; infinite where value overflows or is NaN.
    radius: np.ndarray


#: Results of attention for one problem, by name: "output", o [B, Hq, Sq, Dv], and "lse", L [B, Hq, Sq], the natural
#: logarithm. Rows that see neither a key nor a sink are exactly 0 and -inf. The output of a layer is [B, 1, Sq, O], and
#: 0 that of a head.
Truth = dict[str, Enclosed]


def enclose(problem: Problem, precision: int = 113) -> Truth:
    """Enclose output and log-sum-exp, with radii near 2**-precision (never below 2**-106 of the value).

    A row that sees a NaN or an infinity has no true value: NaN with infinite radius. Hidden ones do no harm.
    """
    rows, undefined = problem.score_shape[:3], sees_nonfinite(problem)
    output = np.zeros((3, *problem.output_shape))
    lse = np.zeros((3, *rows, 1))
    with ctx.workprec(working_precision(problem, precision)):
        for b in range(problem.batch):
            heads = [_head(problem, b, h) for h in range(rows[1])]
            for h, (_, L) in enumerate(heads):
                lse[:, b, h] = _matrix_floats(L)
            outputs = [o for o, _ in heads]
            for h, o in enumerate([joined(problem, b, outputs)] if problem.projects else outputs):
                output[:, b, h] = _matrix_floats(o)
    lse[0, problem.empty_rows] = -np.inf
    whole = undefined.any(axis=1, keepdims=True) if problem.projects else undefined
    for quantity, unknown in ((output, whole), (lse, undefined)):
        quantity[:, unknown] = np.array([np.nan, 0.0, np.inf])[:, None, None]
    return {"output": Enclosed(*output), "lse": Enclosed(*lse[..., 0])}


def _head(problem: Problem, b: int, h: int) -> tuple[arb_mat, arb_mat]:
    """Balls around o [Sq, Dv] and L [Sq, 1] of one head; 0 in rows that see neither a key nor a sink."""
    rows = [weights(problem, s) for s in scores(problem, b, h)]
    P = matrix(dropped(problem, [P for P, _ in rows], b, h), problem.key_length)
    lse = arb_mat(problem.query_length, 1, [L for _, L in rows])
    return P * values(problem, b, h), lse


def values(problem: Problem, b: int, h: int) -> arb_mat:
    """Balls around v' [Sk, Dv] of one head."""
    v = problem.v[b, h // problem.group]
    if not problem.projects:
        return exact(v)
    return matrix_of(score_of(problem).values.value(BALLS, exact_table(v), parameters(problem, b, h)))


def joined(problem: Problem, b: int, heads: list[arb_mat]) -> arb_mat:
    """Balls around the output [Sq, O] of a layer, of one batch entry, from those around the output of each head."""
    outputs = score_of(problem).outputs
    assert outputs is not None
    bias = problem.output_projection_bias
    start = np.zeros(problem.output_shape[1:]) if bias is None else np.broadcast_to(bias[0], problem.output_shape[1:])
    total = exact(start[0])
    for h, o in enumerate(heads):
        total += matrix_of(outputs.value(BALLS, table(o), parameters(problem, b, h)))
    return total


def weights(problem: Problem, s: dict[int, arb]) -> tuple[dict[int, arb], arb]:
    """Balls around the weights P and the log-sum-exp L of one row of scores by visible key; L = 0 if there is none.

    The weight of a sink has the key Sk.
    """
    if not s:
        return {}, arb(0)
    P, L = weighting_of(problem).value(BALLS, as_row(s))
    return dict(zip(s, P.ravel(), strict=True)), L.item()


def dropped(problem: Problem, rows: list[dict[int, arb]], b: int, h: int) -> list[dict[int, arb]]:
    """Balls around c_ij x_ij for those around x_ij, of one head, by key; a sink, of key Sk, is left out."""
    c, keys = weight_factors(problem, arb(1), b, h), problem.key_length
    of_keys = [{j: x for j, x in row.items() if j < keys} for row in rows]
    return of_keys if c is None else [{j: c[i, j] * x for j, x in row.items()} for i, row in enumerate(of_keys)]


def as_row(x: dict[int, arb]) -> np.ndarray:
    """Balls by visible key as an array [1, n]."""
    return entries(list(x.values()), (1, len(x)))


def scores(problem: Problem, b: int, h: int) -> list[dict[int, arb]]:
    """For each query of one head, balls around s by visible key, and around a sink by the key Sk."""
    check_handled(problem, HANDLES, "ball arithmetic")
    *_, s = with_terms(problem, b, h).values()
    return with_sink(problem, by_row(problem.visible[b, h], s), b, h)


def with_sink(problem: Problem, rows: list[dict[int, arb]], b: int, h: int) -> list[dict[int, arb]]:
    """Return the scores of one head by visible key, with that of its sink, in rows that see one, by the key Sk."""
    z = arb(problem.sinks_of_heads[0, h].item())
    sees = problem.sees_sink[b, h]
    return [row | {problem.key_length: z} if seen else row for row, seen in zip(rows, sees, strict=True)]


def with_terms(problem: Problem, b: int, h: int) -> dict[str, np.ndarray]:
    """Balls around the scores at the visible pairs of one head, [1, n], after each term, by option."""
    (q, k), pairs, visible = operands(problem, b, h), score_of(problem).pairs, problem.visible[b, h]
    p = parameters(problem, b, h)
    s = table(q * k.transpose()) if pairs is None else pairs.value(BALLS, table(q), table(k), p)
    return applied(BALLS, problem, s[visible][None], numbers_in_head(BALLS, problem, b, h))


def by_row(visible: np.ndarray, x: np.ndarray) -> list[dict[int, arb]]:
    """For each query of one head, balls by visible key, from those of all pairs, [1, n]."""
    numbers = iter(x.ravel().tolist())
    return [{j: next(numbers) for j in np.flatnonzero(row).tolist()} for row in visible]


def operands(problem: Problem, b: int, h: int) -> tuple[arb_mat, arb_mat]:
    """Balls around the operands q' [Sq, D] and k' [Sk, D] of one head."""
    return _operands(problem, b, h, ctx.prec)


# The gradients of a head ask for them three times.
@lru_cache(maxsize=1)
def _operands(problem: Problem, b: int, h: int, precision: int) -> tuple[arb_mat, arb_mat]:
    del precision  # that of the context
    score = score_of(problem)
    q, k = exact(problem.q[b, problem.query_head(h)]), exact(problem.k[b, h // problem.group])
    if score.plain:
        return q, k
    p = parameters(problem, b, h)
    return matrix_of(score.queries.value(BALLS, table(q), p)), matrix_of(score.keys.value(BALLS, table(k), p))


def parameters(problem: Problem, b: int, h: int) -> dict[str, Any]:
    """Return the parameters of the score of one head, as balls of radius 0, and the rotations of its operands."""
    found = {name: exact_table(tensor[b, h]) for name, tensor in parameters_of(problem).items()}
    return found | rotations_of(problem, b)


def real_scale(problem: Problem) -> arb:
    """Return a ball around the factor on q'.k'."""
    return scale_of(BALLS, problem).item()


def matrix(rows: list[dict[int, arb]], columns: int) -> arb_mat:
    """Rows given by column as a matrix; 0 where nothing is given."""
    return arb_mat(len(rows), columns, [row.get(j, 0) for row in rows for j in range(columns)])


def exact(x: np.ndarray) -> arb_mat:
    """Return the matrix ``x`` as balls of radius 0; hidden NaN and infinities become 0."""
    return _exact(_without_nonfinite(x), *x.shape)


def exact_table(x: np.ndarray) -> np.ndarray:
    """Return ``x`` as an object array of balls of radius 0; NaN and infinities become 0."""
    return _exact_table(_without_nonfinite(x), *x.shape)


def _without_nonfinite(x: np.ndarray) -> bytes:
    return np.where(np.isfinite(x), x, 0.0).tobytes()


# A head asks for its operands more than once, and so do the heads of a group for their keys. Nobody changes a matrix.
@lru_cache(maxsize=8)
def _exact(values: bytes, rows: int, columns: int) -> arb_mat:
    return arb_mat(rows, columns, np.frombuffer(values).tolist())


@lru_cache(maxsize=8)
def _exact_table(values: bytes, rows: int, columns: int) -> np.ndarray:
    return table(_exact(values, rows, columns))


def floats(balls: list[arb]) -> np.ndarray:
    """Return the fields of :class:`Enclosed`, [3, n]."""
    # In lists: matrices made for the two differences would take as long again.
    value = [float(ball) for ball in balls]
    finite = [math.isfinite(x) for x in value]
    rest = [ball - x if known else ball for ball, x, known in zip(balls, value, finite, strict=True)]
    low = [float(r) if known else 0.0 for r, known in zip(rest, finite, strict=True)]
    left = [r - x if x else r for r, x in zip(rest, low, strict=True)]
    bounds = [float(r.abs_upper()) for r in left]
    radius = [
        0.0 if bound == 0 and r.is_zero() else math.nextafter(bound, math.inf)
        for r, bound in zip(left, bounds, strict=True)
    ]
    return np.array([value, low, radius])


def _matrix_floats(balls: arb_mat) -> np.ndarray:
    """Return value, low part and radius of a matrix of balls, [3, rows, columns]."""
    return floats(balls.entries()).reshape(3, balls.nrows(), balls.ncols())


def sees_nonfinite(problem: Problem) -> np.ndarray:
    """Return which queries [B, Hq, Sq] are NaN or infinite, or see such a key or value."""
    q = ~np.isfinite(problem.q).all(axis=-1, keepdims=True)
    kv = ~np.isfinite(np.concatenate([problem.k, problem.v], axis=-1)).all(axis=-1)
    kv = kv.repeat(problem.group, axis=1)[:, :, None, :]
    return np.any(problem.visible & (q | kv), axis=-1)

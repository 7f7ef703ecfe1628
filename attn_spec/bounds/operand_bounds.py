"""Bounds on the errors of a score's operands, and of the gradients of q and k behind them, under a contract.

q' = f(q, p) and k' = g(k, p) of ``attention.scores``, evaluated with a running error bound. A plain score has none:
its operands are q and k. So are the values v' of a layer, and what of a cotangent arrives at its heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import Operand, parameters_of
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, finite, kept, repeated_keys
from attn_spec.bounds.running_error import Approximation, RowErrors, RunningErrors, given, stored
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import sums
from attn_spec.contract.roundoff import growth
from attn_spec.contract.terms import guard, term, times
from attn_spec.numbers.formats import FORMATS, Format


@dataclass(frozen=True, eq=False)
class OperandError:
    """Errors of q' [B, Hq, Sq, D] and k' [B, Hq, Sk, D] as they are stored."""

    q: np.ndarray
    k: np.ndarray
    #: Once more, where all of a vector has a part in common.
    q_rows: RowErrors | None
    k_rows: RowErrors | None

    def moves(self, x: Intermediates) -> np.ndarray:
        """Bound the error that these errors make in q'.k', [B, Hq, Sq, Sk]; one common to a vector scales q'.k'."""
        e, f = self.q, self.k.swapaxes(-1, -2)
        moved = term("errors of keys in a score", x.q_size @ f) + term(
            "errors of queries in a score",
            e @ (x.k_size.swapaxes(-1, -2) + term("errors of both operands, multiplied", f)),
        )
        if self.q_rows is None or self.k_rows is None:
            return moved
        a, b = self.q_rows.own, self.k_rows.own.swapaxes(-1, -2)
        of_q, of_k = self.q_rows.common, self.k_rows.common.swapaxes(-1, -2)
        common, own = (
            term("what errors of a query have in common", of_q)
            + term("what errors of a key have in common", of_k)
            + term("what errors of q and k have in common, multiplied", of_q * of_k),
            term("errors of each number of a key", x.q_size @ b)
            + term(
                "errors of each number of a query",
                a @ (x.k_size.swapaxes(-1, -2) + term("errors of each number of q and k, multiplied", b)),
            ),
        )
        return np.fmin(
            moved,
            term("what errors of a vector have in common", common * np.abs(x.dot))
            + term(
                "errors of each number of a vector",
                times("what errors have in common makes each number's grow", 1 + common) * own,
            ),
        )


def stored_format(x: Intermediates, c: ResolvedContract) -> Format:
    """The format of the operands, before a scale multiplies them."""
    changed = guard("the format of operands", not x.score.plain, False)
    return c.stages.operands.format if changed else FORMATS[x.problem.dtype]


@kept
@np.errstate(all="ignore")
def operand_error(x: Intermediates, c: ResolvedContract) -> OperandError | None:
    """Errors of the operands, infinite of vectors too short for it; None of a plain score, which has none."""
    score = x.score
    if score.plain:
        return None
    lengths = (np.linalg.norm(given, axis=-1, keepdims=True) for given in (x.problem.q, repeated_keys(x.problem)))
    q, k = _operands(x, c)
    errors = term("errors of queries", q.error), term("errors of keys", k.error)
    of_q, of_k = (np.where(n < score.shortest, np.inf, of) for n, of in zip(lengths, errors, strict=True))
    return OperandError(of_q, of_k, q.rows, k.rows)


@kept
@np.errstate(all="ignore")
def _operands(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation]:
    """q' and k' as they are stored, of infinite error where an operation could overflow or divide by 0."""
    A, score, (q, k, p) = RunningErrors(c), x.score, _given(x, c)
    return stored(score.queries.value(A, q, p)), stored(score.keys.value(A, k, p))


def value_format(x: Intermediates, c: ResolvedContract) -> Format:
    """The format of the values."""
    projected = guard("the format of values", x.problem.projects, False)
    return c.stages.operands.format if projected else FORMATS[x.problem.dtype]


@kept
@np.errstate(all="ignore")
def value_error(x: Intermediates, c: ResolvedContract) -> np.ndarray | None:
    """Errors of v' [B, Hq, Sk, U] as they are stored, 0 where nobody sees them; None of v itself."""
    if not x.problem.projects:
        return None
    return np.where(np.any(x.seen, axis=2)[..., None], term("errors of values", _value_errors(x, c)), 0.0)


@kept
@np.errstate(all="ignore")
def _value_errors(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    v = given(c, _repeated_values(x), term("the format of v", FORMATS[x.problem.dtype], c.stages.multiplicands.format))
    return stored(x.score.values.value(RunningErrors(c), v, parameters_given(x, c))).error


def _repeated_values(x: Intermediates) -> np.ndarray:
    """The value that each query head reads, [B, Hq, Sk, Dv]."""
    return x.problem.per_query_head(x.problem.v)


def value_sizes(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """The largest that values may be, [B, Hq, Sk, Dv]."""
    error = value_error(x, c)
    return x.v_size if error is None else x.v_size + term("errors of values in their sizes", error)


@np.errstate(all="ignore")
def arriving(x: Intermediates, g: GradientIntermediates, c: ResolvedContract) -> GradientIntermediates:
    """``g`` with the errors of what arrives at each head of a layer, [B, Hq, Sq, U], as it is stored.

    The contract is that of the layer: dO has the format of its output, that of a head's output may be narrower.
    """
    outputs = x.score.outputs
    if outputs is None:
        return g
    form = term("the format of the cotangent of a layer", c.stages.output, c.stages.operands).format
    dO = given(c, g.of_output, form)
    nothing = given(c, np.zeros(x.O.shape), c.stages.operands.format)  # matters to the gradient of W_O alone
    of_heads = outputs.pull(RunningErrors(c), nothing, parameters_given(x, c), dO)[0]
    of_heads = term("the store of cotangents of heads", stored(of_heads), of_heads)
    return replace(g, cotangent_error=term("errors of cotangents of heads", of_heads.error))


def product_of_operands_error(
    x: Intermediates, g: GradientIntermediates, c: ResolvedContract, of_g: np.ndarray | None
) -> np.ndarray | float:
    """What errors of dO, ``of_g``, and of v make of their product, before its own, [.., Sq, Sk]; 0 of what is given."""
    off, of_v = np.float64(0.0), value_error(x, c)
    if of_g is not None:
        size_v = term("errors of both in dP", value_sizes(x, c), x.v_size)
        off = off + term("errors of cotangents in dP", of_g @ size_v.swapaxes(-1, -2))
    if of_v is not None:
        off = off + term("errors of values in dP", np.abs(g.cotangent) @ of_v.swapaxes(-1, -2))
    return np.where(x.visible, off, 0.0)


def heads_contract(x: Intermediates, c: ResolvedContract) -> ResolvedContract:
    """The contract of heads: the outputs of those of a layer are operands of its projection."""
    return term("the outputs of heads are operands", replace(c, output=c.operands) if x.problem.projects else c, c)


@np.errstate(all="ignore")
def values_pulled_back(x: Intermediates, gradient: Approximation) -> tuple[Approximation, dict[str, Approximation]]:
    """The gradients of v and of parameters, per query head, for that of v' [B, Hq, Sk, U]."""
    c = gradient.contract
    v = given(
        c,
        finite(_repeated_values(x)),
        term("the format of v in the gradient of W_V", FORMATS[x.problem.dtype], c.stages.multiplicands.format),
    )
    return x.score.values.pull(
        RunningErrors(c),
        v,
        parameters_given(x, c),
        term("the store of the gradient of a value", stored(gradient), gradient),
    )


def operands_are_bounded(x: Intermediates, c: ResolvedContract) -> bool:
    """Return whether the error of every operand, and so its size, has a bound."""
    errors = operand_error(x, c)
    return errors is None or bool(np.isfinite(errors.q).all() and np.isfinite(errors.k).all())


@np.errstate(all="ignore")
def unknown_operands(x: Intermediates, c: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """bool [B, Hq, Sq], [B, Hq, Sk]: queries and keys whose operand may be anything, though they are finite numbers.

    An infinity times a score gradient of 0 is NaN, whoever sees it. That of a vector of zeros is defined.
    """
    queries = np.zeros(x.s.shape[:-1], dtype=bool)
    if operand_error(x, c) is not None:
        queries = np.broadcast_to(_unknown(x.problem.q, _operands(x, c)[0].error), queries.shape)
    return queries, unknown_keys(x, c)


@np.errstate(all="ignore")
def unknown_keys(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """bool [B, Hq, Sk]: those keys, and those with such a value.

    A score that overflows is NaN where -inf is added to it to hide it, and so is a weight of 0 times an infinity.
    """
    problem, unknown = x.problem, np.zeros((*x.s.shape[:2], x.s.shape[-1]), dtype=bool)
    if operand_error(x, c) is None:
        return unknown
    unknown = _unknown(repeated_keys(problem), _operands(x, c)[1].error)
    if problem.projects:
        unknown = unknown | _unknown(_repeated_values(x), _value_errors(x, c))
    return unknown


def _unknown(vectors: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Vectors of finite numbers, not all 0, whose operand has no bound."""
    numbers = np.isfinite(vectors).all(axis=-1) & vectors.any(axis=-1)
    return np.asarray(numbers & ~np.isfinite(error).all(axis=-1))


@np.errstate(all="ignore")
def pulled_back(x: Intermediates, name: str, gradient: Approximation) -> tuple[Approximation, dict[str, Approximation]]:
    """The gradients of "q" or "k" and of parameters, per query head, for that of its operand [B, Hq, S, D]."""
    c = gradient.contract
    score, (q, k, p) = x.score, _given(x, c)
    q, k = (of.changed(finite) for of in (q, k))
    operand: Operand = {"q": score.queries, "k": score.keys}[name]
    return operand.pull(
        RunningErrors(c),
        {"q": q, "k": k}[name],
        p,
        term("the store of the gradient of an operand", stored(gradient), gradient),
    )


def _given(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """q, k, the parameters by name, and the rotations of operands; kv heads repeated."""
    problem, form = x.problem, term("the format of q and k", FORMATS[x.problem.dtype], c.stages.multiplicands.format)
    q, k = (given(c, tensor, form) for tensor in (problem.q, repeated_keys(problem)))
    return q, k, parameters_given(x, c)


def parameters_given(x: Intermediates, c: ResolvedContract) -> dict[str, Any]:
    """The parameters by name, [B, Hq, .., ..], and the rotations of operands."""
    problem, tensors = x.problem, parameters_of(x.problem).items()
    p = {
        name: given(
            c, tensor, term("the formats of parameters", FORMATS[problem.dtype_of(name)], c.stages.multiplicands.format)
        )
        for name, tensor in tensors
    }
    return p | rotations_of(problem)


@kept
@np.errstate(all="ignore")
def pair_error(x: Intermediates, c: ResolvedContract, *, shared: bool = True) -> np.ndarray | None:
    """Error of what each pair of operands becomes, [B, Hq, Sq, Sk]; None of their product.

    With the errors of the operands, which are ``shared`` by all that reads them, or without.
    """
    pairs = x.score.pairs
    if pairs is None:
        return None
    q, k, p = _entering(x, c)
    if not shared:
        q, k = (replace(of, error=np.zeros(of.error.shape)) for of in (q, k))
    return pairs.value(RunningErrors(c), q, k, p).error


@np.errstate(all="ignore")
def pairs_pulled_back(
    x: Intermediates, gradient: Approximation
) -> tuple[Approximation, Approximation, dict[str, Approximation]]:
    """The gradients of q', k' and parameters, per query head, for that of what each pair of them becomes."""
    pairs, (q, k, p) = x.score.pairs, _entering(x, gradient.contract)
    assert pairs is not None
    q, k = (of.changed(finite) for of in (q, k))
    return pairs.pull(RunningErrors(gradient.contract), q, k, p, gradient)


def _entering(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """The operands with their errors, and the parameters.

    Where both are added first they may be one product, of q and k side by side, whose sums are as long as theirs
    together: each passes the other's roundings too.
    """
    errors, form, D = operand_error(x, c), c.stages.operands.format, x.problem.head_dim
    assert errors is not None
    G = growth(*sums(c, "score_accumulation", D, blocks=math.ceil(D / c.matrix_block)))
    sides = (x.q, x.q_size, errors.q), (x.k, x.k_size, errors.k)
    q, k = (Approximation(value, size, e + G * (size + e), form, c) for value, size, e in sides)
    return q, k, _given(x, c)[2]

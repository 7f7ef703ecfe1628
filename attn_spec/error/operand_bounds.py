"""How far the operands of a score, and the gradients of q and k behind them, may lie from the truth under a contract.

q' = f(q, p) and k' = g(k, p) of ``attention.scores``, evaluated with a running error bound. A plain score has none:
its operands are q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.rotations import rotations_of
from attn_spec.attention.scores import Operand, parameters_of, score_of
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.intermediates import Intermediates, finite, kept, repeated_keys
from attn_spec.error.products import sums
from attn_spec.error.roundoff import conversion, growth, rounding
from attn_spec.error.running_error import Approximation, RunningErrors, given
from attn_spec.numbers.formats import FORMATS, Format


@dataclass(frozen=True, eq=False)
class OperandError:
    """Errors of q' [B, Hq, Sq, D] and k' [B, Hq, Sk, D] as they are stored."""

    q: np.ndarray
    k: np.ndarray


def stored_format(x: Intermediates, c: ResolvedContract) -> Format:
    """The format of the operands, before a scale multiplies them."""
    return FORMATS[x.problem.dtype] if score_of(x.problem).plain else c.format("operands")


@kept
@np.errstate(all="ignore")
def operand_error(x: Intermediates, c: ResolvedContract) -> OperandError | None:
    """Errors of the operands, infinite of vectors too short for it; None of a plain score, which has none."""
    score = score_of(x.problem)
    if score.plain:
        return None
    lengths = (np.linalg.norm(given, axis=-1, keepdims=True) for given in (x.problem.q, repeated_keys(x.problem)))
    q, k = (np.where(norm < score.shortest, np.inf, e) for norm, e in zip(lengths, _errors(x, c), strict=True))
    return OperandError(q, k)


@kept
@np.errstate(all="ignore")
def _errors(x: Intermediates, c: ResolvedContract) -> tuple[np.ndarray, np.ndarray]:
    """Errors of q' and k', infinite where an operation could overflow or divide by 0."""
    A, score, (q, k, p) = RunningErrors(c), score_of(x.problem), _given(x, c)
    return _stored(score.queries.value(A, q, p)).error, _stored(score.keys.value(A, k, p)).error


def operands_are_bounded(x: Intermediates, c: ResolvedContract) -> bool:
    """Whether the error of every operand, and so its size, has a bound."""
    errors = operand_error(x, c)
    return errors is None or bool(np.isfinite(errors.q).all() and np.isfinite(errors.k).all())


@np.errstate(all="ignore")
def unknown_operands(x: Intermediates, c: ResolvedContract) -> np.ndarray:
    """bool [B, Hkv]: groups in which an operand of finite numbers may be anything, though nobody sees it.

    An infinity times a score gradient of 0 is NaN. That of a vector of zeros is defined.
    """
    problem = x.problem
    if operand_error(x, c) is None:
        return np.zeros((problem.batch, problem.kv_heads), dtype=bool)
    unknown = []
    for vectors, error in zip((problem.q, repeated_keys(problem)), _errors(x, c), strict=True):
        numbers = np.isfinite(vectors).all(axis=-1) & vectors.any(axis=-1)
        unknown.append((numbers & ~np.isfinite(error).all(axis=-1)).any(axis=-1))
    return np.logical_or(*unknown).reshape(problem.batch, problem.kv_heads, -1).any(axis=-1)


@np.errstate(all="ignore")
def pulled_back(x: Intermediates, name: str, gradient: Approximation) -> tuple[Approximation, dict[str, Approximation]]:
    """The gradients of "q" or "k" and of parameters, per query head, for that of its operand [B, Hq, S, D]."""
    c = gradient.contract
    score, (q, k, p) = score_of(x.problem), _given(x, c)
    q, k = (of.changed(finite) for of in (q, k))
    operand: Operand = {"q": score.queries, "k": score.keys}[name]
    return operand.pull(RunningErrors(c), {"q": q, "k": k}[name], p, _stored(gradient))


def _given(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """q, k, the parameters by name, and the rotations of operands; kv heads repeated."""
    problem, form = x.problem, FORMATS[x.problem.dtype]
    q, k = (given(c, tensor, form) for tensor in (problem.q, repeated_keys(problem)))
    tensors = parameters_of(problem).items()
    p = {name: given(c, tensor, FORMATS[problem.dtype_of(name)]) for name, tensor in tensors}
    return q, k, p | rotations_of(problem)


@kept
@np.errstate(all="ignore")
def pair_error(x: Intermediates, c: ResolvedContract) -> np.ndarray | None:
    """Error of what each pair of operands becomes, [B, Hq, Sq, Sk]; None of their product."""
    pairs = score_of(x.problem).pairs
    if pairs is None:
        return None
    q, k, p = _entering(x, c)
    return pairs.value(RunningErrors(c), q, k, p).error


@np.errstate(all="ignore")
def pairs_pulled_back(
    x: Intermediates, gradient: Approximation
) -> tuple[Approximation, Approximation, dict[str, Approximation]]:
    """The gradients of q', k' and parameters, per query head, for that of what each pair of them becomes."""
    pairs, (q, k, p) = score_of(x.problem).pairs, _entering(x, gradient.contract)
    assert pairs is not None
    q, k = (of.changed(finite) for of in (q, k))
    return pairs.pull(RunningErrors(gradient.contract), q, k, p, gradient)


def _entering(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation, dict[str, Any]]:
    """The operands with their errors, and the parameters.

    Where both are added first they may be one product, of q and k side by side, whose sums are as long as theirs
    together: each passes the other's roundings too.
    """
    errors, form, D = operand_error(x, c), c.format("operands"), x.problem.head_dim
    assert errors is not None
    G = growth(*sums(c, "score_accumulation", D, blocks=math.ceil(D / c.matrix_block)))
    sides = (x.q, x.q_size, errors.q), (x.k, x.k_size, errors.k)
    q, k = (Approximation(value, size, e + G * (size + e), form, c) for value, size, e in sides)
    return q, k, _given(x, c)[2]


def _stored(x: Approximation) -> Approximation:
    """A finished operand in its format."""
    cast, kept = conversion(x.contract, "operands", x.form), rounding(x.contract, "operands")
    error = x.error + growth((cast.u, 1)) * (x.size + x.error) + kept.eta
    fits = 2 * (x.size + error) < x.contract.largest("operands", "multiplicands")
    return replace(x, error=np.where(fits, error, np.inf), form=x.contract.format("operands"))

"""How far the operands of a score, and the gradients of q and k behind them, may lie from the truth under a contract.

q' = f(q, p) and k' = g(k, p) of ``attention.scores``, evaluated with a running error bound. A plain score has none:
its operands are q and k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attn_spec.attention.scores import Operand, score_of
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.intermediates import Intermediates, kept, repeated_keys
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
    A, (q, k, p) = RunningErrors(c), _given(x, c)
    errors = (_stored(operand.value(A, x, p)).error for operand, x in ((score.queries, q), (score.keys, k)))
    of_q, of_k = (np.where(_norm(x) < score.shortest, np.inf, e) for x, e in zip((q, k), errors, strict=True))
    return OperandError(of_q, of_k)


@np.errstate(all="ignore")
def pulled_back(x: Intermediates, name: str, gradient: Approximation) -> Approximation:
    """The gradient of "q" or "k", per query head, for that of its operand [B, Hq, S, D]."""
    c = gradient.contract
    score, (q, k, p) = score_of(x.problem), _given(x, c)
    operand: Operand = {"q": score.queries, "k": score.keys}[name]
    return operand.pull(RunningErrors(c), {"q": q, "k": k}[name], p, _stored(gradient))


def _given(x: Intermediates, c: ResolvedContract) -> tuple[Approximation, Approximation, Approximation]:
    """q, k and the parameter, kv heads repeated."""
    problem, form = x.problem, FORMATS[x.problem.dtype]
    q, k = (given(c, tensor, form) for tensor in (problem.q, repeated_keys(problem)))
    own = FORMATS[problem.dtype_of(problem.score_option or "q")]
    return q, k, given(c, score_of(problem).parameter(problem), own)


def _norm(x: Approximation) -> np.ndarray:
    return np.linalg.norm(x.value, axis=-1, keepdims=True)


def _stored(x: Approximation) -> Approximation:
    """A finished operand in its format."""
    cast, kept = conversion(x.contract, "operands", x.form), rounding(x.contract, "operands")
    error = x.error + growth((cast.u, 1)) * (x.size + x.error) + kept.eta
    fits = 2 * (x.size + error) < x.contract.largest("operands", "multiplicands")
    return replace(x, error=np.where(fits, error, np.inf), form=x.contract.format("operands"))

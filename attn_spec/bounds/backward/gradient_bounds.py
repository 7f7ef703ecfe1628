"""Bounds on the error of each element of dQ, dK, dV, dBias and dSinks under a contract.

With dS, dA and P the gradients of the scores and the weights (``score_gradient_bounds``) and dO the cotangent,

    dQ = sigma dS k    dK = sigma dS^T q    dV = P^T dO    dBias = dA summed over the broadcast axes
    dSinks = dA of the sink summed over rows, and over the axes along which the sinks are broadcast

(Dao et al., FlashAttention, NeurIPS 2022, appendix B.2). Each bound propagates the errors of its factors; products
and sums are the theorems of ``bounds``. Absolute terms (underflow) accompany every rounding: they are what decides
near zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.bounds.backward.gradient_domain import sums_fit
from attn_spec.bounds.backward.gradient_key_sums import GroupSums, bias_sums, key_sums, sink_sums, widest_of_group
from attn_spec.bounds.backward.gradient_products import dk_error, dkv_error, dq_error, product_growth
from attn_spec.bounds.backward.gradient_sums import last_cast
from attn_spec.bounds.backward.operand_gradients import operand_errors
from attn_spec.bounds.backward.option_gradient_bounds import bias_error
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError, score_gradient_error
from attn_spec.bounds.backward.value_gradient_bounds import dv_error, value_growth
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, INFLATION, amplification, evaluation_alpha
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.operand_bounds import (
    arriving,
    heads_contract,
    operand_error,
)
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard, term, times
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import OF_KEYS, QUANTITIES

#: The arithmetic of ``gradient_intermediates``: float64, weights stored by the forward pass.
GRADIENT_EVALUATION: ResolvedContract = replace(
    EVALUATION, backward_weights="stored", delta="probabilities", normalize="before_product"
)


#: Errors of gradients of a layer's projections and of v, by name, from those of scores and of v of each head.
OfLayer = Callable[[ScoreGradientError, ResolvedContract, Approximation], dict[str, np.ndarray]]


@dataclass(frozen=True)
class GradientBound:
    """The largest errors allowed, and the rows and keys for which the domain holds."""

    #: Allowed error of each gradient, by name.
    allowed: dict[str, np.ndarray]
    #: Error of X = dP - D + dL, [B, Hq, Sq, Sk].
    E_X: np.ndarray
    #: Queries whose dQ is in the domain, bool [B, heads of dQ, Sq]; keys whose dK and dV are, bool [B, Hkv, Sk].
    rows: np.ndarray
    keys: np.ndarray
    #: True if all rows are in the domain, and so is what is a sum over rows, keys and heads.
    whole: bool

    def domain_of(self, name: str) -> np.ndarray:
        """Return where the domain holds, broadcastable to the gradient.

        That of an option is a sum of terms of any rows and heads: it is inside where all are and cannot overflow.
        """
        finite = np.isfinite(self.allowed[name])
        match QUANTITIES[name].gradient_of:
            case "q":
                return guard("queries outside the domain", self.rows[..., None], True) & finite
            case "k" | "v":
                return guard("keys outside the domain", self.keys[..., None], True) & finite
        return finite & guard("rows outside the domain that add to the gradient of an option", self.whole, True)


@np.errstate(all="ignore")
def gradient_bound(
    forward: Intermediates,
    grad: GradientIntermediates,
    contract: ResolvedContract,
    slack: GradientBound | None = None,
    of_layer: OfLayer | None = None,
) -> GradientBound:
    """Return the bound under one reading of a resolved contract, see :func:`readings.gradient_readings`.

    ``slack`` bounds the errors of ``forward`` and ``grad`` (default: none); ``of_layer`` finds those of the projections
    of a layer, ``None`` of another problem.
    """
    inner_contract, grad = heads_contract(forward, contract), arriving(forward, grad, contract)
    with_sink = score_gradient_error(forward, grad, inner_contract, 0.0 if slack is None else slack.E_X)
    errors = with_sink.of_keys
    evaluated = {} if slack is None else slack.allowed
    plain, per_head = operand_error(forward, inner_contract) is None, key_sums(errors)
    sums = per_head.over_group(forward)
    unfinished = (
        {"dq": dq_error(errors, evaluated.get("dq", 0.0)), "dk": dk_error(forward, inner_contract, sums)}
        if plain
        else operand_errors(errors, per_head)
    )
    dv = dv_error(forward, inner_contract, per_head if forward.problem.projects else sums)
    unfinished |= {"dv": dv.error} if of_layer is None else of_layer(errors, contract, dv)
    if "dkv" in grad.gradients:
        # The theorem knows no sizes of terms where formulas of the keys come between these and dK.
        unknown = np.full(unfinished["dk"].shape, np.inf)
        unfinished["dkv"] = dkv_error(forward, inner_contract, sums) if plain else unknown
    if "dbias" in grad.gradients:
        unfinished["dbias"] = bias_error(forward, inner_contract, bias_sums(errors), sums.raised)
    if "dsinks" in grad.gradients:
        unfinished["dsinks"] = bias_error(forward, inner_contract, sink_sums(with_sink), sums.raised)
    finished: dict[str, np.ndarray] = {}
    for name, value in grad.gradients.items():
        size = np.abs(value) + evaluated.get(name, 0.0)
        alpha = widest_of_rows(errors) if name == "dq" else sums.alpha
        finished[name] = finished_error(forward.problem, contract, name, unfinished[name], size=size, alpha=alpha)
    rows, keys, whole = rows_in_domain(errors), keys_in_domain(forward, inner_contract, sums), bool(errors.inside.all())
    if forward.problem.projects:
        rows = np.all(rows, axis=1, keepdims=True)
    return GradientBound(finished, E_X=with_sink.E_X, rows=rows, keys=keys, whole=whole)


def widest_of_rows(errors: ScoreGradientError) -> np.ndarray:
    """Return the largest error of a weight's own evaluation in each row of dQ, [B, heads of dQ, Sq]."""
    alpha = evaluation_alpha(errors.near)
    return alpha.max(axis=1, keepdims=True, initial=0.0) if errors.forward.problem.projects else alpha


def rows_in_domain(errors: ScoreGradientError) -> np.ndarray:
    """Return the queries [B, Hq, Sq] for whose dQ no intermediate result can overflow."""
    sums = (np.abs(errors.grad.dS) + errors.E_dS) @ errors.forward.k_size
    return errors.inside & guard(
        "sums of dq that overflow",
        sums_fit(
            errors.forward, errors.contract, sums, product_growth(errors.forward, errors.contract, errors.forward.keys)
        ),
        True,
    )


def keys_in_domain(forward: Intermediates, contract: ResolvedContract, sums: GroupSums) -> np.ndarray:
    """Keys [B, Hkv, Sk] of which nothing that makes their dK and dV can overflow; all rows of the group add to each.

    A row that does not see a key adds 0 to it, which an infinity or NaN of that row is not, multiplied by 0.
    """
    inside = guard("rows outside the domain that add to dk", sums.inside[..., None], True) & guard(
        "sums of dk that overflow",
        sums_fit(forward, contract, sums.k_sums.total, product_growth(forward, contract, sums.k_sums.n)),
        True,
    )
    return inside & guard(
        "sums of dv that overflow",
        sums_fit(forward, contract, sums.v_sums.total, value_growth(forward, contract, sums.v_sums.n), last=1.0),
        True,
    )


@np.errstate(all="ignore")
def finished_error(
    problem: Problem, contract: ResolvedContract, name: str, error: np.ndarray, *, size: np.ndarray, alpha: np.ndarray
) -> np.ndarray:
    """Return the error of a gradient after its cast, infinite where it could overflow.

    ``error`` is that before, of numbers of ``size`` at most; ``alpha`` [B, heads] or [B, heads, rows] is the largest
    error of a weight's own evaluation in the rows that a gradient sums.
    """
    dtype = problem.dtype_of(name[1:], contract.gradients)
    out = last_cast(contract, dtype)
    total = (
        (error + term("a gradient's cast", out.u * (size + error)) + term("underflow of a gradient's cast", out.eta))
        * times("the weights' evaluation in gradients", _widening(alpha, name, error.shape))
        * times("the evaluation of gradients in float64", INFLATION)
    )
    return np.where(
        size + total <= contract.largest(dtype), total, term("a NaN bound of a gradient is infinite", np.inf)
    )


def _widening(alpha: np.ndarray, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Factor for the error of the weights' own evaluation: [B or 1, 1 or heads, 1 or rows, 1]."""
    if QUANTITIES[name].gradient_of in OPTIONS:  # a sum over heads, or of each: the largest of all bounds both
        alpha = alpha.max(axis=1 if shape[0] > 1 else None, initial=0.0, keepdims=True)
    factor = np.exp(np.minimum(16 * alpha, 700.0))
    return factor.reshape(*factor.shape, *(1,) * (4 - factor.ndim))


@memoized
@np.errstate(all="ignore")
def gradient_evaluation_error(
    forward: Intermediates, grad: GradientIntermediates, of_layer: OfLayer | None = None
) -> GradientBound:
    """Error of the float64 gradients themselves, as :func:`bounds.evaluation_error`."""
    alpha = evaluation_alpha(without_far_keys(forward, GRADIENT_EVALUATION))
    bound = gradient_bound(forward, grad, GRADIENT_EVALUATION, of_layer=of_layer)
    amplify = dict.fromkeys(bound.allowed, amplification(alpha.max(initial=0.0)))
    if not forward.problem.projects:  # a row of dQ is made of that row alone, dK and dV of the rows of their heads
        amplify["dq"] = times("the evaluation of a row of dq", amplification(alpha)[..., None])
        of_keys = amplification(widest_of_group(forward.problem, alpha.max(axis=-1, initial=0.0)))[..., None, None]
        amplify |= {name: of_keys for name in OF_KEYS if name in amplify}
    allowed = {name: error * amplify[name] for name, error in bound.allowed.items()}
    return replace(bound, allowed=allowed, E_X=bound.E_X * amplification(alpha)[..., None])

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

from attn_spec.attention.arithmetic import FLOATS, by_pair
from attn_spec.attention.scores import parameters_of
from attn_spec.attention.terms import divisor
from attn_spec.bounds.backward.gradient_domain import sums_fit
from attn_spec.bounds.backward.gradient_key_sums import GroupSums, KeySums, ProductSums, bias_sums, key_sums, sink_sums
from attn_spec.bounds.backward.gradient_sums import (
    accumulated,
    added_up,
    last_cast,
    stored_sums,
    sum_eta,
    summed_over_group,
)
from attn_spec.bounds.backward.latent_gradients import key_gradient_error
from attn_spec.bounds.backward.option_gradient_bounds import bias_error, parameter_errors
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError, score_gradient_error
from attn_spec.bounds.backward.value_gradient_bounds import dv_error, value_growth
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.forward.product_bounds import last_factor, operand_entry, operand_format, operand_scaling
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, INFLATION, amplification, evaluation_alpha
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates, finite
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.operand_bounds import (
    arriving,
    heads_contract,
    operand_error,
    pairs_pulled_back,
    pulled_back,
    unknown_operands,
)
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import number_of_products, rounding_on_entry, skipped_pieces
from attn_spec.contract.roundoff import gamma, is_power_of
from attn_spec.contract.terms import count, guard, stands, term, times
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.quantities import QUANTITIES

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
        else _operand_errors(errors)
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
    if not plain:
        of_queries, of_keys = unknown_operands(forward, contract)
        rows = rows & ~of_queries & ~of_keys.any(axis=-1, keepdims=True)
        grouped = (
            forward.over_group(of_keys) > 0,
            forward.over_group(np.any(of_queries, axis=-1, keepdims=True))[..., 0] > 0,
        )
        keys = keys & ~grouped[0] & ~grouped[1][..., None]
        whole = whole and not (of_queries.any() or of_keys.any())
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

    ``error`` is that before, of numbers of ``size`` at most; ``alpha`` [B] or [B, heads, rows] is the largest error of
    a weight's own evaluation in the rows that a gradient sums.
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
    if QUANTITIES[name].gradient_of in OPTIONS and shape[0] == 1:
        alpha = alpha.max(initial=0.0, keepdims=True)
    factor = np.exp(np.minimum(16 * alpha, 700.0))
    return factor[..., None] if factor.ndim == 3 else factor[:, None, None, None]


@memoized
@np.errstate(all="ignore")
def gradient_evaluation_error(
    forward: Intermediates, grad: GradientIntermediates, of_layer: OfLayer | None = None
) -> GradientBound:
    """Error of the float64 gradients themselves, as :func:`bounds.evaluation_error`."""
    alpha = evaluation_alpha(without_far_keys(forward, GRADIENT_EVALUATION))
    amplify, bound = (
        amplification(alpha.max(initial=0.0)),
        gradient_bound(forward, grad, GRADIENT_EVALUATION, of_layer=of_layer),
    )
    allowed = {name: error * amplify for name, error in bound.allowed.items()}
    if not forward.problem.projects:  # a row of dQ is made of that row alone
        allowed["dq"] = bound.allowed["dq"] * times("the evaluation of a row of dq", amplification(alpha)[..., None])
    return replace(bound, allowed=allowed, E_X=bound.E_X * amplification(alpha)[..., None])


def dq_error(errors: ScoreGradientError, slack: np.ndarray | float) -> np.ndarray:
    """sigma sum_j dS_ij k_j: [.., Sq, D].

    What the errors dS_j of a row have in common is summed with the signs of k.
    """
    size, k = errors.forward.k_size, errors.forward.k
    together = errors.E_dS @ size
    sigma = abs(errors.forward.problem.scale_value)
    kept = np.abs(errors.grad.dS @ k) + (slack / sigma if sigma else 0.0)
    # The sum of P k is itself evaluated in float64, from P with its own error.
    evaluated = np.expm1(4 * evaluation_alpha(errors.near))[..., None] + max(2.0**-40, k.shape[-2] * 2.0**-52)
    shared = np.abs(errors.P_slope @ k) + term("the evaluation of P k", evaluated * (errors.P_slope @ size))
    apart = (
        term("keys' own errors in dq", errors.own @ size)
        + term("the row's weights in dq", errors.G * kept)
        + term("delta in dq", errors.E_D * shared)
    )
    dS_size = np.abs(errors.grad.dS) + errors.E_dS
    sums = ProductSums(
        own=np.fmin(together, apart),
        total=dS_size @ size,
        seen=errors.forward.visible @ size,
        early=errors.early @ size,
        entered=dS_size.sum(-1, keepdims=True),
        n=errors.forward.keys,
    )
    return _product_error(errors.forward, errors.contract, sums, errors.forward.largest_factor)


def dk_error(forward: Intermediates, contract: ResolvedContract, sums: KeySums) -> np.ndarray:
    """sigma sum over queries and the head group of dS_ij q_i: [B, Hkv, Sk, D]."""
    return _product_error(forward, contract, sums.k_sums, sums.raised)


def dkv_error(forward: Intermediates, contract: ResolvedContract, sums: KeySums) -> np.ndarray:
    """Error of dK + [dV, 0] of a plain score: [B, Hkv, Sk, D]."""
    sigma, form = forward.problem.scale_value, contract.stages.gradient_accumulation.format
    error = dk_error(forward, contract, sums)
    dk = Approximation(sigma * sums.of_k, abs(sigma) * sums.k_sums.total, error, form, contract)
    return key_gradient_error(contract, dk, dv_error(forward, contract, sums), sums.k_sums.n)


def _operand_errors(errors: ScoreGradientError) -> dict[str, np.ndarray]:
    """Errors of dQ, of dK and of the gradients of parameters, behind operands that are formulas of q and of k."""
    if errors.forward.score.pairs is None:
        of_q, of_k, of_parameters = _operand_gradient(errors, "q"), _operand_gradient(errors, "k"), {}
    else:
        of_q, of_k, of_parameters = _of_pairs(errors)
    (dq, by_queries), (dk, by_keys) = _pulled_together(errors, "q", of_q), _pulled_together(errors, "k", of_k)
    projects, width = errors.forward.problem.projects, errors.forward.q.shape[-1]
    of_inputs = {  # heads of a layer read one q, and one product of all of them makes its gradient
        "dq": summed_over_group(errors.forward, errors.contract, dq, times("widths of heads in sums of dq", width))
        if guard("sums of dq over heads", projects, False)
        else dq.error,
        "dk": summed_over_group(
            errors.forward, errors.contract, dk, times("widths of heads in sums of dk", width if projects else 1)
        )
        if stands("sums of dk over heads")
        else errors.forward.over_group(dk.error),
    }
    return of_inputs | parameter_errors(errors, of_parameters | by_queries | by_keys)


def _pulled_together(
    errors: ScoreGradientError, name: str, of: Approximation
) -> tuple[Approximation, dict[str, Approximation]]:
    """:func:`operand_bounds.pulled_back`, where an error of dS_ij moves all columns of the operand's gradient together.

    If that gradient is multiplied by a matrix M, sum_j e_ij k'_j makes sum_j e_ij (k'_j M) of the errors e of dS, which
    is at most |e| |k' M|, and not |e| |k'| |M|, of columns apart. What is no product has slopes for k'.
    """
    forward, parameters = errors.forward, parameters_of(errors.forward.problem)
    pulled, by_parameters = pulled_back(forward, name, of)
    matrix = {"q": forward.score.queries, "k": forward.score.keys}[name].pulls_by
    if matrix is None:
        return pulled, by_parameters
    M, e = matrix(parameters), errors.E_dS
    if forward.score.pairs is None:
        (e, other) = (e.swapaxes(-1, -2), forward.q) if name == "k" else (e, forward.k)
        apart, together = (e @ of_each for of_each in _moved_by(other, M))
    else:
        slopes = forward.score.pairs.slopes(FLOATS, finite(forward.q), finite(forward.k), parameters)
        axis = {"q": -2, "k": -3}[name]
        of_pairs = (by_pair(of_each, forward.q, forward.k) for of_each in _moved_by(slopes, M))
        apart, together = ((e[..., None] * of_each).sum(axis=axis) for of_each in of_pairs)
    less = abs(forward.problem.scale_value) * np.maximum(apart - together, 0.0)
    error = np.where(np.isfinite(pulled.error), pulled.error - less, np.inf)
    return replace(pulled, error=error), by_parameters


def _moved_by(vectors: np.ndarray, M: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|x| |M| and |x M|, with the error of its evaluation."""
    apart = np.abs(vectors) @ np.abs(M)
    return apart, np.abs(vectors @ M) + term("the evaluation of a product with a matrix", 2.0**-40 * apart)


def _operand_gradient(errors: ScoreGradientError, name: str) -> Approximation:
    """Return the gradient of the operand "q" or "k" per query head: a product with the other operand and its error."""
    forward, dS_size, operands = (
        errors.forward,
        np.abs(errors.grad.dS) + errors.E_dS,
        operand_error(errors.forward, errors.contract),
    )
    assert operands is not None
    size, off, n, of = (forward.k_size, operands.E_k, forward.keys, errors.grad.of_q)
    E_dS, seen, early = errors.E_dS, forward.visible, errors.early
    if name == "k":
        dS_size, E_dS, seen, early = (each.swapaxes(-1, -2) for each in (dS_size, E_dS, seen, early))
        size, off, n, of = (
            forward.q_size,
            operands.E_q,
            forward.problem.per_query_head(_queries(forward)),
            errors.grad.of_k,
        )
    off = np.where(np.any(seen, axis=-2)[..., None], off, 0.0)  # of what nobody sees nothing need be known
    sums = ProductSums(
        own=term("errors of dS in the gradient of an operand", E_dS @ size)
        + term("errors of the other operand", dS_size @ off),
        total=dS_size @ (size + term("errors of the other operand in sizes", off)),
        seen=seen @ (size + term("errors of the other operand in underflow", off)),
        early=early @ (size + term("errors of the other operand in early underflow", off)),
        entered=dS_size.sum(-1, keepdims=True),
        n=n,
    )
    error = _product_error(forward, errors.contract, sums, forward.largest_factor)
    value, total = forward.problem.scale_value * of, abs(forward.problem.scale_value) * (dS_size @ size)
    return Approximation(value, total, error, errors.contract.stages.gradient_accumulation.format, errors.contract)


def _of_pairs(errors: ScoreGradientError) -> tuple[Approximation, Approximation, dict[str, Approximation]]:
    """Gradients of the operands "q" and "k" and of parameters, per query head, of a score that is no product of them.

    The scale multiplies dS, or what is made of it: as in :func:`_product_error`.
    """
    forward, contract, sigma = errors.forward, errors.contract, abs(errors.forward.problem.scale_value)
    work, stored = contract.stages.score_accumulation, contract.stages.stored_scores
    narrowed = stored.of(work.format).u
    size, error = sigma * (np.abs(errors.grad.dS) + errors.E_dS), sigma * errors.E_dS + errors.early
    error = (
        error
        + gamma(
            (work.u, _last_roundings(forward)),
            (narrowed, 1),
            *term("1 / (1 - p) at the end of other scores", late_roundings(forward, contract), ()),
        )
        * size
    )
    tiny = (
        2
        * times("underflow in other scores, raised", forward.largest_factor)
        * last_factor(forward)
        * (stored.eta + work.eta)
    )
    error = np.where(forward.visible, error + tiny, 0.0)
    value = forward.problem.scale_value * errors.grad.dS
    gradient = Approximation(value, np.abs(value), error, contract.stages.stored_scores.format, contract)
    of_q, of_k, of_p = pairs_pulled_back(forward, gradient)
    Sq, Sk = forward.s.shape[-2:]
    return added_up(of_q, contract, Sk), added_up(of_k, contract, Sq), of_p


def _product_error(forward: Intermediates, contract: ResolvedContract, sums: ProductSums, raised: float) -> np.ndarray:
    """Error of a product of dS with k or q: errors of dS, then accumulation, scaling and storing.

    Dropout raises a weight by ``raised`` at most.

    The scale costs three roundings: two of the constant, one of the product. So does a divisor c, where the slope
    was multiplied by sigma / c: its inverse, the quotient and a second product (c itself cancels). Dropout may
    have its factor 1 / (1 - p) here, see ``dropout_bounds``.
    """
    n, sigma, G = sums.n, abs(forward.problem.scale_value), product_growth(forward, contract, sums.n)
    operand, scaled = operand_entry(forward, contract), operand_scaling(forward, contract)
    work, tiny_sum, dS_entry = (
        contract.stages.score_accumulation,
        sum_eta(contract),
        rounding_on_entry(contract, contract.stages.score_gradients.format),
    )
    unscaled = (
        term("the error of dS in dq and dk", sums.own)
        + term("roundings of dq and dk", G * sums.total)
        + term(
            "underflow of dS on entry",
            times("roundings make the underflow of dS grow", 1 + G)
            * dS_entry.eta
            * sums.seen
            * times("underflow of dS on entry, raised", raised),
        )
    )
    stores, partial = stored_sums(contract, n)
    tiny = term(
        "underflow of dq's and dk's sums",
        tiny_sum * count("several underflows of dq's and dk's sums", 4) * number_of_products(contract, n),
    ) + term(
        "underflow of dq's and dk's stores",
        partial.eta * 2 * (stores + term("underflow of stored products of dq and dk", n * (partial.u > 0))),
    )
    factor = times("underflow of sums of dq and dk, raised", raised) * last_factor(forward)
    entering = term(
        "underflow of operands in dq and dk",
        (
            term("underflow of operands on entry in dq and dk", operand.eta)
            + term("underflow of scaled operands in dq and dk", scaled.eta)
        )
        * (sigma * sums.entered + term("underflow of both factors of dq and dk", factor * n * dS_entry.eta)),
    ) + term("underflow of a dS that is scaled early", sums.early)
    return (
        sigma * unscaled
        + times("roundings make underflow grow in dq and dk", 1 + G) * entering
        + term("all underflow of dq's and dk's sums", times("a scale that magnifies underflow", factor) * tiny)
        + term("underflow of the last scale", work.eta)
    )


def product_growth(forward: Intermediates, contract: ResolvedContract, n: np.ndarray) -> np.ndarray:
    """Relative error of a sum of n products of dS with k or q, after its scale; ``forward`` is a row of the problem."""
    # The product may reuse the q or k that the forward pass had scaled before entry.
    operand, scaled = operand_entry(forward, contract), operand_scaling(forward, contract)
    gradients, work = contract.stages.score_gradients.format, contract.stages.score_accumulation
    dS_entry, missing = (
        rounding_on_entry(contract, gradients),
        skipped_pieces(contract, gradients, operand_format(forward, contract)),
    )
    last = _last_roundings(forward)
    widened = work.of(contract.stages.gradient_accumulation.format)
    last = last + term("the root that is left for the last scale", 2 if scaled.u else 0)
    scaling = (
        (scaled.u, count("the operand that was scaled for dq and dk", 1)),
        (widened.u, count("storing dq and dk before their scale", 1)),
        (work.u, term("all roundings of the last scale", last)),
    )
    late = late_roundings(forward, contract)
    return gamma(
        (operand.u, count("the scaled operand's entry in dq and dk", 1)),
        (dS_entry.u, count("the entry of dS", 1)),
        (missing, count("pieces left out of dq and dk", 1)),
        *term("1 / (1 - p) at the end of dq and dk", late, ()),
        *term("scaling in dq and dk", scaling, ()),
        *term("sums of dq and dk", accumulated(contract, n), ()),
    )


def _last_roundings(forward: Intermediates) -> int:
    """Return the roundings of the scale, and of a divisor of scores: none of powers of 2."""
    constants = (
        abs(forward.problem.scale_value),
        times("the softcap as the last factor", divisor(forward.problem) or 1.0),
    )
    return count("roundings of the last scale", 3) * sum(not is_power_of(2, constant) for constant in constants)


def _queries(forward: Intermediates) -> np.ndarray:
    """Count the queries of the head group that see each key, [B, Hkv, Sk, 1]."""
    return forward.over_group(forward.visible.sum(axis=-2)[..., None])

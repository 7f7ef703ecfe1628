"""Gradients of q and of k behind operands that are formulas of these: rotary positions, units of a cosine, a layer.

The gradient of an operand is a product of dS with the other one, which has an error of its own. The formula's gradient
makes that of q or of k of it, for each query head; then heads that share a key are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attn_spec.attention.arithmetic import FLOATS, by_pair
from attn_spec.attention.scores import parameters_of
from attn_spec.bounds.backward.gradient_key_sums import GroupSums, HeadSums, Keys, KeySums, ProductSums, operand_sums
from attn_spec.bounds.backward.gradient_products import dq_error, last_roundings, product_error
from attn_spec.bounds.backward.gradient_sums import added_up, summed_over_group, summed_over_heads
from attn_spec.bounds.backward.option_gradient_bounds import parameter_errors
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.forward.product_bounds import last_factor
from attn_spec.bounds.intermediates import Intermediates, finite
from attn_spec.bounds.operand_bounds import operand_error, pairs_pulled_back, pulled_back
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, stands, term, times


def dq_error_of_rows(errors: ScoreGradientError, slack: np.ndarray | float) -> np.ndarray:
    """Error of dQ, of operands that are q and k or formulas of them, of a score that is their product."""
    if operand_error(errors.forward, errors.contract) is None:
        return dq_error(errors, slack)
    return _pulled_together(errors, "q", _operand_gradient(errors, "q"))[0].error


def operand_errors(errors: ScoreGradientError, sums: HeadSums) -> dict[str, np.ndarray]:
    """Errors of dQ, of dK and of the gradients of parameters, behind operands that are formulas of q and of k."""
    if errors.forward.score.pairs is None:
        of_q, of_k, of_parameters = _operand_gradient(errors, "q"), _operand_gradient(errors, "k", sums), {}
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


def _operand_gradient(errors: ScoreGradientError, name: str, sums: HeadSums | None = None) -> Approximation:
    """Return the gradient of the operand "q", or "k" by its ``sums``, per query head, and its error."""
    forward, grad = errors.forward, errors.grad
    if sums is None:
        value, size = grad.of_q, (np.abs(grad.dS) + errors.E_dS) @ forward.k_size
        return _scaled(forward, errors.contract, operand_sums(errors, name), (value, size), forward.largest_factor)
    assert sums.of_operand is not None
    queries = forward.over_group(sums.of_operand.n)
    return _gradient_of_keys(forward, errors.contract, sums, queries, forward.largest_factor)


def _gradient_of_keys(
    forward: Intermediates, contract: ResolvedContract, sums: KeySums, queries: np.ndarray, raised: float
) -> Approximation:
    """Return the gradient of the operand of keys from the sums of a head, or of each.

    ``queries`` counts those of the head group that see each key, [B, Hkv, keys, 1].
    """
    assert sums.of_operand is not None
    of_group = replace(sums.of_operand, n=forward.problem.per_query_head(queries))
    return _scaled(forward, contract, of_group, (sums.of_k, sums.k_sums.total), raised)


def _scaled(
    forward: Intermediates,
    contract: ResolvedContract,
    sums: ProductSums,
    products: tuple[np.ndarray, np.ndarray],
    raised: float,
) -> Approximation:
    """Return the gradient of an operand: the scale times a product with the other operand, of this value and size."""
    error, sigma = product_error(forward, contract, sums, raised), forward.problem.scale_value
    form = contract.stages.gradient_accumulation.format
    return Approximation(sigma * products[0], abs(sigma) * products[1], error, form, contract)


def dk_error_of_heads(
    forwards: Sequence[Intermediates], contract: ResolvedContract, sums: Sequence[GroupSums], keys: Keys
) -> np.ndarray:
    """Error of dK of some keys, formulas of which are the operand, from the sums over all rows of each query head.

    A kernel may pull the gradient of the operand back for each head, or once for the head group.
    """
    queries = np.asarray(sum(of.of_operand.n for of in sums if of.of_operand is not None))
    raised, pulled = max(of.raised for of in sums), []
    for forward, of in zip(forwards, sums, strict=True):
        of_head = _gradient_of_keys(forward, contract, of, queries, raised)
        pulled.append(pulled_back(forward, "k", of_head.changed(partial(of_all_keys, forward, keys)))[0])
    value, size, error = (
        np.sum([getattr(one, name)[:, :, keys] for one in pulled], axis=0) for name in ("value", "size", "error")
    )
    return summed_over_heads(contract, Approximation(value, size, error, pulled[0].form, contract), len(pulled))


def of_all_keys(forward: Intermediates, keys: Keys, of_some: np.ndarray) -> np.ndarray:
    """Return numbers [.., Sk, D] that are 0 but for those of some ``keys``."""
    found = np.zeros((*of_some.shape[:2], forward.problem.key_length, *of_some.shape[3:]))
    found[:, :, keys] = of_some
    return found


def _of_pairs(errors: ScoreGradientError) -> tuple[Approximation, Approximation, dict[str, Approximation]]:
    """Gradients of the operands "q" and "k" and of parameters, per query head, of a score that is no product of them.

    The scale multiplies dS, or what is made of it: as in :func:`product_error`.
    """
    forward, contract, sigma = errors.forward, errors.contract, abs(errors.forward.problem.scale_value)
    work, stored = contract.stages.score_accumulation, contract.stages.stored_scores
    narrowed = stored.of(work.format).u
    size, error = sigma * (np.abs(errors.grad.dS) + errors.E_dS), sigma * errors.E_dS + errors.early
    error = (
        error
        + gamma(
            (work.u, last_roundings(forward)),
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

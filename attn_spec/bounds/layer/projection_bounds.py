"""Bounds on the errors of a layer's output, and of the gradients behind its projections, under a contract.

    v' = W_V v + b_V        out = b_O + sum_h W_O o_h        dO_h = W_O^T dOut        dW_O = dOut^T o_h

Vaswani et al., "Attention is all you need" (2017), section 3.2.2. Heads are judged by the theorems of attention, which
are told how far their operands, values and cotangents may be off. A projection rounds as the operands of a score do:
its sums as those of scores, its results as operands; and so are the outputs of heads stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.attention.scores import parameters_of
from attn_spec.bounds.backward.gradient_sums import summed_over_group
from attn_spec.bounds.backward.option_gradient_bounds import parameter_errors
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError
from attn_spec.bounds.forward import bounds
from attn_spec.bounds.forward.bounds import ForwardBound, exact_output_error
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, INFLATION
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import memoized
from attn_spec.bounds.operand_bounds import heads_contract, parameters_given, values_pulled_back
from attn_spec.bounds.running_error import Approximation, RunningErrors, finished, given, stored
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import standing, stands, term, times


@np.errstate(all="ignore")
def layer_bound(
    forward: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """Return the bound of a layer under a resolved contract; an interval of its output bounds no output of a head."""
    del o, slack
    off = bounds.evaluation_error(forward).allowed["output"]
    W = parameters_given(forward, contract)["output_projection"].value
    heads = bounds.forward_bound(
        forward, heads_contract(forward, contract), forward.O, np.where(np.isfinite(off), off, 0.0), W
    )
    return _joined(forward, contract, heads)


@memoized
@np.errstate(all="ignore")
def evaluation_error(forward: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves."""
    return _joined(forward, EVALUATION, bounds.evaluation_error(forward))


def _joined(forward: Intermediates, contract: ResolvedContract, heads: ForwardBound) -> ForwardBound:
    """Return the bound of the output [B, 1, Sq, O] from the bound of the heads.

    It is one product, of the outputs of all heads side by side with all W_O. Or it is a product for each head, and
    their sum, which b_O may begin: all of these may be stored, and so may the sum after each head.

    An error of a weight moves all columns of a head's output together: W_O e is at most ``heads.projected``, where
    |W_O| |e|, of columns apart, would be more.
    """
    error = np.where(forward.keys == 0, 0.0, term("errors of heads in the output of a layer", heads.allowed["output"]))
    together = 0.0
    if heads.projected is not None:
        W = np.abs(parameters_given(forward, contract)["output_projection"].value).swapaxes(-1, -2)
        apart = error @ W - term("what a projection makes of errors", np.where(forward.keys == 0, 0.0, heads.projected))
        together = np.maximum(apart, 0.0).sum(axis=1, keepdims=True)
    stages = contract.stages
    form = term("the format of outputs of heads", stages.operands, stages.multiplicands).format
    o = Approximation(forward.O, np.abs(forward.O), error, form, contract)
    cast = stages.output.of(term("the format of sums over heads", stages.stored_scores, stages.output).format)
    allowed = np.zeros(forward.output.shape)
    inside = np.all(heads.in_domain | heads.empty_in_domain, axis=1, keepdims=True)
    for total in standing(
        ("one product of all heads", _at_once(forward, o)), ("products of heads apart", _one_by_one(forward, o))
    ):
        found = (
            total.error
            + term(
                "the cast of the output of a layer",
                cast.u * term("errors in the cast of the output of a layer", total.largest, np.abs(total.value)),
            )
            + term("underflow of the output of a layer", contract.stages.output.eta)
        )
        found = np.where(np.isfinite(found), found - together, found)
        inside &= (2 * (total.size + found) < contract.largest("output")).all(axis=-1)
        allowed = np.maximum(allowed, found)
    allowed = {
        "output": allowed * times("the evaluation of the output of a layer", INFLATION),
        "lse": heads.allowed["lse"],
    }
    return replace(heads, allowed=allowed, output_domain=inside)


def _at_once(forward: Intermediates, o: Approximation) -> Approximation:
    """b_O + W_O o as one product, of the outputs of all heads side by side."""
    p, side_by_side = parameters_given(forward, o.contract), o.changed(_side_by_side)
    wide = {"output_projection": p["output_projection"].changed(_side_by_side)}
    return _shifted(forward, _projected(forward, side_by_side, wide), side_by_side)


def _one_by_one(forward: Intermediates, o: Approximation) -> Approximation:
    """Return the output as a product for each head, and their sum: partial sums never exceed all products together."""
    contract, added = o.contract, forward.problem.query_heads - 1
    each = _projected(forward, o, parameters_given(forward, contract))
    total = _shifted(forward, each.changed(lambda part: part.sum(axis=1, keepdims=True)), o)
    of_each = term("errors of products of heads in sums before the last", each.largest, np.abs(each.value))
    before = term("heads in sums before the last", of_each.sum(axis=1, keepdims=True))
    bias = term("a bias in sums before the last", total.size - each.size.sum(axis=1, keepdims=True))
    held = before + bias if stands("sums of heads before the last") else None
    several = max(added - 1, 0)
    roundings = added - several + term("every rounding of sums over heads", several)
    stores = added - several + term("stores of sums over heads, after each", several)
    return finished(
        contract,
        total.value,
        total.size,
        total.error,
        roundings=term("roundings of sums over heads", roundings),
        stores=term("stores of sums over heads", stores),
        held=held,
    )


def _projected(forward: Intermediates, o: Approximation, p: dict[str, Approximation]) -> Approximation:
    """W_O o, for the outputs of heads or for those of all side by side."""
    assert forward.score.outputs is not None
    return forward.score.outputs.value(RunningErrors(o.contract), o, p)


def _shifted(forward: Intermediates, total: Approximation, o: Approximation) -> Approximation:
    """With b_O, where there is one: it may be added to an output that is stored."""
    p = parameters_given(forward, o.contract)
    if "output_projection_bias" not in p:
        return total
    bias = p["output_projection_bias"].changed(lambda part: part[:, :1])
    return term(
        "the bias of the output",
        RunningErrors(o.contract).shifted(
            term("an output that is stored before its bias is added", stored(total, "output"), total), bias, o
        ),
        total,
    )


def _side_by_side(per_head: np.ndarray) -> np.ndarray:
    """[B, H, rows, columns] as [B, 1, rows, H columns]."""
    B, H, rows, columns = per_head.shape
    return per_head.swapaxes(1, 2).reshape(B, 1, rows, H * columns)


def _together(errors: ScoreGradientError) -> np.ndarray:
    """Return by how much a bound of dV column by column exceeds one by the errors of weights, [B, Hq, Sk, Dv].

    An error of P_ij moves all columns of the gradient of v' together, by dO_i, of which W_V makes dO_i W_V.
    """
    forward, matrix = errors.forward, errors.forward.score.values.pulls_by
    assert matrix is not None
    W, e, dO = (
        matrix(parameters_of(forward.problem)),
        forward.dropped(errors.weights.change).swapaxes(-1, -2),
        errors.grad.cotangent,
    )
    apart = e @ (np.abs(dO) @ np.abs(W))
    return np.maximum(
        apart
        - term(
            "errors of weights in the gradient of v",
            e
            @ (
                np.abs(dO @ W)
                + term("the evaluation of errors of weights in the gradient of v", 2.0**-40 * (np.abs(dO) @ np.abs(W)))
            ),
        ),
        0.0,
    )


@np.errstate(all="ignore")
def projection_errors(
    errors: ScoreGradientError, contract: ResolvedContract, of_v: Approximation
) -> dict[str, np.ndarray]:
    """Errors of the gradients of v and of W_V, b_V, W_O and b_O, for that of v' [B, Hq, Sk, U].

    The gradient of b_O is the sum of all rows of dOut, which have the format of the output.
    """
    forward, inner_contract, outputs = errors.forward, errors.contract, errors.forward.score.outputs
    assert outputs is not None
    dv, found = values_pulled_back(forward, of_v)
    dv = replace(dv, error=dv.error - np.where(np.isfinite(dv.error), _together(errors), 0.0))
    E_o = exact_output_error(errors.near, inner_contract)
    E_o = np.where(forward.keys == 0, 0.0, E_o)
    arriving = term(
        "the format of the cotangent in the gradient of W_O", contract.stages.output, inner_contract.stages.output
    )
    A, dO = RunningErrors(inner_contract), given(inner_contract, errors.grad.of_output, arriving.format)
    of_heads = Approximation(
        forward.O,
        np.abs(forward.O),
        term("errors of heads in the gradient of W_O", E_o),
        term(
            "the format of outputs of heads in the gradient of W_O",
            inner_contract.stages.operands,
            inner_contract.stages.multiplicands,
        ).format,
        inner_contract,
    )
    found |= outputs.pull(A, of_heads, parameters_given(forward, inner_contract), dO)[1]
    if forward.problem.output_projection_bias is not None:
        found["output_projection_bias"] = A.transposed(
            A.total(A.transposed(dO))
            if stands("the sum over rows of dO")
            else A.transposed(dO).changed(lambda part: part.sum(axis=-1, keepdims=True))
        )
    summed = summed_over_group(
        forward, inner_contract, dv, times("widths of heads in sums of dv", forward.problem.head_value_dim)
    )
    return {"dv": term("sums of dv over heads", summed, forward.over_group(dv.error))} | parameter_errors(errors, found)

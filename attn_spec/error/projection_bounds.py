"""How far the output of a layer, and the gradients behind its projections, may lie from the truth under a contract.

    v' = W_V v + b_V        out = b_O + sum_h W_O o_h        dO_h = W_O^T dOut        dW_O = dOut^T o_h

Vaswani et al., "Attention is all you need" (2017), section 3.2.2. Heads are judged by the theorems of attention, which
are told how far their operands, values and cotangents may be off. A projection rounds as the operands of a score do:
its sums as those of scores, its results as operands; and so are the outputs of heads stored.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.error import bounds
from attn_spec.error.bounds import ForwardBound, output_error
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.gradient_sums import summed_over_group
from attn_spec.error.intermediates import Intermediates, kept
from attn_spec.error.operand_bounds import heads_contract, parameters_given, values_pulled_back
from attn_spec.error.option_gradient_bounds import parameter_errors
from attn_spec.error.roundoff import conversion, growth, rounding
from attn_spec.error.row_sum_bounds import EVALUATION, INFLATION, weight_error
from attn_spec.error.running_error import Approximation, RunningErrors, finished, given
from attn_spec.error.score_gradient_bounds import ScoreGradientError


@np.errstate(all="ignore")
def layer_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound of a layer under a resolved contract; what is known of its output says nothing of that of a head."""
    del o, slack
    off = bounds.evaluation_error(x).allowed["output"]
    heads = bounds.forward_bound(x, heads_contract(x, contract), x.O, np.where(np.isfinite(off), off, 0.0))
    return _joined(x, contract, heads, off)


@kept
@np.errstate(all="ignore")
def evaluation_error(x: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves."""
    return _joined(x, EVALUATION, bounds.evaluation_error(x), 0.0)


def _joined(x: Intermediates, c: ResolvedContract, heads: ForwardBound, slack: np.ndarray | float) -> ForwardBound:
    """The bound of the output [B, 1, Sq, O], from that of heads, whose true outputs lie in x.O +- ``slack``.

    It is one product, of the outputs of all heads side by side with all W_O. Or it is a product for each head, and
    their sum, which b_O may begin: all of these may be stored, and so may the sum after each head.
    """
    problem, outputs = x.problem, score_of(x.problem).outputs
    assert outputs is not None
    error = np.where(x.keys == 0, 0.0, heads.allowed["output"])
    size = np.abs(x.O) + np.where(x.keys == 0, 0.0, slack)
    p = parameters_given(x, c)
    o = Approximation(x.O, size, error, c.format("operands"), c).changed(_side_by_side)
    total = outputs.value(RunningErrors(c), o, {"output_projection": p["output_projection"].changed(_side_by_side)})
    if "output_projection_bias" in p:
        total = RunningErrors(c).shifted(total, p["output_projection_bias"].changed(lambda part: part[:, :1]), o)
    added = problem.query_heads - 1
    flushed = added * rounding(c, "stored_scores").eta  # what it costs relatively to store products apart is counted
    total = finished(c, total.value, total.size, total.error + flushed, roundings=added, stores=added)
    cast = conversion(c, "output", total.form)
    allowed = total.error + growth((cast.u, 1)) * (total.size + total.error) + rounding(c, "output").eta
    inside = np.all(heads.in_domain | heads.empty_in_domain, axis=1, keepdims=True)
    inside &= (2 * (total.size + allowed) < c.largest("output")).all(axis=-1)
    allowed = {"output": allowed * INFLATION, "lse": heads.allowed["lse"]}
    return replace(heads, allowed=allowed, output_domain=inside)


def _side_by_side(per_head: np.ndarray) -> np.ndarray:
    """[B, H, rows, columns] as [B, 1, rows, H columns]."""
    B, H, rows, columns = per_head.shape
    return per_head.swapaxes(1, 2).reshape(B, 1, rows, H * columns)


@np.errstate(all="ignore")
def projection_errors(b: ScoreGradientError, contract: ResolvedContract, of_v: Approximation) -> dict[str, np.ndarray]:
    """Errors of the gradients of v and of W_V, b_V, W_O and b_O, for that of v' [B, Hq, Sk, U].

    The gradient of b_O is the sum of all rows of dOut, which have the format of the output.
    """
    x, c, outputs = b.x, b.c, score_of(b.x.problem).outputs
    assert outputs is not None
    dv, found = values_pulled_back(x, of_v)
    o = output_error(b.near, c, weight_error(b.near, c), x.O, np.zeros(x.O.shape))
    o = np.where(x.keys == 0, 0.0, o)
    A, dO = RunningErrors(c), given(c, b.g.of_output, contract.format("output"))
    of_heads = Approximation(x.O, np.abs(x.O), o, c.format("operands"), c)
    found |= outputs.pull(A, of_heads, parameters_given(x, c), dO)[1]
    if x.problem.output_projection_bias is not None:
        found["output_projection_bias"] = A.transposed(A.total(A.transposed(dO)))
    return {"dv": summed_over_group(x, c, dv, x.problem.head_value_dim)} | parameter_errors(b, found)

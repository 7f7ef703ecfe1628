"""Bounds on the error of each element of an attention output under a contract.

Every bound is deterministic and per element, and holds for every tiling and order of summation, with or without
fused multiply-add: ``output_bounds`` of the output, ``row_sum_bounds`` of the log-sum-exp, which also tells what stands
for the float64 evaluation of the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attn_spec.bounds.forward.domain import empty_rows_in_domain, in_domain, lse_fits
from attn_spec.bounds.forward.far_keys import without_far_keys
from attn_spec.bounds.forward.output_bounds import output_error
from attn_spec.bounds.forward.row_sum_bounds import EVALUATION, amplification, evaluation_alpha, lse_error, weight_error
from attn_spec.bounds.forward.score_bounds import BOUNDED
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.memoized import memoized, of_forward_pass
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.readings import readings_of
from attn_spec.problem.handled import check_handled

#: Options whose roundings are in the theorems of softmax attention, see ``problem.handled``.
HANDLES = (*BOUNDED, "dropout_keep", "dropout_p", "o_scale", "sinks", "v_descale")


@dataclass(frozen=True)
class ForwardBound:
    """The largest errors allowed, and the rows they hold for."""

    #: Allowed errors of "output" [B, Hq, Sq, Dv] and "lse" [B, Hq, Sq].
    allowed: dict[str, np.ndarray]
    #: bool [B, Hq, Sq]: of those that see a key; and those that see none, whose answer a convention decides.
    in_domain: np.ndarray
    empty_in_domain: np.ndarray
    #: Rows whose log-sum-exp is in the domain, bool [B, Hq, Sq]; None: those whose output is.
    lse_domain: np.ndarray | None = None
    #: Domain of the output of a layer, bool [B, 1, Sq]; None: that of its heads.
    output_domain: np.ndarray | None = None
    #: Error of the output of each head times a matrix W, [B, Hq, Sq, C], where the bound was asked for such a W.
    projected: np.ndarray | None = None

    def domain_of(self, name: str) -> np.ndarray:
        """Return where the bound of a quantity holds."""
        apart = self.output_domain if name == "output" else self.lse_domain
        return self.in_domain if apart is None else apart


@np.errstate(all="ignore")
def forward_bound(
    forward: Intermediates,
    contract: ResolvedContract,
    o: np.ndarray | None = None,
    slack: np.ndarray | float = 0.0,
    projection: np.ndarray | None = None,
) -> ForwardBound:
    """Return the bound under a resolved contract; the true output lies in ``o`` +- ``slack``, by default forward.O.

    ``projection`` [B, Hq, C, Dv] is one of outputs that are not known by themselves.
    """
    check_handled(forward.problem, HANDLES, "the bound of attention")
    o = forward.O if o is None else o
    slack = np.broadcast_to(np.asarray(slack, dtype=np.float64), o.shape)
    by_reading = [(without_far_keys(forward, reading), reading) for reading in readings_of(contract, forward.problem)]
    weighed = [(near, reading, weight_error(near, reading)) for near, reading in by_reading]
    output = np.maximum.reduce([output_error(near, reading, weights, o, slack) for near, reading, weights in weighed])
    lse = np.maximum.reduce([lse_error(near, reading, weights) for near, reading, weights in weighed])
    looked_at = {id(near): near for near, _ in by_reading}.values()
    inside = np.logical_and.reduce([in_domain(near, contract, output) for near in looked_at])
    held = np.logical_and.reduce([lse_fits(near, contract, lse) for near in looked_at])
    if contract.normalize == "by_lse" or contract.lse_merges:  # which make the output by log-sum-exps
        inside = inside & held
    projected = None
    if projection is not None:
        projected = np.maximum.reduce(
            [output_error(near, reading, weights, o, slack, W=projection) for near, reading, weights in weighed]
        )
    return ForwardBound(
        {"output": output, "lse": lse},
        inside,
        empty_rows_in_domain(forward, contract),
        lse_domain=inside & held,
        projected=projected,
    )


@of_forward_pass
@np.errstate(all="ignore")
def exact_output_error(forward: Intermediates, contract: ResolvedContract) -> np.ndarray:
    """:func:`output_error` about forward.O itself, of a contract that leaves nothing open."""
    return output_error(forward, contract, weight_error(forward, contract), forward.O, np.zeros(forward.O.shape))


@memoized
@np.errstate(all="ignore")
def evaluation_error(forward: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves: the same theorems under the float64 contract.

    The formula is given the computed o for the true one, see :func:`amplification`.
    """
    amplify = amplification(evaluation_alpha(without_far_keys(forward, EVALUATION)))
    bound = forward_bound(forward, EVALUATION)
    output, lse = bound.allowed["output"] * amplify[..., None], bound.allowed["lse"] * amplify
    return replace(bound, allowed={"output": output, "lse": lse})

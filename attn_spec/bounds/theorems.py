"""The theorem that a problem has: that of a softmax, of linear attention, or of a layer.

A score that kernels evaluate in several orders has a row for each (``scores.Score.otherwise``), and an answer is held
to the largest of their bounds.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from attn_spec.bounds.backward import gradient_bounds
from attn_spec.bounds.backward.gradient_bounds import GradientBound, OfLayer
from attn_spec.bounds.forward import bounds
from attn_spec.bounds.forward.bounds import ForwardBound
from attn_spec.bounds.intermediates import (
    GradientIntermediates,
    Intermediates,
    gradient_intermediates,
    in_all_orders,
)
from attn_spec.bounds.layer import projection_bounds
from attn_spec.bounds.linear import linear_bounds, linear_gradient_bounds
from attn_spec.bounds.memoized import memoized
from attn_spec.contract.contract import ResolvedContract


def forward_bound(
    forward: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """Return the bound under a resolved contract; the true output lies in ``o`` +- ``slack``, by default forward.O."""
    o = forward.O if o is None and not forward.problem.projects else o
    found = [_forward_bound(each, contract, o, slack) for each in (forward, *in_all_orders(forward))]
    return found[0] if len(found) == 1 else _largest(found)


def _forward_bound(
    forward: Intermediates, contract: ResolvedContract, o: np.ndarray | None, slack: np.ndarray | float
) -> ForwardBound:
    if forward.problem.projects:
        return projection_bounds.layer_bound(forward, contract, o, slack)
    found = bounds.forward_bound if forward.problem.feature_map is None else linear_bounds.linear_bound
    return found(forward, contract, o, slack)


def _largest(found: list[ForwardBound]) -> ForwardBound:
    """Return the largest bound of any order, and the domain that all orders share."""
    return ForwardBound(
        {name: np.maximum.reduce([bound.allowed[name] for bound in found]) for name in found[0].allowed},
        np.logical_and.reduce([bound.in_domain for bound in found]),
        np.logical_and.reduce([bound.empty_in_domain for bound in found]),
        lse_domain=np.logical_and.reduce([bound.domain_of("lse") for bound in found]),
    )


def evaluation_error(forward: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves."""
    if forward.problem.projects:
        return projection_bounds.evaluation_error(forward)
    found = bounds.evaluation_error if forward.problem.feature_map is None else linear_bounds.evaluation_error
    return found(forward)


def gradient_bound(
    forward: Intermediates, grad: GradientIntermediates, contract: ResolvedContract, slack: GradientBound | None = None
) -> GradientBound:
    """Return the bound under one reading of a resolved contract, see :func:`readings.gradient_readings`.

    ``slack`` bounds the errors of ``forward`` and ``grad`` (default: none).
    """
    linear = linear_gradient_bounds.linear_gradient_bound
    of_softmax = partial(gradient_bounds.gradient_bound, of_layer=_of_layer(forward))
    of_weighting = of_softmax if forward.problem.feature_map is None else linear
    found = [of_weighting(forward, grad, contract, slack)]
    for other in in_all_orders(forward):
        of_other = _gradients(other, grad)
        found.append(
            of_weighting(
                other, of_other, contract, None if slack is None else gradient_evaluation_error(other, of_other)
            )
        )
    return found[0] if len(found) == 1 else _largest_of_gradients(found)


@memoized
def _gradients(forward: Intermediates, grad: GradientIntermediates) -> GradientIntermediates:
    """Return the gradient intermediates of another order for the same cotangents."""
    return gradient_intermediates(forward, grad.of_output, grad.lse_cotangent)


def _largest_of_gradients(found: list[GradientBound]) -> GradientBound:
    return GradientBound(
        {name: np.maximum.reduce([bound.allowed[name] for bound in found]) for name in found[0].allowed},
        E_X=np.maximum.reduce([bound.E_X for bound in found]),
        rows=np.logical_and.reduce([bound.rows for bound in found]),
        keys=np.logical_and.reduce([bound.keys for bound in found]),
        whole=all(bound.whole for bound in found),
    )


def gradient_evaluation_error(forward: Intermediates, grad: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves."""
    if forward.problem.feature_map is not None:
        return linear_gradient_bounds.gradient_evaluation_error(forward, grad)
    return gradient_bounds.gradient_evaluation_error(forward, grad, _of_layer(forward))


def _of_layer(forward: Intermediates) -> OfLayer | None:
    return projection_bounds.projection_errors if forward.problem.projects else None

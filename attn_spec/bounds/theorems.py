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
    kept,
)
from attn_spec.bounds.layer import projection_bounds
from attn_spec.bounds.linear import linear_bounds, linear_gradient_bounds
from attn_spec.contract.contract import ResolvedContract


def forward_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound under a resolved contract. The true output lies in ``o`` +- ``slack`` (default: x.O, exact)."""
    o = x.O if o is None and not x.problem.projects else o
    found = [_forward_bound(y, contract, o, slack) for y in (x, *in_all_orders(x))]
    return found[0] if len(found) == 1 else _largest(found)


def _forward_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None, slack: np.ndarray | float
) -> ForwardBound:
    if x.problem.projects:
        return projection_bounds.layer_bound(x, contract, o, slack)
    found = bounds.forward_bound if x.problem.feature_map is None else linear_bounds.linear_bound
    return found(x, contract, o, slack)


def _largest(found: list[ForwardBound]) -> ForwardBound:
    """Return the largest bound of any order, and the domain that all orders share."""
    return ForwardBound(
        {name: np.maximum.reduce([bound.allowed[name] for bound in found]) for name in found[0].allowed},
        np.logical_and.reduce([bound.in_domain for bound in found]),
        np.logical_and.reduce([bound.empty_in_domain for bound in found]),
        lse_domain=np.logical_and.reduce([bound.domain_of("lse") for bound in found]),
    )


def evaluation_error(x: Intermediates) -> ForwardBound:
    """Error of the float64 intermediates themselves."""
    if x.problem.projects:
        return projection_bounds.evaluation_error(x)
    found = bounds.evaluation_error if x.problem.feature_map is None else linear_bounds.evaluation_error
    return found(x)


def gradient_bound(
    x: Intermediates, g: GradientIntermediates, contract: ResolvedContract, slack: GradientBound | None = None
) -> GradientBound:
    """The bound under one reading of a resolved contract, see :func:`readings.gradient_readings`.

    ``slack`` bounds the errors of ``x`` and ``g`` (default: none).
    """
    linear = linear_gradient_bounds.linear_gradient_bound
    of_softmax = partial(gradient_bounds.gradient_bound, of_layer=_of_layer(x))
    of_weighting = of_softmax if x.problem.feature_map is None else linear
    found = [of_weighting(x, g, contract, slack)]
    for y in in_all_orders(x):
        of_y = _gradients(y, g)
        found.append(of_weighting(y, of_y, contract, None if slack is None else gradient_evaluation_error(y, of_y)))
    return found[0] if len(found) == 1 else _largest_of_gradients(found)


@kept
def _gradients(x: Intermediates, g: GradientIntermediates) -> GradientIntermediates:
    """Return the gradient intermediates of another order for the same cotangents."""
    return gradient_intermediates(x, g.of_output, g.lse_cotangent)


def _largest_of_gradients(found: list[GradientBound]) -> GradientBound:
    return GradientBound(
        {name: np.maximum.reduce([bound.allowed[name] for bound in found]) for name in found[0].allowed},
        X=np.maximum.reduce([bound.X for bound in found]),
        rows=np.logical_and.reduce([bound.rows for bound in found]),
        keys=np.logical_and.reduce([bound.keys for bound in found]),
        whole=all(bound.whole for bound in found),
    )


def gradient_evaluation_error(x: Intermediates, g: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves."""
    if x.problem.feature_map is not None:
        return linear_gradient_bounds.gradient_evaluation_error(x, g)
    return gradient_bounds.gradient_evaluation_error(x, g, _of_layer(x))


def _of_layer(x: Intermediates) -> OfLayer | None:
    return projection_bounds.projection_errors if x.problem.projects else None

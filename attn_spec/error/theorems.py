"""The theorem that a problem has: that of a softmax, of linear attention, or of a layer."""

from __future__ import annotations

import numpy as np

from attn_spec.error import bounds, gradient_bounds, linear_bounds, linear_gradient_bounds, projection_bounds
from attn_spec.error.bounds import ForwardBound
from attn_spec.error.contract import ResolvedContract
from attn_spec.error.gradient_bounds import GradientBound
from attn_spec.error.intermediates import GradientIntermediates, Intermediates


def forward_bound(
    x: Intermediates, contract: ResolvedContract, o: np.ndarray | None = None, slack: np.ndarray | float = 0.0
) -> ForwardBound:
    """The bound under a resolved contract. The true output lies in ``o`` +- ``slack`` (default: x.O, exact)."""
    if x.problem.projects:
        return projection_bounds.layer_bound(x, contract, o, slack)
    found = bounds.forward_bound if x.problem.feature_map is None else linear_bounds.linear_bound
    return found(x, contract, o, slack)


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
    found = gradient_bounds.gradient_bound if x.problem.feature_map is None else linear
    return found(x, g, contract, slack)


def gradient_evaluation_error(x: Intermediates, g: GradientIntermediates) -> GradientBound:
    """Error of the float64 gradients themselves."""
    linear = linear_gradient_bounds.gradient_evaluation_error
    found = gradient_bounds.gradient_evaluation_error if x.problem.feature_map is None else linear
    return found(x, g)

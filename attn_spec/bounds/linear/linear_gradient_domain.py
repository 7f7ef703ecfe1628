"""Domain of the backward pass of linear attention: rows and keys whose sums overflow in no order.

Symbols are those of ``linear_gradient_bounds``.
"""

from __future__ import annotations

import numpy as np

from attn_spec.bounds.intermediates import GradientIntermediates
from attn_spec.bounds.linear.linear_bounds import (
    in_domain,
)
from attn_spec.bounds.linear.linear_gradient_rows import RowGradientError, growth
from attn_spec.contract.terms import guard

#: Stages that hold the terms of gradients, and their sums.
_HOLD = (
    *("multiplicands", "score_accumulation", "stored_scores", "softmax", "partial_outputs"),
    *("weight_gradients", "score_gradients"),
    *("products", "inner_accumulation", "gradient_accumulation", "partial_gradients", "output_accumulation"),
)


@np.errstate(all="ignore")
def rows_fit(rows: RowGradientError, E_o: np.ndarray, grad: GradientIntermediates) -> np.ndarray:
    """Rows [B, Hq, Sq] in the forward domain, whose sums overflow in no order, or that see no key.

    The derivative of a quotient as it is written has the square of N below.
    """
    errors, forward, form = rows.errors, rows.errors.forward, rows.errors.contract.stages.score_accumulation.format
    least, most = ((forward.N + sign * errors.E_N)[..., 0] ** 2 for sign in (-1, 1))
    squares = (most * (1 + 4 * form.unit_roundoff) <= form.largest) & guard(
        "the square of a sum of linear weights, inverted", most * form.smallest_normal <= 1, True
    )
    dw, scaled = rows.dw + rows.E_dw, np.maximum(rows.inverse, 1.0)
    held = [
        np.maximum(dw, dw / scaled).max(axis=-1, initial=0.0),
        (dw @ errors.b).max(axis=-1, initial=0.0),
        (scaled * rows.dO).max(axis=-1, initial=0.0),
        (rows.D * scaled)[..., 0],
    ]
    widest = np.maximum.reduce(held) * (1 + np.broadcast_to(growth(errors, forward.keys), forward.N.shape)[..., 0])
    fits = (
        squares
        & guard("the least square of a sum of linear weights", least >= form.smallest_normal, True)
        & guard("gradients of a row of linear attention", widest <= errors.contract.largest(*_HOLD), True)
        & np.isfinite(widest)
    )
    seen = guard("linear gradients of rows outside the forward domain", in_domain(errors, E_o), True) & fits
    return (seen | (errors.known & (forward.keys[..., 0] == 0))) & np.isfinite(grad.cotangent).all(axis=-1)


@np.errstate(all="ignore")
def keys_fit(rows: RowGradientError) -> np.ndarray:
    """Keys [B, Hkv, Sk] whose sums over all rows of the group, states included, overflow in no order."""
    errors, forward = rows.errors, rows.errors.forward
    dw, scaled = (rows.dw + rows.E_dw).swapaxes(-1, -2), np.maximum(rows.inverse, 1.0)
    states = (errors.a * scaled).swapaxes(-1, -2) @ (rows.dO + rows.D)
    held = [
        (dw @ errors.a).max(axis=-1, initial=0.0),
        (rows.P.swapaxes(-1, -2) @ rows.dO).max(axis=-1, initial=0.0),
        np.broadcast_to(states.max(axis=(-1, -2), initial=0.0)[..., None], dw.shape[:-1]),
    ]
    n = forward.visible.sum(axis=-2)[..., None]
    widest = forward.over_group(np.maximum.reduce(held) * (1 + np.broadcast_to(growth(errors, n), n.shape)[..., 0]))
    return (widest <= errors.contract.largest(*_HOLD)) & np.isfinite(widest)

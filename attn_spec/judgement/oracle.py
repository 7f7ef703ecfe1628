"""The one call for truth: value and proved radius, from the cheapest tier that is sharp enough.

Tier 0 is a float64 evaluation with its own proved bound (``bounds.evaluation_error``); it serves every verdict on
float32 and narrower kernels. Tier 2 is ball arithmetic (``enclosure``), at a precision raised until it is sharp
enough. (Tier 1, error-free double-double products, is reserved for long float64 problems.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from attn_spec.attention.enclosure import Enclosed, Truth, enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.attention.gradients import Gradients
from attn_spec.error.bounds import evaluation_error
from attn_spec.error.gradient_bounds import gradient_evaluation_error
from attn_spec.error.intermediates import GradientIntermediates, Intermediates, gradient_intermediates, intermediates
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

#: Precision of the first enclosure, in bits, and of the last one tried.
FIRST_PRECISION, LAST_PRECISION = 96, 4096

#: The smallest radius a float64 enclosure can have, but for exact ones; no caller gets less.
SMALLEST_RADIUS = 2.0**-1072

#: Fraction of an output ulp the radius must stay below when the caller names no radius.
SHARPNESS = 2.0**-20


def oracle(
    problem: Problem,
    output_radius: np.ndarray | None = None,
    lse_radius: np.ndarray | None = None,
    *,
    x: Intermediates | None = None,
) -> Truth:
    """Output and log-sum-exp with radii no larger than asked, elementwise where the truth is finite.

    ``output_radius`` [B, Hq, Sq, Dv] and ``lse_radius`` [B, Hq, Sq] default to 2^-20 ulp of the problem's dtype (of
    float32 for the LSE of narrower ones), an ulp never below the smallest subnormal. ``x`` saves recomputing the
    float64 intermediates. Rows that see no key are output 0, LSE -inf, radius 0.
    """
    truth = float64_truth(intermediates(problem) if x is None else x)
    wide = "float64" if problem.dtype == "float64" else "float32"
    if output_radius is None:
        output_radius = SHARPNESS * bits.spacing(truth.output.value, problem.dtype)
    if lse_radius is None:
        lse_radius = SHARPNESS * bits.spacing(truth.lse.value, wide)
    precision = FIRST_PRECISION
    if _sharp(truth.output, output_radius) and _sharp(truth.lse, lse_radius):
        return truth
    while precision <= LAST_PRECISION:
        truth = enclose(problem, precision)
        if _settled(truth.output, output_radius) and _settled(truth.lse, lse_radius):
            break
        precision = int(precision * 1.6)
    return truth


@lru_cache(maxsize=4)  # so that a caller sees by identity whether the oracle went further
def float64_truth(x: Intermediates) -> Truth:
    """Tier 0: the float64 intermediates with their own proved error; inf radius where float64 overflows."""
    error = evaluation_error(x)
    empty = x.keys == 0
    usable = error.in_domain[..., None] & np.isfinite(x.O)
    output_radius = np.where(empty, 0.0, np.where(usable, error.output, np.inf))
    L = x.L[..., 0]
    lse_radius = np.where(empty[..., 0], 0.0, np.where(error.in_domain & np.isfinite(L), error.lse, np.inf))
    return Truth(_enclosed(np.where(empty, 0.0, x.O), output_radius), _enclosed(L, lse_radius))


def gradient_oracle(
    problem: Problem,
    cotangent: np.ndarray,
    radii: Mapping[str, np.ndarray],
    *,
    lse_cotangent: np.ndarray | None = None,
    x: Intermediates | None = None,
    g: GradientIntermediates | None = None,
) -> Gradients[Enclosed]:
    """All gradients for dO = ``cotangent`` [B, Hq, Sq, Dv] and dL = ``lse_cotangent`` [B, Hq, Sq], or 0.

    ``radii`` holds, for "dq", "dk", "dv" and, with a bias, "dbias", the largest radius wanted of each element. ``x``
    and ``g`` save recomputing the float64 intermediates.
    """
    x = intermediates(problem) if x is None else x
    g = gradient_intermediates(x, cotangent, lse_cotangent) if g is None else g
    truth = float64_gradients(x, g)
    precision = FIRST_PRECISION
    if all(_sharp(getattr(truth, name), wanted) for name, wanted in radii.items()):
        return truth
    while precision <= LAST_PRECISION:
        truth = enclose_gradients(problem, cotangent, precision, lse_cotangent)
        if all(_settled(getattr(truth, name), wanted) for name, wanted in radii.items()):
            break
        precision = int(precision * 1.6)
    return truth


def float64_gradients(x: Intermediates, g: GradientIntermediates) -> Gradients[Enclosed]:
    """Tier 0 of the gradients; inf radius in a head group that sees an overflow."""
    error = gradient_evaluation_error(x, g)
    usable = error.in_domain[..., None, None]
    per_head = np.repeat(error.in_domain, x.problem.group, axis=1)[..., None, None]
    return Gradients(
        dq=_enclosed(g.dq, np.where(per_head, error.dq, np.inf)),
        dk=_enclosed(g.dk, np.where(usable, error.dk, np.inf)),
        dv=_enclosed(g.dv, np.where(usable, error.dv, np.inf)),
        dbias=None
        if g.dbias is None or error.dbias is None
        else _enclosed(g.dbias, np.where(error.in_domain.all(), error.dbias, np.inf)),
    )


def _enclosed(value: np.ndarray, radius: np.ndarray) -> Enclosed:
    return Enclosed(value, np.zeros(value.shape), np.where(np.isnan(radius), np.inf, radius))


def _sharp(quantity: Enclosed, wanted: np.ndarray) -> bool:
    """Whether every radius is small enough."""
    return bool(np.all(quantity.radius <= np.maximum(wanted, SMALLEST_RADIUS)))


def _settled(quantity: Enclosed, wanted: np.ndarray) -> bool:
    """Whether every enclosure is sharp, or infinite or undefined, which no precision mends."""
    hopeless = np.isinf(quantity.radius) & ~np.isfinite(quantity.value)
    return bool(np.all((quantity.radius <= np.maximum(wanted, SMALLEST_RADIUS)) | hopeless))

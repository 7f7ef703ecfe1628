"""Truth of a problem: a value and a proved radius, from the cheapest tier that is sharp enough.

Tier 0 is a float64 evaluation with its own proved bound (``bounds.evaluation_error``). It serves every verdict on
float32 and narrower kernels. Tier 1 is error-free float64 products, for plain scores (``error_free``). It serves most
verdicts on float64 kernels, if the problem is long enough that it is faster than balls. Tier 2 is ball arithmetic
(``enclosure``), at a precision raised until it is sharp enough, for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np

from attn_spec.attention import error_free, error_free_gradients
from attn_spec.attention.enclosure import Enclosed, Truth, enclose
from attn_spec.attention.gradient_enclosure import enclose_gradients
from attn_spec.bounds.intermediates import (
    GradientIntermediates,
    Intermediates,
    intermediates,
)
from attn_spec.bounds.theorems import evaluation_error, gradient_evaluation_error
from attn_spec.contract.terms import term
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

#: Precision in bits of the first enclosure, and upper limit of the precision of further ones.
FIRST_PRECISION, LAST_PRECISION = 96, 4096

#: Least Sq Sk D for which tier 1 is asked. Its time relative to balls was a half at 16 x 16, D = 64, and a tenth at 128
#: x 128. It was equal at 16 x 16, D = 16, and fourfold at 3 x 9, D = 7.
LONG = 2**14

#: Smallest radius of a float64 enclosure that is not exact; no caller gets less.
SMALLEST_RADIUS = 2.0**-1072

Known = TypeVar("Known")

#: Fraction of an output ulp below which the radius must stay when the caller names no radius.
SHARPNESS = 2.0**-20


class Refined(Generic[Known]):
    """Truth that is enclosed again with more bits whenever a caller needs more than is known."""

    def __init__(
        self, first: Known, enclose: Callable[[int], Known], second: Callable[[], Known] | None = None
    ) -> None:
        self.first, self._find_second = first, second
        self._second: Known | None = None
        self._enclose, self._precision = enclose, FIRST_PRECISION
        self._enclosed: Known | None = None

    def until(self, sharp: Callable[[Known], bool], settled: Callable[[Known], bool]) -> Known:
        """Return the first truth if it is ``sharp``, else the second if it is ``settled``, else an enclosure.

        The enclosure's precision is raised until it is settled or exceeds LAST_PRECISION.
        """
        if sharp(self.first):
            return self.first
        if self._second is None and self._find_second is not None:
            self._second = self._find_second()
        if self._second is not None and settled(self._second):
            return self._second
        while self._enclosed is None or not (settled(self._enclosed) or self._precision > LAST_PRECISION):
            self._enclosed = self._enclose(self._precision)
            self._precision = int(self._precision * 1.6)
        return self._enclosed


class Oracle:
    """Truth of output and log-sum-exp of one problem."""

    def __init__(self, forward: Intermediates) -> None:
        problem = forward.problem
        second = (lambda: error_free.enclose(problem)) if _is_long(problem) else None
        self.problem, self._truth = (
            problem,
            Refined(float64_truth(forward), lambda bits: enclose(problem, bits), second),
        )

    @property
    def first(self) -> Truth:
        """Truth of tier 0."""
        return self._truth.first

    def __call__(self, **radii: np.ndarray) -> Truth:
        """Return output and log-sum-exp with radii no larger than asked, elementwise where the truth is finite.

        ``radii`` are of "output" [B, Hq, Sq, Dv] and "lse" [B, Hq, Sq]. The default is 2^-20 ulp of the
        dtype of q, for the LSE of narrower dtypes of float32. An ulp is never below the smallest subnormal. Rows that
        see no key have output 0, LSE -inf, and radius 0.
        """
        own = self.problem.dtype_of("q")
        dtypes = {"output": own, "lse": "float64" if own == "float64" else "float32"}
        for name in dtypes.keys() - radii.keys():
            radii[name] = SHARPNESS * bits.spacing(self.first[name].value, dtypes[name])
        return self._truth.until(_all(_sharp, radii), _all(_settled, radii))


class GradientOracle:
    """Truth of all gradients of one problem, for one pair of cotangents."""

    def __init__(self, forward: Intermediates, grad: GradientIntermediates) -> None:
        problem, dO, dL = forward.problem, grad.of_output, grad.lse_cotangent
        second = (lambda: error_free_gradients.enclose_gradients(problem, dO, dL)) if _is_long(problem) else None
        self._truth = Refined(
            float64_gradients(forward, grad), lambda bits: enclose_gradients(problem, dO, bits, dL), second
        )

    def __call__(self, **radii: np.ndarray) -> Truth:
        """Return all gradients by name; ``radii`` are the largest radii wanted, by name."""
        return self._truth.until(_all(_sharp, radii), _all(_settled, radii))


def oracle(problem: Problem, **radii: np.ndarray) -> Truth:
    """Return the truth of one problem, without a cache: see :meth:`Oracle.__call__`."""
    return Oracle(intermediates(problem))(**radii)


def float64_truth(forward: Intermediates) -> Truth:
    """Return tier 0: the float64 intermediates with their own proved error, and radius inf where float64 overflows."""
    error = evaluation_error(forward)
    empty, no_key = forward.keys == 0, ~forward.problem.visible.any(axis=-1, keepdims=True)
    usable = error.domain_of("output")[..., None] & np.isfinite(forward.output)
    output_radius = np.where(usable, error.allowed["output"], np.inf)
    L = forward.L[..., 0]
    lse_radius = np.where(error.domain_of("lse") & np.isfinite(L), error.allowed["lse"], np.inf)
    lse_radius = np.where(empty[..., 0], 0.0, lse_radius)
    if forward.problem.projects:
        return {"output": _enclosed(forward.output, output_radius), "lse": _enclosed(L, lse_radius)}
    output = _enclosed(np.where(no_key, 0.0, forward.O), np.where(no_key, 0.0, output_radius))
    return {"output": output, "lse": _enclosed(L, lse_radius)}


def float64_gradients(forward: Intermediates, grad: GradientIntermediates) -> Truth:
    """Return tier 0 of the gradients; the radius is inf where float64 may overflow."""
    error = gradient_evaluation_error(forward, grad)
    radii = {name: np.where(error.domain_of(name), radius, np.inf) for name, radius in error.allowed.items()}
    return {name: _enclosed(value, radii[name]) for name, value in grad.gradients.items()}


def _is_long(problem: Problem) -> bool:
    """Return whether tier 1 is asked: it applies to the problem, and takes less time than balls."""
    return error_free.applies(problem) and problem.query_length * problem.key_length * problem.head_dim >= LONG


def _enclosed(value: np.ndarray, radius: np.ndarray) -> Enclosed:
    return Enclosed(
        value, np.zeros(value.shape), np.where(np.isnan(radius), term("a NaN radius is infinite", np.inf), radius)
    )


def _all(test: Callable[[Enclosed, np.ndarray], bool], radii: Mapping[str, np.ndarray]) -> Callable[[Truth], bool]:
    """Return the predicate that the test holds for every quantity that has a wanted radius."""
    return lambda truth: all(test(truth[name], wanted) for name, wanted in radii.items())


def _sharp(quantity: Enclosed, wanted: np.ndarray) -> bool:
    """Return whether every radius is small enough."""
    return bool(np.all(quantity.radius <= np.maximum(wanted, SMALLEST_RADIUS)))


def _settled(quantity: Enclosed, wanted: np.ndarray) -> bool:
    """Return whether every enclosure is sharp, or infinite or undefined, which more precision does not change."""
    hopeless = np.isinf(quantity.radius) & ~np.isfinite(quantity.value)
    return bool(np.all((quantity.radius <= np.maximum(wanted, SMALLEST_RADIUS)) | hopeless))

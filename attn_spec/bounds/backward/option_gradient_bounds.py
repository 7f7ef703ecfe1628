"""Bounds on the errors of the gradients of options: of a bias, and of the parameters of a score."""

from __future__ import annotations

import math

import numpy as np

from attn_spec.bounds.backward.gradient_key_sums import BiasSums
from attn_spec.bounds.backward.gradient_sums import added_up, stored_sums, where_sums_fit
from attn_spec.bounds.backward.score_gradient_bounds import ScoreGradientError
from attn_spec.bounds.forward.dropout_bounds import late_roundings
from attn_spec.bounds.intermediates import Intermediates
from attn_spec.bounds.running_error import Approximation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import count, term, times


def bias_error(forward: Intermediates, contract: ResolvedContract, sums: BiasSums, raised: float) -> np.ndarray:
    """dA summed over the broadcast axes of a bias or of sinks, in any order.

    Dropout raises a weight by ``raised`` at most.
    """
    accumulator, stored, n = contract.stages.gradient_accumulation, contract.stages.stored_scores, sums.n
    cast = contract.stages.score_gradients.of(stored.format)
    stores, partial = stored_sums(contract, n)
    narrow = stored.of(contract.stages.score_accumulation.format)
    stored_as = (
        (cast.u, count("the cast of dbias", 1)),
        (narrow.u, count("dA as it is stored for dbias", 1)),
        *term("1 / (1 - p) at the end of dbias", late_roundings(forward, contract), ()),
    )
    additions = np.minimum(n - 1 + count("one rounding of dbias's sum", 1), contract.summation_depth or np.inf)
    G = gamma(
        (accumulator.u, term("sums of dbias", additions)),
        (partial.u, term("stores of dbias", stores)),
        *stored_as,
    )
    tiny = n * (
        term("underflow of dA's cast in dbias", contract.stages.score_gradients.eta)
        + term("underflow of dA's store in dbias", stored.eta)
        + term("underflow of dbias's sums", accumulator.eta)
        + term("underflow of dbias's stored products", partial.eta)
    ) + term("underflow of dbias's stores", stores * partial.eta)
    return where_sums_fit(
        contract,
        sums.total,
        term("the error of dA in dbias", sums.own)
        + term("all roundings of dbias", G * sums.total)
        + term(
            "underflow of dbias",
            count("underflows of dbias", 2) * tiny * times("underflow of dbias, raised", raised),
        ),
    )


def parameter_errors(errors: ScoreGradientError, gradients: dict[str, Approximation]) -> dict[str, np.ndarray]:
    """Errors of the gradients of the score's parameters: summed over rows, and over the axes they were broadcast along.

    ``gradients`` are theirs per query head. The sums of all heads may be one, in any order. Where the score is no
    product of operands, each term may be that of a pair of them.
    """
    problem, lengths = errors.forward.problem, errors.forward.s.shape
    longest = times("all rows in sums of a parameter's gradient", max(lengths[2:]))
    rows, found = math.prod(lengths[2:]) if errors.forward.score.pairs else longest, {}
    for name, of in gradients.items():
        axes = tuple(axis for axis in problem.broadcast_axes(name) if axis < 2)
        summed = of.changed(lambda part, axes=axes: part.sum(axis=axes, keepdims=True))
        terms = times("rows in sums of a parameter's gradient", rows) * times(
            "heads in sums of a parameter's gradient", math.prod(of.value.shape[axis] for axis in axes)
        )
        found[f"d{name}"] = term(
            "sums of a parameter's gradient", added_up(summed, errors.contract, terms), summed
        ).error
    return found

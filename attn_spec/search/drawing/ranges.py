"""Problems inside the range of a contract: a problem that the contract hardly covers gets smaller values, or no shift.

A format of 5 exponent bits holds no score of 1e5, and a feature map takes no logarithm of its argument. Such a problem
would be drawn in vain: no answer to it can be refuted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.attention.scores import parameters_of, score_of
from attn_spec.attention.terms import BENDS, TERMS, divisor
from attn_spec.bounds.backward.gradient_bounds import GradientBound
from attn_spec.bounds.forward.domain import numbers_fit
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.theorems import forward_bound, gradient_bound
from attn_spec.contract.contract import STAGES
from attn_spec.contract.readings import gradient_readings_of, readings_of
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.problem.handled import not_handled
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.long_problems import is_long
from attn_spec.search.verdict import LITTLE

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.drawing.regimes import Recipe

#: Options whose sizes are counted in :func:`_widest`, see ``problem.handled``.
HANDLES = (
    *("scale", *(name for name in BENDS if TERMS[name].divides), "bias", "alibi_slopes"),
    *("dropout_keep", "dropout_p", "sinks"),
)
#: Factors of q and k, and of v, the largest first.
SIZES = (1.0, 2.0**-3, 2.0**-6, 2.0**-10)
#: The plainest regime, for scores that are silent about vectors as short as those of other regimes.
PLAIN = "normal"
#: Share of the largest number: sums whose terms add up to less overflow in no order, whatever the roundings.
NEAR = 2.0**-4


def within_range(subject: Subject, recipe: Recipe, fixed: Collection[str], *, backward: bool) -> Problem:
    """Return the problem of a recipe, or of the nearest smaller one that the contract covers; its own if none is
    covered.

    Fields that are ``fixed`` stay. ``backward`` says that gradients are judged too. The search for the recipe bisects,
    since a problem inside the range stays inside as its numbers get smaller. Sums of features may become too small: if
    the smallest recipe is outside, linear attention tries all.
    """

    def is_inside(problem: Problem) -> bool:
        tests = _is_surely_inside, _says_enough
        return any(inside(subject, problem, backward=backward) for inside in tests)

    problem = recipe.problem()
    if is_inside(problem):
        return problem
    others = list(_smaller(recipe, fixed))
    first, found = 0, others.pop().problem()
    if not is_inside(found):
        smaller = (other.problem() for other in others if problem.feature_map is not None)
        return next(filter(is_inside, smaller), problem)
    while others[first:]:
        middle = (first + len(others)) // 2
        if is_inside(other := others[middle].problem()):
            found, others = other, others[:middle]
        else:
            first = middle + 1
    return found


def _smaller(recipe: Recipe, fixed: Collection[str]) -> Iterator[Recipe]:
    """Yield recipes without the shift, with longer vectors, then with smaller values, then with smaller q and k as
    well.
    """
    if "shift" not in fixed:
        recipe = replace(recipe, shift=0.0)
        yield recipe
    if score_of(recipe.problem()).shortest:
        recipe = replace(recipe, regime="+".join([PLAIN, *recipe.regime.split("+")[1:]]))
        yield recipe
    for size in SIZES:
        for value_size in SIZES:
            if size * value_size < 1:
                yield replace(recipe, size=size, value_size=value_size)


@np.errstate(all="ignore")
def _is_surely_inside(subject: Subject, problem: Problem, *, backward: bool) -> bool:
    """Return whether every sum that a kernel forms stays far below the largest number of each format of its contract.

    These are sums of products of operands, of values and of cotangents. A problem is taken as inside if no row of its
    output sees a key, or if it is long.
    """
    if problem.empty_output_rows.all() or is_long(problem):
        return True
    choices = (gradient_readings_of if backward else readings_of)(subject.contract, problem)
    choices = [contract for contract in choices if contract.reference == "maximum"]
    score = score_of(problem)
    unknown = score.pairs is not None or score.shortest or problem.feature_map is not None
    if unknown or not_handled(problem, HANDLES) or not choices:
        return False
    forward = analysis_of(problem).intermediates
    widest = _widest(forward)
    if backward:
        grad = gradient_analysis_of(problem, cotangent(subject, problem)).backward
        widest = max(widest, _widest_of_gradients(forward, grad))
    return any(
        widest <= NEAR * contract.largest(*(stage for stage in STAGES if getattr(contract, stage) is not None))
        for contract in choices
    )


def _says_enough(subject: Subject, problem: Problem, *, backward: bool) -> bool:
    """Return whether the contract covers nearly all rows that see a key: their domain, whatever the truth is."""
    forward = analysis_of(problem).intermediates
    choices = (gradient_readings_of if backward else readings_of)(subject.contract, problem)
    if problem.feature_map is None:  # the range of scores is cheaper to test than the range of later results
        choices = tuple(
            contract
            for contract in choices
            if numbers_fit(forward, contract)[forward.keys[..., 0] > 0].mean() >= LITTLE
        )
    if not backward:
        sees = ~problem.empty_output_rows
        return any(forward_bound(forward, contract).domain_of("output")[sees].mean() >= LITTLE for contract in choices)
    if not choices:
        return False
    grad = gradient_analysis_of(problem, cotangent(subject, problem)).backward
    return any(_is_inside(gradient_bound(forward, grad, contract)) for contract in choices)


def _is_inside(bound: GradientBound) -> bool:
    """Return whether the domains of all gradients are nearly whole; those of keys are empty beside a sink alone."""
    domains = [bound.domain_of(name) for name in bound.allowed]
    return all(domain.mean() >= LITTLE for domain in domains if domain.size)


def _widest(forward: Intermediates) -> float:
    """Return the largest sum of absolute terms in scores, in terms added to scores, and in outputs, and the largest
    input.
    """
    problem, scale = forward.problem, abs(forward.problem.scale_value)
    added = 0.0 if problem.bias is None else _largest(np.where(np.isfinite(problem.bias), problem.bias, 0.0))
    if problem.alibi_slopes is not None:
        added += _largest(problem.alibi_slopes) * (problem.query_length + problem.key_length)
    if problem.sinks is not None:
        added += _largest(np.where(np.isfinite(problem.sinks), problem.sinks, 0.0))
    products = _largest(forward.magnitude) * max(scale, 1.0)
    values = _largest(forward.v_size) * max(problem.key_length, 1)
    added *= max(1 / scale if scale else 1.0, 1.0)
    return max(products, added, max(_largest_input(problem), values) * _grown(problem)) * _bent(forward)


def _widest_of_gradients(forward: Intermediates, grad: GradientIntermediates) -> float:
    """Return the largest sum of absolute terms in gradients."""
    dO, dS, grown = np.abs(grad.cotangent), np.abs(grad.dS), _grown(forward.problem)
    dP = _largest(dO @ forward.v_size.swapaxes(-1, -2))
    of_heads = [dS @ forward.k_size, dS.swapaxes(-1, -2) @ forward.q_size, forward.P.swapaxes(-1, -2) @ dO]
    largest = max(map(_largest, of_heads)) * max(forward.problem.group, 1)
    length, inputs = (
        max(forward.problem.query_length, forward.problem.key_length),
        max(_largest_input(forward.problem), 1.0),
    )
    rows = 1 if forward.score.plain else length * inputs
    return max(_largest(grad.of_output) * grown, dP, largest * max(grown, rows)) * _bent(forward)


def _bent(forward: Intermediates) -> float:
    """Return the largest factor from a divisor c of scores, its inverse, and the factor 1/(1 - p) of dropout."""
    cap = divisor(forward.problem) or 1.0
    return max(cap, 1 / cap) * forward.largest_factor


def _grown(problem: Problem) -> float:
    """Return the largest factor by which a product with a matrix of parameters may enlarge a number."""
    sums = (
        np.abs(matrix).sum(axis).max(initial=0.0) for matrix in parameters_of(problem).values() for axis in (-1, -2)
    )
    return max([1.0, *sums])


def _largest_input(problem: Problem) -> float:
    return max(_largest(each) for each in (problem.q, problem.k, problem.v))


def _largest(x: np.ndarray) -> float:
    found = float(np.abs(x).max(initial=0.0))
    return found if found >= 0 else np.inf  # products that overflowed may have made NaN

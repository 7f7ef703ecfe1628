"""Problems inside the range of what a contract computes: one of which it says little is made smaller, or unshifted.

A format of 5 exponent bits holds no score of 1e5, and a feature map takes no logarithm of anything. Such a problem
would be drawn for nothing: no answer to it can be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.attention.scores import parameters_of, score_of
from attn_spec.bounds.backward.gradient_bounds import GradientBound
from attn_spec.bounds.forward.domain import numbers_fit
from attn_spec.bounds.intermediates import GradientIntermediates, Intermediates
from attn_spec.bounds.theorems import forward_bound, gradient_bound
from attn_spec.contract.contract import STAGES
from attn_spec.contract.readings import gradient_readings_of, readings_of
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.problem.handled import not_handled
from attn_spec.search.cotangents import cotangent
from attn_spec.search.long_problems import is_long
from attn_spec.search.verdict import LITTLE

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.regimes import Recipe

#: Options whose sizes are counted in :func:`_widest`, see ``problem.handled``.
HANDLES = ("scale", "softcap", "bias", "alibi_slopes", "dropout_keep", "dropout_p")
#: Factors of q and k, and of v, the largest first.
SIZES = (1.0, 2.0**-3, 2.0**-6, 2.0**-10)
#: The plainest regime, for a score that says nothing of vectors as short as those of another.
PLAIN = "normal"
#: Sums whose terms add up to less than this share of the largest number overflow in no order, whatever roundings do.
NEAR = 2.0**-4


def within_range(subject: Subject, recipe: Recipe, fixed: Collection[str], *, backward: bool) -> Problem:
    """The problem of a recipe, or of a near one that the contract says something of; its own if none is found.

    Fields that are ``fixed`` stay. ``backward``: gradients are asked of it too. What is inside is taken to stay inside
    as numbers grow smaller, so that a near recipe is found by halves; but sums of features may become too small.
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
    """Recipes without the shift, of longer vectors, then with smaller values, then with smaller q and k as well."""
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
    """True where every sum that a kernel forms stays far below the largest number of each format of its contract.

    Sums are those of products of operands, of values and of cotangents. A problem of which a theorem would say nothing,
    or not cheaply, is taken as inside.
    """
    if problem.empty_output_rows.all() or is_long(problem):
        return True
    choices = (gradient_readings_of if backward else readings_of)(subject.contract, problem)
    choices = [c for c in choices if c.reference == "maximum"]
    score = score_of(problem)
    unknown = score.pairs is not None or score.shortest or problem.feature_map is not None
    if unknown or not_handled(problem, HANDLES) or not choices:
        return False
    x = analysis_of(problem).intermediates
    widest = _widest(x)
    if backward:
        g = gradient_analysis_of(problem, cotangent(subject, problem)).backward
        widest = max(widest, _widest_of_gradients(x, g))
    return any(
        widest <= NEAR * c.largest(*(stage for stage in STAGES if getattr(c, stage) is not None)) for c in choices
    )


def _says_enough(subject: Subject, problem: Problem, *, backward: bool) -> bool:
    """Whether the contract says something of nearly all rows that see a key: their domain, whatever the truth is."""
    x = analysis_of(problem).intermediates
    choices = (gradient_readings_of if backward else readings_of)(subject.contract, problem)
    if problem.feature_map is None:  # scores are cheaper to tell of than all that is made of them
        choices = tuple(c for c in choices if numbers_fit(x, c)[x.keys[..., 0] > 0].mean() >= LITTLE)
    if not backward:
        sees = ~problem.empty_output_rows
        return any(forward_bound(x, c).domain_of("output")[sees].mean() >= LITTLE for c in choices)
    if not choices:
        return False
    g = gradient_analysis_of(problem, cotangent(subject, problem)).backward
    return any(_is_inside(gradient_bound(x, g, c)) for c in choices)


def _is_inside(bound: GradientBound) -> bool:
    return all(bound.domain_of(name).mean() >= LITTLE for name in bound.allowed)


def _widest(x: Intermediates) -> float:
    """The largest sum of sizes that scores, what is added to them, and outputs are made of, or of what is given."""
    problem, scale = x.problem, abs(x.problem.scale_value)
    added = 0.0 if problem.bias is None else _largest(np.where(np.isfinite(problem.bias), problem.bias, 0.0))
    if problem.alibi_slopes is not None:
        added += _largest(problem.alibi_slopes) * (problem.query_length + problem.key_length)
    products = _largest(x.magnitude) * max(scale, 1.0)
    values = _largest(x.v_size) * max(problem.key_length, 1)
    added *= max(1 / scale if scale else 1.0, 1.0)
    return max(products, added, max(_largest_input(problem), values) * _grown(problem)) * _bent(x)


def _widest_of_gradients(x: Intermediates, g: GradientIntermediates) -> float:
    """The same of what gradients are made of."""
    dO, dS, grown = np.abs(g.cotangent), np.abs(g.dS), _grown(x.problem)
    dP = _largest(dO @ x.v_size.swapaxes(-1, -2))
    of_heads = [dS @ x.k_size, dS.swapaxes(-1, -2) @ x.q_size, x.P.swapaxes(-1, -2) @ dO]
    largest = max(map(_largest, of_heads)) * max(x.problem.group, 1)
    length, inputs = max(x.problem.query_length, x.problem.key_length), max(_largest_input(x.problem), 1.0)
    rows = 1 if x.score.plain else length * inputs
    return max(_largest(g.of_output) * grown, dP, largest * max(grown, rows)) * _bent(x)


def _bent(x: Intermediates) -> float:
    """What a softcap c, or its inverse, and the factor of weights that dropout keeps may multiply a number by."""
    cap = x.problem.softcap or 1.0
    return max(cap, 1 / cap) * x.largest_factor


def _grown(problem: Problem) -> float:
    """How much larger than its terms the largest sum may be that a matrix of parameters makes."""
    sums = (
        np.abs(matrix).sum(axis).max(initial=0.0) for matrix in parameters_of(problem).values() for axis in (-1, -2)
    )
    return max([1.0, *sums])


def _largest_input(problem: Problem) -> float:
    return max(_largest(each) for each in (problem.q, problem.k, problem.v))


def _largest(x: np.ndarray) -> float:
    found = float(np.abs(x).max(initial=0.0))
    return found if found >= 0 else np.inf  # products that overflowed may have made NaN

"""Problems inside the range of what a contract computes: one of which it says little is made smaller, or unshifted.

A format of 5 exponent bits holds no score of 1e5, and a feature map takes no logarithm of anything. Such a problem
would be drawn for nothing: no answer to it can be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attn_spec.attention.scores import score_of
from attn_spec.error.contract import STAGES, ResolvedContract
from attn_spec.error.gradient_bounds import GradientBound
from attn_spec.error.readings import gradient_readings_of, readings_of
from attn_spec.judgement.analysis import analysis_of, gradient_analysis_of
from attn_spec.search.cotangents import cotangent
from attn_spec.search.long_problems import is_long
from attn_spec.search.verdict import LITTLE

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.regimes import Recipe

#: Factors of q and k, and of v, the largest first.
SIZES = (1.0, 2.0**-3, 2.0**-6, 2.0**-10)
#: The plainest regime, for a score that says nothing of vectors as short as those of another.
PLAIN = "normal"
#: Sums that stay below this share of the largest number overflow in no order, whatever roundings do.
NEAR = 2.0**-6
#: The largest cotangent of a search.
COTANGENT = 64.0


def within_range(subject: Subject, recipe: Recipe, fixed: Collection[str], *, backward: bool) -> Problem:
    """The problem of a recipe, or of the nearest one that the contract says something of; its own if none is found.

    Fields that are ``fixed`` stay. ``backward``: gradients are asked of it too.
    """
    problem = recipe.problem()
    if _says_enough(subject, problem, backward=backward):
        return problem
    for other in _smaller(recipe, fixed):
        found = other.problem()
        if _says_enough(subject, found, backward=backward):
            return found
    return problem


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


def _says_enough(subject: Subject, problem: Problem, *, backward: bool) -> bool:
    """Whether the contract says something of nearly all rows that see a key, if that is cheap to find."""
    sees = ~problem.empty_output_rows
    readings = (gradient_readings_of if backward else readings_of)(subject.contract, problem)
    if (
        not sees.any()
        or is_long(problem)
        or any(_is_far_from_overflow(problem, c, backward=backward) for c in readings)
    ):
        return True
    if not backward:
        found = analysis_of(problem)
        return any(found.truth_and_bound(c)[1].domain_of("output")[sees].mean() >= LITTLE for c in readings)
    gradients = gradient_analysis_of(problem, cotangent(subject, problem))
    return any(_is_inside(gradients.bound(c)) for c in readings)


def _is_inside(bound: GradientBound) -> bool:
    return all(bound.domain_of(name).mean() >= LITTLE for name in bound.allowed)


def _is_far_from_overflow(problem: Problem, c: ResolvedContract, *, backward: bool) -> bool:
    """Whether no sum of a plain score, of values or of cotangents comes near the largest number of any format."""
    if problem.score_option or problem.projects or problem.feature_map is not None or c.reference != "maximum":
        return False
    if problem.softcap is not None or problem.dropout_keep is not None:
        return False
    q, k, v = (_largest(x) for x in (problem.q, problem.k, problem.v))
    scale = abs(problem.scale_value)
    added = 0.0 if problem.bias is None else _largest(np.where(np.isfinite(problem.bias), problem.bias, 0.0))
    if problem.alibi_slopes is not None:
        added += _largest(problem.alibi_slopes) * (problem.query_length + problem.key_length)
    products = problem.head_dim * q * k * max(scale, 1.0)
    widest = max(products, added * max(1 / scale if scale else 1.0, 1.0), v * max(problem.key_length, 1))
    if backward:
        dP = COTANGENT * problem.v.shape[-1] * max(v, 1.0)
        widest = max(widest, dP * max(q, k, 1.0) * max(problem.query_length * problem.group, problem.key_length))
    return widest <= NEAR * c.largest(*(stage for stage in STAGES if getattr(c, stage) is not None))


def _largest(x: np.ndarray) -> float:
    return float(np.abs(x).max(initial=0.0))

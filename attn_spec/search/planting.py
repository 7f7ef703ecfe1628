"""Problems in which errors are planted to measure the power of a verdict: drawn ones, and shapes asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import hypothesis
import numpy as np
from hypothesis import Phase

from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.judgement.planted_errors import Power
from attn_spec.judgement.power import Planting, power
from attn_spec.search.assertions import differentiable
from attn_spec.search.drawing.asked_shapes import recipes
from attn_spec.search.drawing.cotangents import cotangent
from attn_spec.search.drawing.draws import of_the_seed_alone
from attn_spec.search.drawing.long_problems import is_long
from attn_spec.search.drawing.strategies import TAME, problems

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.problem import Problem
    from attn_spec.search.drawing.regimes import Recipe

#: Number of small problems for each pass, and number of rows of each head of a shape.
PROBLEMS, ROWS = 8, 16
#: Largest number of batch entries and kv heads of a shape in which errors are planted.
HEADS = 2
#: Id of the property that compares outputs with their bounds.
OUTPUTS = "accuracy.output_is_within_its_bound"
#: Id of the property that compares gradients with their bounds.
GRADIENTS = "gradients.query_and_key_gradients_are_within_their_bounds"
#: Id of the property that judges the shapes asked for.
SHAPES = "asked_shapes.sampled_rows_are_within_their_bounds"
#: Names of the places of drawn problems.
SMALL, SMALL_BACKWARD = "small problems", "gradients of small problems"


def powers(
    subject: Subject, seed: int, is_examined: Callable[[str], bool] = lambda property_id: True
) -> Iterator[Power]:
    """Yield the power at small problems, at gradients of small problems, and at each shape asked for.

    ``is_examined`` says whether the property with an id is examined; without it, errors are not planted in its place.
    """
    if is_examined(OUTPUTS):
        small = _drawn(problems(subject, without=("empty",), regimes=TAME), seed)
        yield power([_asked(subject, problem) for problem in small], dtype=subject.dtype, where=SMALL)
    if subject.supports("backward") and is_examined(GRADIENTS):
        small = _drawn(differentiable(subject, without=("empty",), regimes=TAME), seed)
        yield power([_backward(subject, problem) for problem in small], dtype=subject.dtype, where=SMALL_BACKWARD)
    if "query_projection" in subject.kernel.limits.always or not is_examined(SHAPES):
        return
    for shape in subject.shapes:
        every = recipes(replace(subject, shapes=(shape,)), seed)
        asked = (_asked(subject, _some_rows(recipe, seed)) for recipe in every)
        yield power(asked, dtype=subject.dtype, where=str(shape))


def _asked(subject: Subject, problem: Problem) -> Planting:
    return Planting(
        problem=problem,
        contract=subject.contract,
        conventions=subject.conventions,
        lse=subject.supports("lse"),
    )


def _backward(subject: Subject, problem: Problem) -> Planting:
    one = _asked(subject, problem)
    names = ("dq", *subject.presentation.key_gradients)
    return replace(one, cotangent=cotangent(subject, problem), gradients=names)


def _some_rows(recipe: Recipe, seed: int) -> Problem:
    """Return some rows of a problem of that shape with few heads; the judgement of a row depends on no other head."""
    kv_heads = min(recipe.kv_heads, HEADS)
    few = replace(recipe, batch=min(recipe.batch, HEADS), kv_heads=kv_heads, query_heads=kv_heads)
    problem = few.problem()
    one = problem.take("B", [0]).head(0)
    return problem.rows(RowSample(ROWS, seed).of(one, 0).index)


def _drawn(strategy: SearchStrategy[Problem], seed: int) -> list[Problem]:
    """Return up to PROBLEMS drawn problems that are not long and in which some query sees two keys or more."""
    found: dict[bytes, Problem] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2 * PROBLEMS,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType] -- its metaclass
    )
    @hypothesis.given(strategy)
    def collect(problem: Problem) -> None:
        if not is_long(problem) and np.any(problem.visible.sum(axis=-1) > 1):
            found.setdefault(problem.digest(), problem)

    with of_the_seed_alone():
        collect()
    return list(found.values())[-PROBLEMS:]

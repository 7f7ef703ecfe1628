"""Histories of calls: other problems of the same shape, and which subjects keep results through the next call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attn_spec.numbers import bits
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.validation import ProblemError
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.regimes import Recipe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attn_spec.kernels.subject import Subject
    from attn_spec.problem.options.option import Option
    from attn_spec.problem.problem import Problem


def rewritten(problem: Problem, keep: int | None = None) -> Problem:
    """Return the problem with other N(0, 1) values of the same shape, except for the batch entry ``keep``.

    One time in two, only one of q, k, v has other values.
    """
    rng = randomness(problem)
    changed = ("q", "k", "v") if rng.random() < 0.5 else rng.choice(["q", "k", "v"], size=1)
    kept = (np.arange(problem.batch) == keep)[:, None, None, None]
    arrays = {name: getattr(problem, name) for name in changed}
    other = {name: bits.nearest(rng.standard_normal(x.shape), problem.dtype_of(name)) for name, x in arrays.items()}
    return problem.with_inputs(**{name: np.where(kept, x, other[name]) for name, x in arrays.items()})


def asked_otherwise(subject: Subject, problem: Problem) -> Problem | None:
    """Return the problem with other values of the options that it uses, of the same shapes, and the same q, k and v.

    None if no option has another value that the kernel takes beside the others, or if no recipe made the problem. None
    too if a call for it has tensors of other shapes, as buffers that end with the last sequence have for other lengths.
    """
    recipe = problem.recipe
    if not isinstance(recipe, Recipe):
        return None
    rng, used, others = randomness(problem), problem.options(), {}
    said = [name for name in OPTIONS if name in used and getattr(recipe, name) is not None]
    for name in said:
        if values := _other_values(OPTIONS[name], getattr(recipe, name), recipe.lengths):
            others[name] = values[rng.integers(len(values))]
    if not others:
        return None
    try:
        made = replace(recipe, **others).problem()
        # Lengths of keys that are those of queries follow from these, and no recipe says them.
        derived = (made.options() & used & OPTIONS.keys()) - {*said}
        other = problem.replace(**{name: getattr(made, name) for name in {*others, *derived}})
    except ProblemError:
        return None
    if subject.kernel.limits.refusal(other):
        return None
    moved = subject.presentation.says_where and _shapes(subject, other) != _shapes(subject, problem)
    return None if moved else other


def _shapes(subject: Subject, problem: Problem) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors of a call for a problem, in their order."""
    parts = subject.presentation.parts(problem)
    return [x.shape for part in parts for x in subject.presentation.handed(part).tensors.values()]


def _other_values(row: Option, value: Any, lengths: Mapping[str, int]) -> list[Any]:
    """Return the values of a recipe that an option may have in place of one, with tensors of the same axes."""
    axes = value.partition("@")[2] if row.tensor is not None else ""
    fitting = (other for other in row.draws if other not in (None, value) and row.fits(other, lengths))
    return [other for other in fitting if not axes or other.partition("@")[2] == axes]


def reason_to_overwrite(subject: Subject) -> str:
    """Return why results of a subject need not outlive the next call; an empty text if they must."""
    if subject.conventions.overwrites_results:
        return "it declares that a later call may overwrite what an earlier one returned"
    return "it returns nothing, but writes into tensors of its caller" if subject.kernel.destinations else ""

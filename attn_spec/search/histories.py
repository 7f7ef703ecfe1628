"""Histories of calls: another problem of the same shape, and which subjects keep results through the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attn_spec.numbers import bits
from attn_spec.search.drawing.cotangents import randomness

if TYPE_CHECKING:
    from attn_spec.kernels.subject import Subject
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


def reason_to_overwrite(subject: Subject) -> str:
    """Return why results of a subject need not outlive the next call; an empty text if they must."""
    if subject.conventions.overwrites_results:
        return "it declares that a later call may overwrite what an earlier one returned"
    return "it returns nothing, but writes into tensors of its caller" if subject.kernel.destinations else ""

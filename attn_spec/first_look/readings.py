"""Answers that are right under another reading than the declared one: no further call is needed to test this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.first_look.misfit import MisfitError, declaring
from attn_spec.first_look.plain_look import is_right
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.presentation import PRESENTATIONS
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Presentations with the same shapes: a kernel of one takes tensors of the other for heads of other lengths.
ALIKE = {"BHSD": "BSHD", "BSHD": "BHSD"}


def explain(subject: Subject, problem: Problem, answer: Answer) -> None:
    """Test readings that explain an answer without options. Raises :class:`MisfitError` if one does."""
    explain_swap(subject, problem, answer["output"])
    _explain_convention(subject, problem, answer, "its log-sum-exp is to the base 2, not e", lse_base="2")


def explain_diagonal(subject: Subject, problem: Problem, answer: Answer) -> None:
    """Test whether a bottom-right diagonal explains a causal answer. Raises :class:`MisfitError` if it does.

    The problem has more keys than queries.
    """
    cause = "with more keys than queries its causal diagonal ends in the bottom right corner, not at the top left"
    _explain_convention(subject, problem, answer, cause, causal_alignment="bottom_right")


def explain_swap(subject: Subject, problem: Problem, output: np.ndarray) -> None:
    """Test whether heads and lengths are swapped in tensors and output. Raises :class:`MisfitError` if they are."""
    kernel = subject.kernel
    if kernel.presentation not in ALIKE or problem.projects:
        return
    own, other = subject.presentation, PRESENTATIONS[ALIKE[kernel.presentation]]

    def read(name: str, x: np.ndarray) -> np.ndarray:
        return other.read(name, own.presented(name, x))

    try:
        swapped = problem.replace(**{name: read(name, getattr(problem, name)) for name in ("q", "k", "v")})
    except ProblemError:  # head counts do not divide, or an option's tensor does not fit
        return
    if is_right(subject, swapped, {"output": read("output", output)}):
        raise MisfitError(kernel, *_presented(kernel, ALIKE[kernel.presentation]))


def presentations(kernel: Kernel) -> Iterator[tuple[Kernel, str, str]]:
    """Yield the kernel in every other presentation, with the cause and the remedy if that presentation is its own."""
    for name in PRESENTATIONS:
        if name != kernel.presentation:
            yield replace(kernel, presentation=name), *_presented(kernel, name)


def _presented(kernel: Kernel, other: str) -> tuple[str, str]:
    meant, given = PRESENTATIONS[other], PRESENTATIONS[kernel.presentation]
    cause = f"it takes tensors [{meant.layout}], {meant.says}, and is given [{given.layout}]"
    return cause, declaring(kernel, presentation=other)


def _explain_convention(subject: Subject, problem: Problem, answer: Answer, cause: str, **changed: Any) -> None:
    """Test an answer under another convention. Raises :class:`MisfitError` if it is right under that convention.

    A convention that the kernel declares otherwise than by default is not questioned.
    """
    ((name, value),) = changed.items()
    row = CONVENTIONS[name]
    if getattr(subject.conventions, name) != row.default or not set(row.decides) & set(answer):
        return
    kernel = replace(subject.kernel, conventions=replace(subject.conventions, **changed))
    asked = problem.replace(**changed) if row.is_option else problem
    if is_right(replace(subject, kernel=kernel), asked, answer):
        raise MisfitError(subject.kernel, cause, declaring(subject.kernel, conventions={name: value}))

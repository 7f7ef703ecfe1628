"""Answers that are right under another reading than the declared one: no further call is needed to test this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attn_spec.contract.contract import ContractError
from attn_spec.first_look.misfit import MisfitError, declaring
from attn_spec.first_look.plain_look import is_right
from attn_spec.kernels.kernel import Kernel, KernelError
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.results.destinations import required
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.conventions import CONVENTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError


def alike(kernel: Kernel) -> list[str]:
    """Return the presentations whose tensors have the axes of the kernel's in another order.

    The kernel takes tensors of such a one for tensors of other lengths.
    """
    views = [name for name, row in PRESENTATIONS.items() if row.is_view]
    return [name for name in views if name != kernel.presentation] if kernel.presentation in views else []


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
    """Test whether tensors and output have their axes in another order. Raises :class:`MisfitError` if they have."""
    for other in [] if problem.projects else alike(subject.kernel):
        if _is_right_as(other, subject, problem, output):
            raise MisfitError(subject.kernel, *_presented(subject.kernel, other))


def _is_right_as(other: str, subject: Subject, problem: Problem, output: np.ndarray) -> bool:
    """Return whether an output is right if the kernel takes its tensors for those of another presentation."""

    def read(name: str, x: np.ndarray) -> np.ndarray:
        return PRESENTATIONS[other].read(name, subject.presentation.presented(name, x))

    try:
        swapped = problem.replace(**{name: read(name, getattr(problem, name)) for name in ("q", "k", "v")})
    except ProblemError:  # head counts do not divide, or an option's tensor does not fit
        return False
    return is_right(subject, swapped, {"output": read("output", output)})


def destinations(kernel: Kernel) -> Iterator[tuple[Kernel, str, str]]:
    """Yield the kernel as one that writes into tensors it is given, with cause and remedy, if its parameters ask so."""
    found = required(kernel.parameters, len(PRESENTATIONS[kernel.presentation].tensors))
    if found and not kernel.destinations:
        cause = f"it has {' and '.join(found.values())} without a default, to write its results into"
        supports = kernel.supports | ({"lse"} & set(found))
        yield replace(kernel, destinations=found, supports=supports), cause, declaring(kernel, destinations=found)


def presentations(kernel: Kernel) -> Iterator[tuple[Kernel, str, str]]:
    """Yield the kernel in every other presentation that it can have, with the cause and the remedy if it has that one.

    Calls that append come first: a callable that takes new keys may also attend without any.
    """
    for name in sorted(PRESENTATIONS, key=lambda name: not PRESENTATIONS[name].appends):
        if name != kernel.presentation and _can_be(kernel, name):
            yield replace(kernel, presentation=name), *_presented(kernel, name)


def _can_be(kernel: Kernel, presentation: str) -> bool:
    """Return whether a presentation can pass the options of all calls, and agrees with the limits and contracts."""
    if any(map(PRESENTATIONS[presentation].refusal, kernel.limits.always)):
        return False
    try:
        other = replace(kernel, presentation=presentation)
        return all(other.contract_for(dtype) for dtype in other.dtypes)
    except (KernelError, ContractError):
        return False


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
    asked = problem.replace(**changed) if row.is_option else problem
    if is_right(subject.keeping(**changed), asked, answer):
        raise MisfitError(subject.kernel, cause, declaring(subject.kernel, conventions={name: value}))

"""A first look at a kernel by a few plain calls: the run ends here if a known misfit explains the answers.

A first look refutes nothing. A kernel whose answers are within their bounds is asked no further. For any other kernel a
misfit is reported only in two cases:

- the answer is within its bound if it is read, or asked for, in the other way;
- the kernel returned something that is no answer at all.

Every other wrong answer is left to the properties.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attn_spec.first_look import arguments, failed_calls, no_answers, readings
from attn_spec.first_look.misfit import MisfitError
from attn_spec.first_look.plain_look import Look, look
from attn_spec.kernels.misbehaviour import CallFailed
from attn_spec.kernels.subject import Subject, was_late
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.dtypes import dtype_of

#: Longest plain call, in seconds, after which calls with options are made: each may have to compile the kernel.
QUICK = 1.0


def first_look(subjects: Sequence[Subject]) -> None:
    """Look at a kernel at all its dtypes, the finest first. Raises :class:`MisfitError`."""
    finest, *others = sorted(subjects, key=lambda one: -FORMATS[dtype_of(one.dtypes, "q")].precision)
    seen = look(finest)
    if seen is not None:
        _explain(seen)
        if seen.is_right and seen.seconds < QUICK and finest.kernel.signatures is None:
            _look_at_options(finest)
    for subject in others:
        if (seen := look(subject)) is not None:
            _explain(seen)


def explain_failure(subjects: Sequence[Subject], failures: Mapping[str, str]) -> None:
    """Explain why no plain call returns. Raises :class:`MisfitError` if the reason is known.

    A kernel that hangs in another call too is tried no further, since each call would take its limit again.
    """
    failed_calls.explain(subjects[0].kernel, failures.values())
    failed_calls.explain_class(subjects[0].kernel)
    for subject in subjects:
        for kernel, cause, remedy in (*readings.destinations(subject.kernel), *readings.presentations(subject.kernel)):
            seen = look(replace(subject, kernel=kernel))
            if seen is not None and seen.is_right:
                raise MisfitError(subject.kernel, cause, remedy)
            if seen is not None and seen.error is not None and was_late(str(seen.error)):
                return
    if subjects[0].presentation.is_view:
        failed_calls.explain_places(subjects[0].kernel)


def _explain(seen: Look) -> None:
    """Explain a call without options. Raises :class:`MisfitError`."""
    if isinstance(seen.error, CallFailed):
        failed_calls.explain(seen.subject.kernel, [str(seen.error)])
    elif seen.error is not None:
        no_answers.explain(seen)
    elif seen.answer is not None and not seen.is_right:
        readings.explain(seen.subject, seen.problem, seen.answer)


def _look_at_options(subject: Subject) -> None:
    """Explain calls with options to which libraries give several meanings. Raises :class:`MisfitError`."""
    if subject.supports("causal", "cross"):
        seen = look(subject, causal=True)
        if seen is not None and seen.answer is not None and not seen.is_right:
            readings.explain_diagonal(subject, seen.problem, seen.answer)
    if subject.supports("window"):
        arguments.explain_window(subject)
    if subject.supports("mask"):
        arguments.explain_mask(subject)

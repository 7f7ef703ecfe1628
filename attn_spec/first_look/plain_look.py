"""One plain call of a kernel, recorded with what the callable itself returned."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from attn_spec.judgement.other_problems import explains
from attn_spec.kernels.kernel import Kernel
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import plain


@dataclass
class Look:
    """One call of a kernel: its problem, its results, and its answer or error."""

    subject: Subject
    problem: Problem
    #: Results of the callable in the order of its calls; several if it is called for each head.
    returned: list[Any] = field(default_factory=list)
    #: Answer to the problem; None if there was none, with ``error`` as the reason.
    answer: Answer | None = None
    error: Misbehaviour | None = None
    seconds: float = 0.0

    @cached_property
    def is_right(self) -> bool:
        """True if there is an answer, and every element of it is within its bound."""
        return self.answer is not None and is_right(self.subject, self.problem, self.answer)


def is_right(subject: Subject, problem: Problem, answer: Answer) -> bool:
    """Return whether every element of an answer is within its bound, and at least one element is measured."""
    return explains(judged(subject, problem, answer))


def look(subject: Subject, around: Callable[[Kernel], Kernel] | None = None, **options: Any) -> Look | None:
    """Call a kernel on a plain problem with these options; return None if the kernel does not take the problem.

    ``around`` wraps the kernel; the wrapped kernel is called with the same problem. A causal problem has twice as many
    keys as queries.
    """
    try:
        problem = plain(subject.kernel, subject.dtype, "cross" if "causal" in options else None)
        made = {name: value(problem) if callable(value) else value for name, value in options.items()}
        problem = problem.replace(causal_alignment=subject.conventions.causal_alignment, **made)
    except ProblemError:
        return None
    seen = Look(subject, problem)
    called = subject.kernel if around is None else around(subject.kernel)
    recording = replace(subject, kernel=_recording(called, seen.returned))
    begun = time.monotonic()
    try:
        seen.answer = recording(problem)
    except NotTaken:
        return None
    except Misbehaviour as error:
        seen.error = error
    seen.seconds = time.monotonic() - begun
    return seen


def _recording(kernel: Kernel, returned: list[Any]) -> Kernel:
    def recorded(*tensors: Any, **options: Any) -> Any:
        returned.append(kernel(*tensors, **options))
        return returned[-1]

    return kernel.wrapped(recorded)

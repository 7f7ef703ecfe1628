"""One plain call of a kernel, with what the callable itself returned."""

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
    """One call, and what is known of it."""

    subject: Subject
    problem: Problem
    #: What the callable returned, in turn; more than once where it is called for each head.
    returned: list[Any] = field(default_factory=list)
    #: The answer; None where there was none, with what kept it from being one.
    answer: Answer | None = None
    error: Misbehaviour | None = None
    seconds: float = 0.0

    @cached_property
    def is_right(self) -> bool:
        """Whether there is an answer, and every element of it is within its bound."""
        return self.answer is not None and is_right(self.subject, self.problem, self.answer)


def is_right(subject: Subject, problem: Problem, answer: Answer) -> bool:
    """Whether every element of an answer is within its bound, and one of them is measured at all."""
    return explains(judged(subject, problem, answer))


def look(subject: Subject, around: Callable[[Kernel], Kernel] | None = None, **options: Any) -> Look | None:
    """Call a kernel on a plain problem with some options; None where that is none of its problems.

    ``around`` makes another kernel of it to call, which is given the same problem. A problem of causal attention has
    twice as many keys as queries.
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

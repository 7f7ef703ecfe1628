"""A check of each option and ability of a kernel: the answer to one plain problem that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from attn_spec.judgement.other_problems import right_for
from attn_spec.kernels.subject import Subject
from attn_spec.problem.abilities import ABILITIES
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import plain, used

from .instrument import Finding, asked

AS_SPECIFIED = "as specified"


def uses(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for a plain use of each option: "as specified", or no value and what would explain it."""
    for name in sorted(subject.kernel.supports & set(OPTIONS)):
        problem = plain(subject.kernel, subject.dtype)
        try:
            with_it = problem.replace(**{name: used(name, problem)})
        except ProblemError:  # the option needs another option
            continue
        yield asked(name, partial(_use, subject, name, with_it))


def abilities(subject: Subject) -> Iterator[Finding]:
    """Yield a finding for a plain use of each ability of shapes; of "cross" for both ways in which lengths differ."""
    kernel = subject.kernel
    for name in sorted(kernel.supports & set(ABILITIES)):
        try:
            problem = plain(kernel, subject.dtype, name)
        except ProblemError:  # it needs an option
            continue
        if not ABILITIES[name].is_used(problem):
            continue
        yield asked(name, partial(_use, subject, name, problem))
        if name == "cross" and not kernel.limits.refusal(turned := _with_fewer_keys(problem)):
            yield asked("cross, with more queries than keys,", partial(_use, subject, name, turned))


def _with_fewer_keys(problem: Problem) -> Problem:
    """Return a problem with half as many keys as queries."""
    return problem.take("K", range(problem.query_length // 2))


def _use(subject: Subject, name: str, problem: Problem) -> Finding:
    answer = subject(problem)
    if not judged(subject, problem, answer).refuted:
        return Finding(name, AS_SPECIFIED, "the loosest contract bounds the answer to a plain problem with it")
    hints = right_for(problem, lambda other: judged(subject, other, answer))
    return Finding(name, None, "; ".join(hints) or "no contract bounds the answer to a plain problem with it")

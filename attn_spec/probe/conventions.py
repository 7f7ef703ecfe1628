"""Which conventions a kernel keeps to, where sound systems differ: the one that alone explains its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attn_spec.judgement.other_problems import explains
from attn_spec.kernels.kernel import CONVENTION_CHOICES
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.plain_calls import plain

from .instrument import Finding, asked

#: Equal calls whose bits are compared.
CALLS = 4
#: Conventions of the log-sum-exp, which alone tells of them.
OF_LSE = ("lse_base", "empty_lse")
#: The choice that explains any answer.
UNDECLARED = "undeclared"


def conventions(subject: Subject) -> tuple[Subject, list[Finding]]:
    """What is found of each convention that the kernel's options let differ, and the kernel that keeps to these."""
    found = []
    for name, of in EXPERIMENTS.items():
        problem = of(subject)
        if problem is None:
            continue
        finding = asked(name, partial(_explained, subject, name, problem))
        found.append(finding)
        if finding.value is not None:
            subject = _keeping(subject, name, finding.value)
    repeated = asked("deterministic", partial(determinism, subject))
    return subject, [*found, *([repeated] if repeated.value == "False" else [])]


def determinism(subject: Subject) -> Finding:
    """Whether equal calls give equal bits, as far as a few tell."""
    problem = plain(subject.kernel, subject.dtype)
    answers = [subject(problem)["output"] for _ in range(CALLS)]
    same = all(bits.identical(answers[0], other).all() for other in answers[1:])
    return Finding("deterministic", str(same), f"{CALLS} equal calls give {'equal' if same else 'different'} bits")


def _keeping(subject: Subject, name: str, value: str) -> Subject:
    agreed = replace(subject.kernel.conventions, **{name: value})
    return replace(subject, kernel=replace(subject.kernel, conventions=agreed))


def _explained(subject: Subject, name: str, problem: Problem) -> Finding:
    """The choice that alone explains the answer to a problem in which it matters."""
    choices = [value for value in CONVENTION_CHOICES[name] if value != UNDECLARED]
    explain = []
    for value in choices:
        made = problem.replace(causal_alignment=value) if name == "causal_alignment" else problem
        keeping = _keeping(subject, name, value)
        quantity = "lse" if name in OF_LSE else "output"
        if explains(judged(keeping, made, {quantity: keeping(made)[quantity]})):
            explain.append(value)
    lengths = f"{problem.query_length} queries and {problem.key_length} keys"
    if len(explain) == 1:
        return Finding(name, explain[0], f"of {', '.join(map(repr, choices))} it alone explains {lengths}")
    several = " and ".join(map(repr, explain))
    return Finding(name, None, f"{several} explain {lengths}" if explain else f"no choice explains {lengths}")


def _of_unequal_lengths(subject: Subject, queries: int, keys: int) -> Problem | None:
    if not subject.supports("causal", "cross"):
        return None
    rng = np.random.default_rng(0)
    q, k, v = (bits.nearest(rng.standard_normal((1, 2, n, 16)), subject.dtype) for n in (queries, keys, keys))
    return Problem(
        q=q, k=k, v=v, dtype=subject.dtype, causal=True, causal_alignment=subject.conventions.causal_alignment
    )


def _with_the_diagonal(subject: Subject) -> Problem | None:
    return _of_unequal_lengths(subject, 5, 8)


def _with_an_empty_row(subject: Subject) -> Problem | None:
    """A problem in which a query sees no key: by a mask, or since there are fewer keys than queries."""
    if subject.supports("mask"):
        problem = plain(subject.kernel, subject.dtype)
        mask = np.ones(problem.score_shape[2:], dtype=bool)
        mask[1] = False
        return problem.replace(mask=mask[None, None])
    longer = _of_unequal_lengths(subject, 8, 5)
    return longer if longer is not None and longer.empty_rows.any() else None


def _with_an_lse(subject: Subject) -> Problem | None:
    return plain(subject.kernel, subject.dtype) if subject.supports("lse") else None


def _with_the_lse_of_an_empty_row(subject: Subject) -> Problem | None:
    return _with_an_empty_row(subject) if subject.supports("lse") else None


#: A problem in which each matters; the ones before are settled then.
EXPERIMENTS: dict[str, Callable[[Subject], Problem | None]] = {
    "lse_base": _with_an_lse,
    "causal_alignment": _with_the_diagonal,
    "empty_row": _with_an_empty_row,
    "empty_lse": _with_the_lse_of_an_empty_row,
}

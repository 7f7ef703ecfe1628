"""Conventions on which sound systems differ: for each, the only choice that explains the kernel's answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attn_spec.judgement.other_problems import explains
from attn_spec.kernels.misbehaviour import CallFailed, Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.conventions import CONVENTIONS, SAME, Convention
from attn_spec.problem.problem import Problem
from attn_spec.search.assertions import judged
from attn_spec.search.histories import rewritten
from attn_spec.search.plain_calls import plain, with_a_row_empty_by_bias, with_an_empty_row

from .instrument import Finding, asked

#: Number of equal calls whose bits are compared.
CALLS = 4


def conventions(subject: Subject) -> tuple[Subject, list[Finding]]:
    """Return the subject with the conventions that were found, and a finding for each convention that matters to it.

    A convention that was found is settled before the next is asked for.
    """
    found = []
    for name, row in CONVENTIONS.items():
        experiment = _experiment(subject, row)
        if experiment is None:
            continue
        finding = asked(name, partial(_explained, subject, row, *experiment))
        found.append(finding)
        if finding.value is not None:
            subject = subject.keeping(**{name: finding.value})
    for name, experiment, usual in (
        ("deterministic", determinism, "True"),
        ("overwrites_results", overwriting, "False"),
    ):
        finding = asked(name, partial(experiment, subject))
        found += [finding] if finding.value not in {usual, None} else []
    return subject, found


def determinism(subject: Subject) -> Finding:
    """Return whether a few equal calls give equal bits."""
    problem = plain(subject.kernel, subject.dtype)
    answers = [subject(problem)["output"] for _ in range(CALLS)]
    same = all(bits.identical(answers[0], other).all() for other in answers[1:])
    return Finding("deterministic", str(same), f"{CALLS} equal calls give {'equal' if same else 'different'} bits")


def overwriting(subject: Subject) -> Finding:
    """Return whether the next call overwrites an answer."""
    problem = plain(subject.kernel, subject.dtype)
    interrupted = replace(subject, between=lambda own: own(rewritten(problem)))
    try:
        interrupted(problem)
    except CallFailed:
        raise
    except Misbehaviour as error:
        return Finding("overwrites_results", "True", str(error).partition(";")[0])
    return Finding("overwrites_results", "False", "an answer is the same after the next call")


def _explained(subject: Subject, row: Convention, quantity: str, problem: Problem) -> Finding:
    """Return the only choice that explains the answer to a problem in which it matters."""
    explain = []
    for value in row.telling:
        made = problem.replace(**{row.name: value}) if row.is_option else problem
        keeping = subject.keeping(**{row.name: value})
        if explains(judged(keeping, made, {quantity: keeping(made)[quantity]})):
            explain.append(value)
    lengths = f"{problem.query_length} queries and {problem.key_length} keys"
    if len(explain) == 1:
        evidence = f"of {', '.join(map(repr, row.telling))} it alone explains {lengths}"
        same = row.follows and explain[0] == getattr(subject.conventions, row.follows)
        return Finding(row.name, SAME if same else explain[0], evidence)
    several = " and ".join(map(repr, explain))
    return Finding(row.name, None, f"{several} explain {lengths}" if explain else f"no choice explains {lengths}")


def _experiment(subject: Subject, row: Convention) -> tuple[str, Problem] | None:
    """Return a quantity that the convention decides and the kernel returns, and a problem in which it does so."""
    quantity = next((name for name in row.decides if name != "lse" or subject.supports("lse")), None)
    problem = next(filter(row.shows, _problems(subject)), None)
    return None if quantity is None or problem is None else (quantity, problem)


def _problems(subject: Subject) -> Iterator[Problem]:
    """Yield problems that the kernel takes.

    They are a plain one, one with more keys than queries, two with empty rows, one with a row that is empty by a bias,
    and one with a row that is not there.
    """
    yield plain(subject.kernel, subject.dtype)
    if subject.supports("causal", "cross"):
        yield _of_unequal_lengths(subject, 5, 8)
    if subject.supports("mask"):
        yield with_an_empty_row(subject.kernel, subject.dtype)
    if subject.supports("causal", "cross"):
        yield _of_unequal_lengths(subject, 8, 5)
    if subject.supports("bias"):
        yield with_a_row_empty_by_bias(subject.kernel, subject.dtype)
    if subject.supports("seqused_q"):
        problem = plain(subject.kernel, subject.dtype)
        yield problem.replace(seqused_q=np.full((problem.batch, 1, 1, 1), problem.query_length - 1))


def _of_unequal_lengths(subject: Subject, queries: int, keys: int) -> Problem:
    rng = np.random.default_rng(0)
    q, k, v = (bits.nearest(rng.standard_normal((1, 2, n, 16)), subject.dtype) for n in (queries, keys, keys))
    return Problem(
        q=q, k=k, v=v, dtypes=subject.dtype, causal=True, causal_alignment=subject.conventions.causal_alignment
    )

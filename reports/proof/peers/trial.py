"""Other suites' rules and inputs tried on a kernel: the verdict that a suite's own tests would give."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.kernels.frameworks.framework import of, values_of
from attn_spec.kernels.frameworks.torch import TORCH
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Answer, Subject
from attn_spec.numbers import bits
from attn_spec.problem.problem import Problem

from ..zoo.mutants import Mutant
from .rows import PEERS, Peer
from .work import work_of

__all__ = ["PEERS", "Finding", "Peer", "complaint", "dtype_for", "try_out", "watch"]

#: Problems in a row that may be too large for what is left of the budget before a trial ends.
TOO_LARGE = 8
#: Most problems of a trial, for suites whose problems are tiny.
MOST_PROBLEMS = 128


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A peer's verdict on a kernel."""

    rejected: bool
    #: Problems tried, and multiply-adds of the forward calls made for them.
    problems: int
    work: int
    seconds: float
    #: The rejected problem, as an expression.
    problem: str = ""
    #: Reason of the rejection, in one line.
    why: str = ""


def dtype_for(peer: Peer, mutant: Mutant) -> str | None:
    """Return the dtype to show a mutant to a peer at: the mutant's own if possible; None if there is none."""
    candidates = (mutant.dtype, *peer.dtypes)
    return next((dtype for dtype in candidates if dtype in peer.dtypes and dtype in mutant.dtypes), None)


def try_out(peer: Peer, subject: Subject, *, work: int, seed: int) -> Finding:
    """Draw problems of the peer until it rejects an answer, the budget of work is spent, or MOST_PROBLEMS are tried.

    Problems that are larger than what is left are passed over, but one is tried always. Raises
    :class:`~attn_spec.reports.proof.peers.recipes.PeerError` where the kernel takes none of its problems.
    """
    rng, start = np.random.default_rng([seed, *peer.name.encode()]), time.monotonic()
    calls = 1 + (peer.again is not None) + _has_gradients(peer, subject)
    spent = problems = too_large = 0
    for problem in peer.problems(subject, rng):
        cost = calls * work_of(problem)
        too_large = too_large + 1 if problems and spent + cost > work else 0
        if too_large == TOO_LARGE or problems == MOST_PROBLEMS:
            break
        if too_large:
            continue
        spent, problems = spent + cost, problems + 1
        if why := complaint(peer, subject, problem, rng):
            found = {"rejected": True, "problem": repr(problem), "why": why}
            return Finding(**found, problems=problems, work=spent, seconds=time.monotonic() - start)
    return Finding(rejected=False, problems=problems, work=spent, seconds=time.monotonic() - start)


def complaint(peer: Peer, subject: Subject, problem: Problem, rng: np.random.Generator) -> str:
    """Return the reason why the peer rejects the kernel on one problem, in one line; empty if it accepts."""
    watched, left = watch(subject)
    try:
        answer = watched(problem)
        seen = problem if peer.reference_first else problem.replace(**left)
        if peer.again is not None and not _same(answer, watched(problem, arrange=peer.again)):
            return "a second call on the same values gives other bits"
        if not peer.accepts(seen, answer["output"], _natural(subject, answer.get("lse"))):
            return "the rule refuses the output"
        if _has_gradients(peer, subject):
            cotangent = bits.nearest(peer.cotangent(rng, answer["output"].shape), problem.dtype)
            found = subject.gradients(problem, cotangent)
            if not peer.accepts_gradients(problem, cotangent, found):  # type: ignore[misc]
                return "the rule refuses the gradients"
    except Misbehaviour as error:
        return str(error).splitlines()[0]
    return ""


def _has_gradients(peer: Peer, subject: Subject) -> bool:
    return peer.accepts_gradients is not None and subject.supports("backward")


def _same(one: Answer, other: Answer) -> bool:
    return all(np.array_equal(values, other[name], equal_nan=True) for name, values in one.items())


def _natural(subject: Subject, lse: np.ndarray | None) -> np.ndarray | None:
    return None if lse is None else lse * subject.conventions.lse_unit


def watch(subject: Subject) -> tuple[Subject, dict[str, np.ndarray]]:
    """Return the subject without the faults that suites do not notice, and q, k, v as its last call left them.

    Inputs that it changes are put back, and a subclass of a tensor is taken for the tensor.
    """
    kernel, left = subject.kernel, {}
    shown = subject.presentation

    def forgiven(*inputs: Any, **options: Any) -> Any:
        given = [values_of(x).copy() for x in inputs]
        returned = kernel(*inputs, **options)
        for name, x, before in zip("qkv", inputs, given, strict=True):
            now = values_of(x).copy()
            left[name] = shown.read(name, now, **options)
            if not np.array_equal(now, before, equal_nan=True):
                x[...] = before if kernel.framework == "numpy" else TORCH.give(before, of(x).dtype_of(x))
        return tuple(_plain(x) for x in returned) if isinstance(returned, tuple) else _plain(returned)

    return replace(subject, kernel=kernel.wrapped(forgiven)), left


def _plain(x: Any) -> Any:
    import torch

    return x.as_subclass(torch.Tensor) if isinstance(x, torch.Tensor) else x

"""Kernels as instruments: problems of one head with chosen scores and values, whose answers reveal the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import overload

import numpy as np

from attn_spec.kernels.frameworks.framework import FrameworkError
from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Width of heads; its square root is a power of 2, so that dividing by it is exact.
WIDTH = 16


@dataclass(frozen=True)
class Finding:
    """Result of one experiment; the value is None if the answer does not decide."""

    name: str
    value: str | None
    evidence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value or 'cannot tell'}  # {self.evidence}"


_listener: ContextVar[Callable[[str], None] | None] = ContextVar("_listener", default=None)


@contextmanager
def announcing(listener: Callable[[str], None] | None) -> Iterator[None]:
    """Tell ``listener`` inside the block what is asked, before each experiment, which may take seconds."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(what: str) -> None:
    """Tell the listener what is asked next."""
    if (listener := _listener.get()) is not None:
        listener(what)


@overload
def asked(name: str, experiment: Callable[[], Finding]) -> Finding: ...
@overload
def asked(name: str, experiment: Callable[[], Finding | None]) -> Finding | None: ...
def asked(name: str, experiment: Callable[[], Finding | None]) -> Finding | None:
    """Run an experiment and return its finding; if a call fails, return a finding without a value, with the reason.

    The name is announced before, see :func:`announcing`.
    """
    announce(name)
    try:
        return experiment()
    except (Misbehaviour, NotTaken, FrameworkError, ProblemError) as error:
        return Finding(name, None, str(error).splitlines()[0])


def of_experiments(subject: Subject) -> Problem:
    """Return a problem of the form that experiments have: one head, and as many queries as keys."""
    return Problem(q=(zeros := np.zeros((1, 1, WIDTH, WIDTH))), k=zeros, v=zeros, dtypes=subject.dtype)


def outputs(subject: Subject, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> bits.Values:
    """Return the output [N, Sk, Dv] of N problems: q [N, 1, d], k [N, Sk, d], v [N, Sk, c], d and c up to WIDTH.

    q is multiplied by sqrt(WIDTH), so that scores are q.k. There are as many queries as keys; the other queries are 0.
    Raises :class:`Misbehaviour`.
    """
    return unscaled(subject, q * WIDTH**0.5, k, v, WIDTH)


def means(subject: Subject, v: np.ndarray) -> bits.Values:
    """Return the output [N, c] of a query that gives all keys equal weights, for values v [N, Sk, c], c up to WIDTH."""
    zeros = np.zeros((*v.shape[:2], 1))
    return outputs(subject, zeros[:, :1], zeros, v)[:, 0, : v.shape[2]]


def unscaled(subject: Subject, q: np.ndarray, k: np.ndarray, v: np.ndarray, width: int) -> bits.Values:
    """Return the output as :func:`outputs` does, for heads of this ``width``, whose scores are q.k / sqrt(width)."""
    length = k.shape[1]

    def padded(x: np.ndarray) -> np.ndarray:
        whole = np.zeros((len(x), 1, length, width))
        whole[:, 0, : x.shape[1], : x.shape[2]] = x
        return whole

    problem = Problem(q=padded(q), k=padded(k), v=padded(v), dtypes=subject.dtype)
    return subject(problem)["output"][:, 0]


def format_of(precision: int) -> str | None:
    """Return the format with this many bits, or with one more, since the experiment rounds too; None if there is none.

    tf32 and float16 have equal precision.
    """
    found = {53: "float64", 24: "float32", 11: "float16 or tf32", 8: "bfloat16"}
    return found.get(precision) or found.get(precision + 1)


def largest_power(subject: Subject) -> int:
    """Return the exponent of the largest power of 2 in the dtype."""
    return int(np.floor(np.log2(FORMATS[subject.dtype].largest)))


def prefix(survived: np.ndarray) -> int:
    """Return the number of true elements before the first false one."""
    return len(survived) if survived.all() else int(np.argmin(survived))

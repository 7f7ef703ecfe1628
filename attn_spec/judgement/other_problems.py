"""Other problems that an answer outside its bound is right for, and so what a kernel may have done instead.

A hint for whoever reads a refutation: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Protocol

from attn_spec.judgement.neighbours import (
    ends_lost,
    made,
    other_edges,
    other_kv_heads,
    other_scales,
    with_diagonal,
    without_options,
)
from attn_spec.problem.problem import Problem

#: Products of a query and a key in problems that are small enough to be judged again and again.
PRODUCTS = 2**20
#: Problems named at most.
MOST = 3
#: Beginning of a hint that names a contract.
_CONTRACT = "within the bound of contract"


class Judged(Protocol):
    """A judgement of an answer, as far as hints read it."""

    @property
    def refuted(self) -> bool: ...
    @property
    def exercised(self) -> bool: ...


def within(contract: str) -> str:
    """The hint that an answer is within the bound of another contract than the declared one."""
    return f"{_CONTRACT} {contract!r}"


def names_a_contract(hint: str) -> bool:
    """Return whether a hint names a contract, which a small problem may earn by chance."""
    return hint.startswith(_CONTRACT)


def explains(judgement: Judged) -> bool:
    """True if the judged answer is within its bound, and the bound says something of it."""
    return judgement.exercised and not judgement.refuted


def is_small(problem: Problem) -> bool:
    """True if judging the problem some dozens of times, once for each hint, takes seconds."""
    return problem.q.size * problem.key_length <= PRODUCTS


def right_for(problem: Problem, judge: Callable[[Problem], Judged | None]) -> list[str]:
    """Name other problems that the answer judged by ``judge`` is within its bound of, a sentence each.

    ``judge`` gives None for a problem that has no such answer. Tried are the problem without each of its options, with
    another value of those that kernels get wrong, with keys lost at either end, with heads that read other kv heads.
    """
    if not is_small(problem):
        return []
    found = []
    changes = (without_options, with_diagonal, other_scales, other_edges, ends_lost, other_kv_heads)
    for words, other in made(problem, chain.from_iterable(of(problem) for of in changes)):
        judgement = judge(other) if other.output_shape == problem.output_shape else None
        if judgement and explains(judgement):
            found.append(f"right for the same problem {words}")
        if len(found) == MOST:
            break
    return found

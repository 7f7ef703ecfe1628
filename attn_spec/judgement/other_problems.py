"""Hints about other problems for which an answer outside its bound is right, and so about what a kernel may have done.

No verdict depends on these hints; they are for the reader of a refutation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from attn_spec.problem.quantities import QUANTITIES

#: Largest product of the elements of q and the key length for which a problem is judged again for each hint.
PRODUCTS = 2**20
#: Largest number of problems, and of contracts, in a hint.
MOST = 3
#: Beginning of a hint that names a contract.
_CONTRACT = "within the bound of contract"
#: End of a hint that names a contract under which zeros are an answer too.
_AS_ZEROS = ", as zeros are"
#: Beginning of a hint that names a convention.
_CONVENTION = "right with conventions="


class Judged(Protocol):
    """The part of a judgement that hints read."""

    @property
    def refuted(self) -> bool: ...
    @property
    def exercised(self) -> bool: ...


def within(contract: str, allows_zeros: bool) -> str:
    """Return the hint that an answer is within the bound of a contract other than the declared one.

    If zeros are so too, the contract explains next to nothing, and the hint says it.
    """
    return f"{_CONTRACT} {contract!r}" + (_AS_ZEROS if allows_zeros else "")


def with_convention(name: str, choice: str) -> str:
    """Return the hint that an answer is right under another choice of a convention."""
    return f"{_CONVENTION}{{{name!r}: {choice!r}}}"


def names_a_contract(hint: str) -> bool:
    """Return whether a hint names a contract."""
    return hint.startswith(_CONTRACT)


def plain(hint: str) -> str:
    """Return a hint without what it says of zeros, which may differ from problem to problem."""
    return hint.removesuffix(_AS_ZEROS)


def may_fit_by_chance(hint: str) -> bool:
    """Return whether a hint is about all answers of a kernel, so that it must explain more than the smallest problem:
    one that names a contract or a convention, or asks for a convention, or says that a gradient is zero.
    """
    told = hint.startswith(_CONVENTION) or "declare a convention" in hint or "is zero everywhere" in hint
    return told or names_a_contract(hint)


def plainest(hints: Iterable[str]) -> tuple[str, ...]:
    """Return hints with few contracts, behind all others: the sharpest first, and no preset after one with a field
    changed.
    """
    contracts, others = [], []
    for hint in hints:
        (contracts if names_a_contract(hint) else others).append(hint)
    first = next((number for number, hint in enumerate(contracts) if "(" in hint), len(contracts))
    kept = [hint for number, hint in enumerate(contracts) if number < first or "(" in hint]
    return *others, *kept[:MOST]


def explains(judgement: Judged) -> bool:
    """Return whether the judged answer is within its bound and the bound measures some element."""
    return judgement.exercised and not judgement.refuted


def is_small(problem: Problem) -> bool:
    """Return whether judging the problem some dozens of times, once for each hint, takes only seconds."""
    return problem.q.size * problem.key_length <= PRODUCTS


def has_gradient(problem: Problem, name: str, shape: tuple[int, ...]) -> bool:
    """Return whether the problem has the gradient of this name, and it has this shape."""
    given = getattr(problem, QUANTITIES[name].gradient_of or "")
    return given is not None and given.shape == shape and (name != "dkv" or problem.latent)


def right_for(problem: Problem, judge: Callable[[Problem], Judged | None]) -> list[str]:
    """Return hints that name other problems for which the answer behind ``judge`` is within its bound.

    ``judge`` returns None for a problem that has no such answer. The problems tried leave out or change one option,
    lose keys at either end, or give query heads other kv heads.
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

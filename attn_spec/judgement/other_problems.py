"""Which other problems an answer outside its bound is right for, and so what a kernel may have done instead.

A hint for whoever reads a refutation: no verdict depends on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from attn_spec.problem.masks import ALIGNMENTS
from attn_spec.problem.option import CHOICE
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError

#: Products of a query and a key in problems that are small enough to be judged again and again.
PRODUCTS = 2**20
#: Lengths of tiles at whose edge the keys past the last full tile may be lost.
TILES = (16, 32, 64, 128)
#: Problems named at most.
MOST = 3
#: How a hint begins that names a contract.
_CONTRACT = "within the bound of contract"


class Judged(Protocol):
    """What a judgement says of an answer."""

    @property
    def refuted(self) -> bool: ...
    @property
    def exercised(self) -> bool: ...


def within(contract: str) -> str:
    """The hint that an answer is within the bound of another contract than the declared one."""
    return f"{_CONTRACT} {contract!r}"


def names_a_contract(hint: str) -> bool:
    """Whether this is such a hint, which a small problem may earn by chance."""
    return hint.startswith(_CONTRACT)


def right_for(problem: Problem, judge: Callable[[Problem], Judged | None]) -> list[str]:
    """Name other problems that the answer judged by ``judge`` is within its bound of, a sentence each.

    ``judge`` gives None for a problem that has no such answer. Tried are the problem without each of its options, with
    another value of those that kernels get wrong, with keys lost at either end, with heads that read other kv heads.
    """
    if problem.q.size * problem.key_length > PRODUCTS:
        return []
    found = []
    for words, other in _others(problem):
        judgement = judge(other) if other.output_shape == problem.output_shape else None
        if judgement and judgement.exercised and not judgement.refuted:
            found.append(f"right for the same problem {words}")
        if len(found) == MOST:
            break
    return found


def _others(problem: Problem) -> Iterator[tuple[str, Problem]]:
    """Problems that differ in one thing, with words for it."""
    for words, changes in _changes(problem):
        try:
            yield words, problem.replace(**changes)
        except ProblemError:  # the thing cannot be changed alone
            continue


def _changes(problem: Problem) -> Iterator[tuple[str, dict[str, object]]]:
    """Fields to change, with words for it; of a layer only what is beside its projections."""
    for name, row in OPTIONS.items():
        makes_layer = any(one.projects_values for one in parameters(name))
        if row.kind != CHOICE and row.is_used(getattr(problem, name)) and not makes_layer:
            yield f"without {name}", {name: row.off} | {one.name: one.off for one in parameters(name)}
    yield from _scales(problem)
    yield from _masks(problem)
    for alignment in ALIGNMENTS:
        if alignment != problem.causal_alignment and problem.query_length != problem.key_length:
            yield f"with causal_alignment={alignment!r}", {"causal_alignment": alignment}
    kv_heads = problem.k.shape[1]
    if problem.group > 1 and kv_heads > 1 and not problem.projects:
        read = np.arange(problem.q.shape[1]) % kv_heads
        yield "with query head h reading kv head h % Hkv", {"k": problem.k[:, read], "v": problem.v[:, read]}


def _scales(problem: Problem) -> Iterator[tuple[str, dict[str, object]]]:
    scale = problem.scale_value
    inverse = 1 / scale if scale else scale
    for words, other in (("1", 1.0), ("its inverse", inverse), ("its square", scale**2)):
        if other != scale:
            yield f"with {words} for its scale", {"scale": other}


def _masks(problem: Problem) -> Iterator[tuple[str, dict[str, object]]]:
    """Other visible keys: the diagonal or an edge of the window a key off, a mask inverted, keys lost."""
    seen, keys = problem.visible, np.arange(problem.key_length)
    if problem.causal:
        yield "with the diagonal a key earlier", {"mask": seen & (problem.distances < 0)}
        beyond = problem.replace(causal=False).visible
        yield "with the diagonal a key later", {"causal": False, "mask": beyond & (problem.distances <= 1)}
    left, right = problem.window or (None, None)
    for step in (-1, 1):
        for window in ((_moved(left, step), right), (left, _moved(right, step))):
            if window != (left, right):
                yield f"with window={window}", {"window": window}
    if problem.mask is not None:
        yield "with its mask inverted", {"mask": ~problem.mask}
    for lost in sorted({1, *(problem.key_length % tile for tile in TILES)} - {0}):
        if lost < problem.key_length:
            what = "key" if lost == 1 else f"{lost} keys"
            yield f"without its last {what}", {"mask": seen & (keys < problem.key_length - lost)}
            yield f"without its first {what}", {"mask": seen & (keys >= lost)}


def _moved(edge: int | None, step: int) -> int | None:
    """An edge of a window moved by a key; None: there is none."""
    return None if edge is None else edge + step

"""Which reading of a contract explains an answer best: a kernel keeps to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from attn_spec.error.contract import ResolvedContract


class _Judged(Protocol):
    @property
    def refuted(self) -> bool: ...
    @property
    def exercised(self) -> bool: ...
    @property
    def ratio(self) -> float: ...


Judged = TypeVar("Judged", bound=_Judged)


def best(judge: Callable[[ResolvedContract], Judged], choices: Sequence[ResolvedContract]) -> Judged:
    """The first that measures something and is not refuted: a contract is kept in one of its readings.

    Without such a one, one that says nothing about the answer, or at last the refuted one nearest to its bound.
    """
    silent, refuted = [], []
    for reading in choices:
        judgement = judge(reading)
        if judgement.exercised and not judgement.refuted:
            return judgement
        (refuted if judgement.refuted else silent).append(judgement)
    return silent[0] if silent else min(refuted, key=lambda judgement: judgement.ratio)

"""The reading of a contract that explains an answer best: a kernel keeps to one of them.

A reading may be silent of an element, where its arithmetic could overflow. What it is silent of is not judged, whatever
the other readings say: the kernel may keep to the silent one, and an overflow may leave any number behind, the largest
one where results are cut. So the silence is counted and told, and passes for no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.terms import guard, stands


class _Judged(Protocol):
    @property
    def refuted(self) -> bool: ...
    @property
    def exercised(self) -> bool: ...
    @property
    def ratio(self) -> float: ...
    @property
    def silent(self) -> int:
        """The number of elements that this reading is silent of, and another may measure."""
        ...


Judged = TypeVar("Judged", bound=_Judged)


def best(judge: Callable[[ResolvedContract], Judged], choices: Sequence[ResolvedContract]) -> Judged:
    """The first that is not refuted and says something of every element, else of most.

    Without such a one, one that says nothing of the whole answer; at last the refuted one nearest to its bound.
    """
    holding, silent, refuted = [], [], []
    for reading in choices:
        judgement = judge(reading)
        if guard("a reading that is refuted is passed over", judgement.refuted, False):
            refuted.append(judgement)
        elif not judgement.exercised:
            silent.append(judgement)
        elif guard("a reading that says more is preferred", judgement.silent, False):
            holding.append(judgement)
        else:
            return judgement
    if holding:
        return min(holding, key=lambda judgement: judgement.silent)
    if silent and stands("a reading that is silent of an answer is not refuted by another one"):
        return silent[0]
    return min(refuted, key=lambda judgement: judgement.ratio)

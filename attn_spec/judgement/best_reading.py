"""Choice of the reading of a contract that explains an answer best; a kernel follows one reading.

A reading is silent about an element where its arithmetic could overflow. Such an element is not judged, whatever other
readings say: the kernel may follow the silent reading, and an overflow may produce any number. Where results are
clamped, it may even produce the largest one. Silent elements are therefore counted and reported, and give no verdict.
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
        """Number of elements that this reading is silent about, and that another reading may measure."""
        ...


Judged = TypeVar("Judged", bound=_Judged)


def best(judge: Callable[[ResolvedContract], Judged], choices: Sequence[ResolvedContract]) -> Judged:
    """Return the first judgement that is not refuted and not silent about any element.

    Without one, return by preference:
    - the judgement that is not refuted and silent about the fewest elements;
    - a judgement that is silent about the whole answer;
    - the refuted judgement nearest to its bound.
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

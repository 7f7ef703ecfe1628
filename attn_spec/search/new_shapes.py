"""New shapes: what a kernel's first call at a shape costs, beside a repeated one.

A function that is compiled for each shape takes longer to compile than the search takes for everything else. The search
of such a kernel keeps to few signatures, which are shapes with sets of options.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from attn_spec.kernels.limits import NotTaken
from attn_spec.kernels.misbehaviour import Misbehaviour
from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.search.plain_calls import plain

#: Shapes at which a kernel is called.
SHAPES = 3
#: Time of a first call, relative to a repeated one, from which a search keeps to few signatures.
TIMES = 10
#: Seconds that a first call then takes at least. Drawing and judging a problem takes about this long.
LEAST = 0.05
#: Number of signatures that each search then draws.
FEW = 2


@dataclass(frozen=True)
class Cost:
    """Seconds of a kernel's calls: the fastest of several, since a busy machine makes calls slower."""

    first: float
    repeated: float

    @property
    def is_high(self) -> bool:
        """True if first calls cost so much that a search keeps to few signatures."""
        return self.first >= max(LEAST, TIMES * self.repeated)

    def __str__(self) -> str:
        """Say what a new shape costs, and what the search does about it."""
        times = self.first / self.repeated
        return (
            f"a first call at a shape takes {self.first:.2g} s, {times:.0f} times as long as the next, so each search "
            f"keeps to {FEW} signatures, which are shapes with options; signatures=N declares another number"
        )


def high_cost(subject: Subject) -> Cost | None:
    """Return the cost of new shapes if it is high; None if it is not, or if the kernel takes no plain call."""
    lowest = Cost(math.inf, math.inf)
    shapes = {plain(subject.kernel, subject.dtype).score_shape}
    for larger in range(1, SHAPES + 1):
        problem = plain(subject.kernel, subject.dtype, larger=larger)
        if problem.score_shape in shapes:
            return None
        shapes.add(problem.score_shape)
        try:
            first, repeated = _seconds(subject, problem), _seconds(subject, problem)
        except (Misbehaviour, NotTaken):
            return None
        lowest = Cost(min(first, lowest.first), min(repeated, lowest.repeated))
        if not lowest.is_high:
            return None
    return lowest


def _seconds(subject: Subject, problem: Problem) -> float:
    begun = time.perf_counter()
    subject(problem)
    return time.perf_counter() - begun

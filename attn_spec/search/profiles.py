"""The profiles ``smoke``, ``ci`` and ``certify``, which say how long to search.

A search is a function of its seed: equal seeds draw equal problems. Profiles with a fixed seed are for comparing
runs; ``certify`` draws a new seed for each run and records it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One effort of search. The numbers are for one property, one kernel, one dtype."""

    name: str
    #: Problems tried.
    examples: int
    #: Fewest problems for the verdict "held"; with fewer it is "not exercised".
    floor: int
    #: Seconds after which no new problem is drawn.
    seconds: float
    #: Seconds spent on making a failing problem smaller.
    shrink_seconds: float
    #: Seed of the search; None draws one.
    seed: int | None
    #: Whether a kernel that holds all it declares is called certified.
    certifies: bool = False

    def chance(self, share: float, properties: int) -> float:
        """The probability that searches of so many properties meet a fault that shows in this share of problems."""
        return 1 - (1 - share) ** (self.examples * properties)


_ROWS = (
    Profile(name="smoke", examples=10, floor=5, seconds=60, shrink_seconds=15, seed=0),
    Profile(name="ci", examples=60, floor=30, seconds=180, shrink_seconds=30, seed=0),
    Profile(name="certify", examples=400, floor=200, seconds=900, shrink_seconds=60, seed=None, certifies=True),
)

#: Profiles by name.
PROFILES: dict[str, Profile] = {row.name: row for row in _ROWS}

"""Profiles ``smoke``, ``ci`` and ``certify``, which set the effort of a search.

A search is a function of its seed: equal seeds draw equal problems. Profiles with a fixed seed are for comparing runs;
``certify`` draws a new seed for each run and records it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Effort of one search, which is for one property, one kernel and one dtype."""

    name: str
    #: Number of problems tried.
    examples: int
    #: Fewest problems for the verdict "held"; with fewer it is "not exercised".
    floor: int
    #: Seconds after which no new problem is drawn, on a machine with a core for each process.
    seconds: float
    #: Seconds spent on making a failing problem smaller.
    shrink_seconds: float
    #: Seed of the search; None draws one.
    seed: int | None
    #: True if a kernel that holds all it declares is called certified.
    certifies: bool = False

    def chance(self, share: float, properties: int) -> float:
        """Return the probability that searches for ``properties`` properties meet a fault that this share of problems
        shows.
        """
        return 1 - (1 - share) ** (self.examples * properties)


_ROWS = (
    Profile(name="smoke", examples=10, floor=5, seconds=60, shrink_seconds=15, seed=0),
    Profile(name="ci", examples=60, floor=30, seconds=180, shrink_seconds=30, seed=0),
    Profile(name="certify", examples=400, floor=200, seconds=900, shrink_seconds=60, seed=None, certifies=True),
)

#: Profiles by name.
PROFILES: dict[str, Profile] = {row.name: row for row in _ROWS}

"""Times taken side by side: candidates take turns, round after round, and the median of each counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def side_by_side(runs: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each, taken in turns after one unmeasured turn."""
    for run in runs.values():
        run()
    turns = [{name: timed(run) for name, run in runs.items()} for _ in range(rounds)]
    return {name: statistics.median(turn[name] for turn in turns) for name in runs}


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

"""Costs as ratios to those of another kernel in the same case: a time or memory alone is never reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from .measurement import REFERENCES, Cost


def references(costs: Sequence[Cost]) -> Mapping[str, str]:
    """Return the kernels called "flash" and "eager" among those that were measured; empty where neither was."""
    measured = {one.kernel for one in costs}
    for names in REFERENCES.values():
        if measured.issuperset(names.values()):
            return names
    return {}


def to(costs: Sequence[Cost], one: Cost, reference: str, what: Literal["seconds", "bytes"]) -> float | None:
    """Return the cost over that of a reference; None where either is unknown or the reference's is 0."""
    name = references(costs).get(reference)
    beside = next((cost for cost in costs if (cost.kernel, cost.made, cost.case) == (name, one.made, one.case)), None)
    own, other = getattr(one, what), getattr(beside, what, None)
    return own / other if own is not None and other else None

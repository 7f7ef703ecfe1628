"""Costs as ratios to those of the same case: no time or memory of one kernel is told without that of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from .measurement import REFERENCES, Cost


def references(costs: Sequence[Cost]) -> Mapping[str, str]:
    """The kernels called "flash" and "eager" among those that were measured; empty where neither was."""
    measured = {one.kernel for one in costs}
    for names in REFERENCES.values():
        if measured.issuperset(names.values()):
            return names
    return {}


def to(costs: Sequence[Cost], one: Cost, reference: str, what: Literal["seconds", "bytes"]) -> float | None:
    """The cost over that of a reference, None where either is not known or the latter is nothing."""
    name = references(costs).get(reference)
    beside = next((c for c in costs if (c.kernel, c.made, c.case) == (name, one.made, one.case)), None)
    own, other = getattr(one, what), getattr(beside, what, None)
    return own / other if own is not None and other else None

"""The bounds are what they were when they were last examined; `pytest --snapshot-update` records them anew.

A bound that changes is a theorem that changes: the adversary, the witnesses and `make validate` say whether it may.
"""

from collections.abc import Iterable

import numpy as np
import pytest
from attn_spec.reports.adversary_cases import STAGES, presets, stages
from attn_spec.reports.attack import Attack, allowed


def recorded(attacks: Iterable[tuple[str, str, Attack]]) -> str:
    """A line for each attack: the sums of the bounds of its quantities; NaN is outside the domain."""
    lines = []
    for stage, way, attack in attacks:
        sums = (f"{name} {np.sum(bound):.5e}" for name, bound in allowed(attack).items())
        lines.append(f"{stage}, {way}: {', '.join(sums)}")
    return "\n".join(lines)


@pytest.mark.parametrize("stage", STAGES)
def test_bounds_of_one_narrow_stage_are_as_recorded(stage, snapshot):
    """Every other way, and in the next stage the others."""
    of_stage = [case for case in stages() if case[0] == stage]

    assert recorded(of_stage[STAGES.index(stage) % 2 :: 2]) == snapshot


def test_bounds_of_presets_are_as_recorded(snapshot):
    assert recorded(presets()) == snapshot

"""Figures on rare faults, of docs/how-to/certify.md, are those that the profiles give."""

import pytest

from attn_spec.search.drawing import turns
from attn_spec.search.profiles import PROFILES


@pytest.mark.parametrize(
    ("profile", "share", "percent"),
    [
        ("smoke", 1e-3, 33),
        ("ci", 1e-3, 91),
        ("smoke", 1e-4, 4),
        ("ci", 1e-4, 21),
        ("certify", 1e-4, 80),
    ],
)
def test_the_chance_to_meet_a_rare_fault(profile, share, percent):
    assert round(100 * PROFILES[profile].chance(share, properties=40)) == percent


def test_certify_meets_one_in_a_thousand_nearly_always():
    assert PROFILES["certify"].chance(1e-3, properties=40) > 0.999
    assert PROFILES["certify"].chance(0.0, properties=40) == 0.0


def test_one_problem_in_four_is_of_a_size():
    assert [len(turns.turns(profile.examples, "a.property")) for profile in PROFILES.values()] == [2, 15, 100]

"""A session's effort: the first cases are made small, the others cost little; slow kernels may be given little."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attn_spec.screen import BLOCKS
from attn_spec.search.profiles import PROFILES
from attn_spec.session import SHRUNK, Session


def effort(profile, *, cases=0, brief=False, slowness=1.0, signatures=None):
    session = SimpleNamespace(cases=cases, profile=profile, option={"brief": brief}.__getitem__)
    return Session._effort(session, SimpleNamespace(kernel=SimpleNamespace(slowness=slowness, signatures=signatures)))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_cases_that_a_screen_shows_are_shrunk_and_later_ones_hardly(profile):
    efforts = [effort(profile, cases=n) for n in range(SHRUNK + 2)]

    assert SHRUNK >= BLOCKS
    assert efforts[:SHRUNK] == [profile] * SHRUNK
    assert all(effort.shrink_seconds < profile.shrink_seconds / 10 for effort in efforts[SHRUNK:])
    assert all(effort.examples == profile.examples for effort in efforts)


def test_only_slow_kernels_and_those_of_few_shapes_are_given_little_and_only_when_asked():
    smoke = PROFILES["smoke"]

    assert effort(smoke, slowness=2.0) == effort(smoke, signatures=4) == effort(smoke, brief=True) == smoke
    for slow in ({"slowness": 2.0}, {"signatures": 4}):
        assert effort(smoke, brief=True, **slow) == replace(smoke, examples=smoke.floor)

"""A session's effort: the first cases are made small, the others cost little; who asks for it gets less."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from attn_spec.cli.screen import BLOCKS
from attn_spec.search.profiles import PROFILES
from attn_spec.sessions.session import SHRUNK, Session


def effort(profile, *, cases=0, brief=False):
    return Session._effort(SimpleNamespace(cases=cases, profile=profile, option={"brief": brief}.__getitem__))


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_cases_that_a_screen_shows_are_shrunk_and_later_ones_hardly(profile):
    efforts = [effort(profile, cases=n) for n in range(SHRUNK + 2)]

    assert SHRUNK >= BLOCKS
    assert efforts[:SHRUNK] == [profile] * SHRUNK
    assert all(effort.shrink_seconds < profile.shrink_seconds / 10 for effort in efforts[SHRUNK:])
    assert all(effort.examples == profile.examples for effort in efforts)


def test_little_is_given_only_when_asked_and_enough_for_a_verdict():
    smoke = PROFILES["smoke"]

    assert effort(smoke) == smoke
    assert effort(smoke, brief=True) == replace(smoke, examples=smoke.floor)

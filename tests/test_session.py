"""A session's effort: the first cases are made small, the others cost little."""

from types import SimpleNamespace

import pytest

from attn_spec.screen import BLOCKS
from attn_spec.search.profiles import PROFILES
from attn_spec.session import SHRUNK, Session


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_cases_that_a_screen_shows_are_shrunk_and_later_ones_hardly(profile):
    efforts = [Session._effort(SimpleNamespace(cases=n, profile=profile)) for n in range(SHRUNK + 2)]

    assert SHRUNK >= BLOCKS
    assert efforts[:SHRUNK] == [profile] * SHRUNK
    assert all(effort.shrink_seconds < profile.shrink_seconds / 10 for effort in efforts[SHRUNK:])
    assert all(effort.examples == profile.examples for effort in efforts)

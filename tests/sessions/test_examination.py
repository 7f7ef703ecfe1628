"""Requests of certify to its processes."""

import pytest

from attn_spec.sessions import examination
from attn_spec.sessions.progress import Request


@pytest.mark.parametrize(("profile", "given"), [("certify", None), ("certify", 5), ("smoke", None)])
def test_a_seed_that_is_drawn_is_one_for_all_shares(profile, given, monkeypatch):
    asked = []
    monkeypatch.setattr(examination, "_examine_shares", lambda request, *_: asked.append(request.arguments()) or "")
    for _ in range(2):
        with pytest.raises(examination.CannotRunError, match="no property was examined"):
            examination.examine(Request(kernel="mine.py:attention", profile=profile, seed=given, workers=2))

    seeds = [option for options in asked for option in options if option.startswith("--attn-seed=")]
    drawn = profile == "certify" and given is None
    assert len(seeds) == (0 if profile == "smoke" else 2)
    assert len(set(seeds)) == (2 if drawn else len(set(seeds[:1])))

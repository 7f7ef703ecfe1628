"""Own tests draw the same on every machine and in every run, and something else from another seed."""

import re
from pathlib import Path

import pytest

DRAWN = """
import random
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

found = []

@given(st.integers(0, 2**60))
def test_drawn(number):
    found.append(number)

@pytest.mark.parametrize("again", range(2))
def test_numbers(again):
    print("numbers", torch.rand(1).item(), np.random.rand(), random.random())

def test_told():
    print("drawn", sum(found))
"""
ROOT = Path(__file__).parents[1]


@pytest.fixture
def run(pytester, monkeypatch):
    """Return the draws of tests, with these arguments of pytest."""
    fixture = (
        ROOT.joinpath("tests/conftest.py").read_text(encoding="utf-8").replace('pytest_plugins = ["pytester"]', "")
    )
    pytester.makepyfile(conftest=ROOT.joinpath("conftest.py").read_text(encoding="utf-8"))
    pytester.mkpydir("own").joinpath("conftest.py").write_text(fixture, encoding="utf-8")
    pytester.path.joinpath("own/test_drawn.py").write_text(DRAWN, encoding="utf-8")

    def draw(*arguments, ci=False):
        (monkeypatch.setenv if ci else monkeypatch.delenv)("CI", *(["true"] if ci else [False]))
        done = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider", *arguments, "own")
        done.assert_outcomes(passed=4)
        return re.findall(r"(drawn|numbers) ([\d. ]+)", done.stdout.str())

    return draw


def test_own_tests_draw_from_fixed_seeds_unless_another_is_given(run):
    fixed = run()

    assert [name for name, _ in fixed] == ["numbers", "numbers", "drawn"]
    assert fixed[0] == fixed[1]
    assert run(ci=True) == fixed
    other = run("--hypothesis-seed", "7")
    assert not set(other) & set(fixed)
    assert other == run("--hypothesis-seed", "7")

"""A search is a function of its seed, and ends in time."""

import importlib
import sys
import time
from dataclasses import replace

from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing import strategies
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import Property
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict


def searched(check, seed=0, **changes):
    """Return the row and the case of a property that checks every problem by ``check``."""
    property_ = Property(
        id="toy.property", statement="", source="", hunts="", needs=(), check=check, problems=strategies.problems
    )
    return search(property_, Subject(resolve("numpy_tiled"), "float32"), replace(PROFILES["smoke"], **changes), seed)


def tried(seed, examples=PROFILES["smoke"].examples):
    """Return the problems of a search, as text."""
    seen = []
    searched(lambda subject, problem: seen.append(repr(problem)), seed, examples=examples)
    return seen


def test_equal_seeds_try_equal_problems_and_other_seeds_others():
    assert len(tried(0)) == PROFILES["smoke"].examples
    assert tried(0) == tried(0)
    assert tried(0) != tried(1)


def test_what_is_loaded_beside_it_changes_no_problem(monkeypatch, tmp_path_factory):
    before = tried(0, examples=60)
    folder = tmp_path_factory.getbasetemp().parent / "beside"  # Hypothesis skips a path of a test
    folder.mkdir(exist_ok=True)
    folder.joinpath("beside.py").write_text(f"SIZES = {list(range(200))}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    importlib.import_module("beside")

    assert tried(0, examples=60) == before


def test_shrinking_ends_when_its_time_is_up():
    def check(_, problem):
        time.sleep(0.2)
        raise AssertionError(problem.key_length)

    start = time.monotonic()
    row, case = searched(check, shrink_seconds=1.0)

    assert row.verdict is Verdict.REFUTED
    assert case is not None
    assert time.monotonic() - start < 3.0


def test_a_search_that_runs_out_of_time_is_not_exercised(monkeypatch):
    monkeypatch.setattr("attn_spec.search.search.crowding", lambda: 1.0)
    row, _ = searched(lambda subject, problem: time.sleep(0.2), seconds=0.5)

    assert row.verdict is Verdict.NOT_EXERCISED
    assert row.message.endswith("problems were tried, 5 are needed: 0.5 s were up")


def test_a_search_has_more_time_where_processes_share_a_core(monkeypatch):
    monkeypatch.setattr("attn_spec.search.search.crowding", lambda: 100.0)
    row, _ = searched(lambda subject, problem: time.sleep(0.2), seconds=0.5)

    assert row.verdict is Verdict.HELD

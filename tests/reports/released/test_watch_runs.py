"""Watch runs: models of a project run while their calls are judged, with an environment that is this one."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from attn_spec.reports.released import conclusion, watch_runs
from attn_spec.reports.released.environments import Environment, Installed
from attn_spec.reports.released.watch_runs import WatchRun

HERE = Installed(environment=Environment(name="here", requirements=()), commands=Path(sys.executable).parent)
MODELS = """
import sys
import types

import torch
from torch.nn.functional import scaled_dot_product_attention


def test_a_layer():
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    scaled_dot_product_attention(q, k, v)
    sys.modules[__name__].{called}
"""
RUN = WatchRun(
    name="watched-here",
    project="PyTorch",
    package="torch",
    environment="here",
    file="here.py",
    functions=(watch_runs.SDPA,),
)


@pytest.fixture
def watched(tmp_path, monkeypatch):
    monkeypatch.setattr(watch_runs, "MODELS", tmp_path)

    def watched(called="__name__", run=RUN):
        (tmp_path / "here.py").write_text(MODELS.format(called=called))
        return watch_runs.watch(run, HERE, tmp_path)

    return watched


def test_calls_of_models_are_judged(watched):
    found = watched()

    assert (found.name, found.result, found.reason) == ("watched-here", "passed", "")
    assert found.version == __import__("torch").__version__
    assert [(one.function, one.calls, one.judged) for one in found.functions] == [(watch_runs.SDPA, 1, 1)]
    assert 0 < found.functions[0].ratio <= 1
    assert found.seconds > 0
    assert conclusion.conclusions([], [found]) == []


def test_a_model_that_fails_could_not_run(watched):
    found = watched(called="nothing_that_is_there")

    assert (found.result, found.functions) == ("could not run", ())
    assert found.reason.startswith("pytest ended with 1: ")
    assert "1 failed" in found.reason
    assert conclusion.conclusions([], [found]) == [(3, f"watched-here: could not run: {found.reason}")]


def test_a_function_that_no_model_calls_is_inconclusive(watched):
    function = "torch.nn.attention.flex_attention:flex_attention"

    found = watched(run=replace(RUN, functions=(*RUN.functions, function)))

    assert (found.result, found.reason) == ("inconclusive", f"no call of {function} was judged")
    assert conclusion.status(conclusion.conclusions([], [found])) == 3


def test_a_refuted_call_is_a_refutation(watched, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def attention(q, k, v):\n    return v\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    found = watched(
        called="torch and __import__('mine').attention(q, k, v)", run=replace(RUN, functions=("mine:attention",))
    )

    assert (found.result, found.refuted) == ("refuted", 1)
    assert conclusion.conclusions([], [found]) == [(1, "watched-here: 1 refuted call")]
    assert list(tmp_path.glob(".attn-spec/cases/*.json"))

"""Implementations at a shape of a production size, with an environment that is this one."""

import json
import sys
from pathlib import Path

import pytest
from attn_spec.reports.released import call_seconds, implementation, production_shape
from attn_spec.reports.released.environments import Environment, Installed
from attn_spec.reports.released.findings import Finding
from attn_spec.reports.released.implementation import Implementation

HERE = Installed(environment=Environment(name="here", requirements=()), commands=Path(sys.executable).parent)
KERNEL = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="eager"{declared})
def attention(q, k, v):
    far = np.minimum(np.arange(k.shape[2]), {last})
    s = q @ k[:, :, far].swapaxes(2, 3) * np.float32(q.shape[3] ** -0.5)
    p = np.exp(s - s.max(axis=3, keepdims=True))
    return p @ v[:, :, far] / p.sum(axis=3, keepdims=True)
"""
ROW = Implementation(
    name="here",
    project="numpy",
    package="numpy",
    function="attention",
    environment="here",
    kernel="here.py:attention",
    shape="Hq=4,Hkv=2,S=640,D=32",
)


@pytest.fixture
def examined(tmp_path, monkeypatch):
    monkeypatch.setattr(implementation, "ADAPTERS", tmp_path)
    monkeypatch.chdir(tmp_path)

    def examined(*, last=10**6, declared="", row=ROW, findings=()):
        (tmp_path / "here.py").write_text(KERNEL.format(last=last, declared=declared))
        return production_shape.examine(row, findings, HERE, "--profile", "smoke", "--workers", "1", has_groups=False)

    return examined


def test_a_row_without_groups_is_examined_with_as_many_kv_heads_as_query_heads(examined):
    found, refutations = examined()

    assert (found.shape, found.result, found.reason) == ("B=1,Hq=4,Hkv=4,Sq=640,Sk=640,D=32", "passed", "")
    assert refutations == ()
    assert 0 < found.ratio <= 1
    assert all(text.startswith(found.shape) for text in found.looked_at)
    assert found.looked_at
    assert list(found.call_seconds) == ["forward"]
    assert 0 < found.call_seconds["forward"] < found.seconds


def test_keys_that_are_lost_at_that_size_alone_are_a_refutation(examined):
    found, refutations = examined(last=600)

    assert found.result == "refuted"
    assert [one.place for one in refutations] == [
        f"{production_shape.PROPERTIES}.sampled_rows_are_within_their_bounds, float32"
    ]
    assert refutations[0].judged == ""


def test_a_refutation_that_a_finding_covers_is_a_known_defect(examined):
    name = f"{production_shape.PROPERTIES}.sampled_rows_are_within_their_bounds"
    facts = {"implementation": "here", "word": "limit", "reason": "it reads 600 keys", "source": "run"}

    found, refutations = examined(last=600, findings=(Finding(**facts, properties=(name,)),))

    assert (found.result, found.reason) == ("known defect", "")
    assert [one.judged for one in refutations] == ["it reads 600 keys"]


def test_a_shape_that_the_implementation_does_not_take_is_no_verdict(examined):
    found, refutations = examined(declared=", head_dims=(64,)")

    assert (found.result, refutations) == ("inconclusive", ())
    assert "64" in found.reason


def test_a_call_that_cannot_be_timed_leaves_the_verdict(examined, tmp_path, monkeypatch):
    monkeypatch.setattr(production_shape, "TIMER", tmp_path / "nowhere.py")

    found, _ = examined()

    assert (found.result, found.call_seconds) == ("passed", {})
    assert found.reason.startswith("no call was timed: ")
    assert "nowhere.py" in found.reason


def test_both_passes_of_a_kernel_are_timed(capsys):
    call_seconds.main(["numpy_tiled", "--dtype", "float32", "--shape", "H=2,S=96,D=16"])

    seconds = json.loads(capsys.readouterr().out)
    assert set(seconds) == {"forward", "backward"}
    assert all(one > 0 for one in seconds.values())


def test_a_shape_that_is_none_ends_the_timing(capsys):
    with pytest.raises(SystemExit, match="2"):
        call_seconds.main(["numpy_tiled", "--dtype", "float32", "--shape", "H=2"])
    assert "lacks Sq, Sk, D" in capsys.readouterr().err

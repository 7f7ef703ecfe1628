"""The workers of a cluster certify a kernel as the processes of one machine do."""

import copy

import pytest

from attn_spec.evidence import certificate
from attn_spec.sessions import examination
from attn_spec.sessions.examination import CannotRunError, examine
from attn_spec.sessions.progress import Request

TOY = """
import os, signal
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fused", supports=("dv", "cross"))
def attention(q, k, v):
    if k.shape[2] > 1:
        k, v = k[:, :, :-1], v[:, :, :-1]
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v
"""


@pytest.mark.exhaustive
def test_a_certificate_of_a_cluster_is_that_of_one_machine_and_its_cases_are_here(folder, address, monkeypatch):
    folder.joinpath("toy.py").write_text(TOY)
    chosen = {"kernel": "toy.py:attention", "only": ("accuracy.output", "accuracy.log")}
    here, _ = examine(Request(**chosen))
    (case,) = sorted(folder.glob(".attn-spec/cases/*.json"))
    stored = case.read_bytes()
    case.unlink()
    seen, sent = [], {}

    with monkeypatch.context() as patched:
        patched.setattr(examination.atomic, "write", lambda path, text: sent.update({path.name: text}))
        there, progress = examine(
            Request(**chosen, workers=2, scheduler=address), lambda progress: seen.append(len(progress.rows))
        )

    certificate.save(here, folder / "here.json")
    certificate.save(there, folder / "there.json")
    assert folder.joinpath("there.json").read_bytes() == folder.joinpath("here.json").read_bytes()
    assert sent[case.name].encode() == stored
    assert sorted(sent) == [case.name, case.with_suffix(".py").name]
    assert here.result == "refuted"
    assert len(seen) == 2
    assert 0 < seen[0] < seen[1] == len(progress.keys)
    assert "REFUTED" in "".join(progress.blocks.values())


@pytest.mark.exhaustive
def test_a_kernel_that_no_worker_finds_is_refused_in_the_usual_words(folder, address):
    with pytest.raises(CannotRunError, match=r"missing\.py"):
        examine(Request(kernel="missing.py:attention", scheduler=address))


def test_workers_that_differ_are_refused():
    kinds = ("subject", "environment", "suite", "configuration", "declarations")
    one = {kind: {"a": 1} for kind in kinds}
    other = copy.deepcopy(one)
    examination._check_alike(one, other)
    other["environment"]["torch"] = "2.13.0"

    with pytest.raises(CannotRunError, match=r"^the workers are not alike, .*: environment.torch: None and 2.13.0$"):
        examination._check_alike(one, other)

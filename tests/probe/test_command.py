"""The command on functions of a user's file: what it prints, and what it says where it cannot."""

import pytest

FILE = """
import os
import numpy as np
from attn_spec import kernel

def by_length(q, k, v, out, *, scale=None):
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * np.asarray(q.shape[-1] ** -0.5 if scale is None else scale, q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    out[...] = np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v)

def no_attention(q, k, v):
    return q + 1

def dies(q, k, v):
    os._exit(7)

@kernel(framework="numpy", dtypes=("float32",))
def declared(q, k, v):
    return q
"""


@pytest.fixture
def mine(folder):
    folder.joinpath("mine.py").write_text(FILE)
    return folder


def test_a_declaration_is_printed_with_its_evidence(mine, attn_spec):
    done = attn_spec("probe", "mine.py:by_length")

    assert done.returncode == 0, done.stderr
    assert "presentation='BSHD',  # it alone explains the answer" in done.stdout
    assert "contract='fp32',  # the first of" in done.stdout
    assert "destinations={'output': 'out'},  # parameters without a default" in done.stdout
    assert "'scale'" in done.stdout
    assert "# float64: accumulator of p.v: float64" in done.stdout


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_attention", "no presentation was found: none explains the answer"),
        ("dies", "none explains the answer to a plain problem; the kernel ended the process (exit code 7)"),
        ("declared", "declares itself with @kernel; probe the function without it"),
        ("absent", "has no 'absent'"),
    ],
)
def test_what_cannot_be_probed_is_said(mine, attn_spec, name, reason):
    done = attn_spec("probe", f"mine.py:{name}")

    assert done.returncode == 2
    assert reason in done.stderr

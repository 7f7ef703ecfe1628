"""The command on functions of a user's file: what it prints, and what it says where it cannot."""

import runpy

import pytest

from attn_spec import kernel
from attn_spec.kernels.subject import Subject
from attn_spec.probe.declaration import declaration
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict

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

def attend(q, k, v, causal=False, bias=None):
    s = q @ k.swapaxes(-1, -2) * np.asarray(q.shape[-1] ** -0.5, q.dtype) + (0 if bias is None else bias)
    s = np.where(causal & np.triu(np.ones(s.shape[-2:], bool), 1), -np.inf, s).astype(q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v

def of_one_head(q, k, v):
    assert q.ndim == 2
    return attend(q, k, v)

def causal_by_default(q, k, v, is_causal=True, bias=None):
    if is_causal and bias is not None:
        raise ValueError("not both")
    return attend(q, k, v, is_causal, bias)

def biased(q, k, v, bias=None):
    k, v = (np.concatenate([x] * (q.shape[1] // x.shape[1]), axis=1) for x in (k, v))  # h reads kv head h % Hkv
    return attend(q, k, v, bias=bias)

def in_single(q, k, v):
    return attend(*(x.astype(np.float32) for x in (q, k, v))).astype(np.float32)

@kernel(framework="numpy", dtypes=("float32",), supports=("causal",), builds=True)
def builds(shapes, dtypes, options):
    return lambda q, k, v: attend(q, k, v, **options)

def undeclared_builds(shapes, dtypes, options):
    return lambda q, k, v: attend(q, k, v, **options)

@kernel(framework="numpy", dtypes=("float32",))
def declared(q, k, v, causal=False):
    return attend(q, k, v, causal)
"""


@pytest.fixture
def mine(folder):
    folder.joinpath("mine.py").write_text(FILE)
    return folder


def test_a_declaration_is_printed_with_its_evidence(mine, attn_spec):
    done = attn_spec("probe", "mine.py:by_length")

    assert done.returncode == 0, done.stderr
    assert "presentation='BSHD',  # it alone explains the answer" in done.stdout
    assert "contract={'float64': 'fp64', 'float32': 'fp32'" in done.stdout
    assert "dtypes=('float64', 'float32'" in done.stdout
    assert "destinations={'output': 'out'},  # parameters without a default" in done.stdout
    assert "'scale'" in done.stdout
    assert "# float64: accumulator of p.v: float64" in done.stdout
    assert "asking: calls as BSHD, float64" in done.stderr
    assert "asking: arithmetic in float32" in done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_attention", "no presentation was found: float64: none explains the answer"),
        ("dies", "none explains the answer to a plain problem; the kernel ended the process (exit code 7)"),
        ("absent", "has no 'absent'"),
    ],
)
def test_what_cannot_be_probed_is_said(mine, attn_spec, name, reason):
    done = attn_spec("probe", f"mine.py:{name}")

    assert done.returncode == 2
    assert reason in done.stderr


PRINTED = {
    "of_one_head": ["presentation='SD',  # it alone explains the answer", "supports=('cross', 'dv')"],
    "causal_by_default": [
        "when_off={'causal': False},  # with these arguments a plain answer is right",
        "exclusive=(('causal', 'bias'),),  # calls with both of a pair fail",
        "# causal with bias: the kernel's call raised ValueError: not both",
    ],
    "biased": [
        "merge='bias',  # a bias of -inf does what causal and mask do",
        "supports=('bias', 'causal', 'cross', 'dv', 'gqa', 'mask')",
        "'empty_row': 'nan',",
        "# gqa does not do as specified: right for the same problem with query head h reading kv head h % Hkv",
    ],
    "builds": ["builds=True,  # it was said", "'causal'"],
    "declared": ["supports=('causal', 'cross', 'dv')"],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PRINTED)
def test_what_is_pasted_holds(mine, monkeypatch, name):
    lines = declaration(f"mine.py:{name}", ["float32"])

    for wanted in PRINTED[name]:
        assert any(wanted in line for line in lines), "\n".join(lines)
    monkeypatch.syspath_prepend(mine)
    module = runpy.run_path("mine.py")
    function = getattr(module[name], "function", module[name])
    pasted = "\n".join(lines).partition("\n)\n")[0]
    made = eval(f"{pasted.removeprefix('@')}\n)", {"kernel": kernel})(function)  # noqa: S307 -- what a user would paste
    for property_ in ("accuracy.output_is_within_its_bound", "masking.a_bias_as_low_as_a_fill_is_a_number"):
        if name != "biased":  # whose heads are grouped otherwise, as the probe says
            row, _ = search(load_all()[property_], Subject(made, "float32"), PROFILES["smoke"], 0)
            assert row.verdict in (Verdict.HELD, Verdict.NOT_DECLARED), row.message


def test_a_function_that_builds_is_probed_with_the_options_that_are_named(mine):
    given = {"builds": True, "supports": ("causal",)}
    lines = declaration("mine.py:undeclared_builds", ["float32"], **given)

    assert "    builds=True,  # it was said" in lines
    assert any("supports=('causal', 'cross', 'dv')" in line for line in lines)


def test_dtypes_in_which_no_plain_answer_is_right_are_left_out_with_the_reason(mine):
    lines = declaration("mine.py:in_single")

    assert "    dtypes=('float32',),  # a plain answer is right" in lines
    assert any(line.startswith("# float16 is left out: out has dtype float32; it must be float16") for line in lines)


@pytest.mark.parametrize("dtype", ["float31", "q:float31"])
def test_an_unknown_dtype_is_refused(mine, attn_spec, dtype):
    done = attn_spec("probe", "mine.py:in_single", "--dtype", dtype)

    assert done.returncode == 2
    assert "dtype" in done.stderr
    assert "float31" in done.stderr

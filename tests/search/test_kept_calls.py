"""A refuted assertion is kept: its case runs on a kernel that is named, its script on a function or on the answer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attn_spec
from attn_spec.search import cases, kept_calls
from attn_spec.sessions import replay
from attn_spec.testing import NotAttention, assert_attention, assert_attention_gradients
from tests.search import kept_functions
from tests.search.kept_functions import wrong

FUNCTIONS = Path(kept_functions.__file__)


def tensors(dtype=torch.bfloat16, length=3):
    made = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, 4, generator=made).to(dtype) for _ in range(3)]


def refused(call):
    with pytest.raises(NotAttention) as refused:
        call()
    return refused.value


def ran(script, folder, *arguments):
    """Return the exit code of a script where neither attn-spec nor the test is on the path, and what it prints."""
    shutil.copy(FUNCTIONS, folder / "mine.py")
    command = [sys.executable, "-W", "error", str(script), *arguments]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stdout + done.stderr


def gradients_of(function):
    q, k, v = (x.requires_grad_() for x in tensors())
    out = function(q, k, v)
    found = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    return dict(zip(("dq", "dk", "dv"), found, strict=True)), torch.ones_like(out), q, k, v


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["output", "gradients"])
def test_the_script_and_the_case_say_what_the_assertion_said(what, tmp_path):
    if what == "output":
        error = refused(lambda: assert_attention(wrong(*tensors()), *tensors(), contract="eager"))
    else:
        error = refused(lambda: assert_attention_gradients(*gradients_of(wrong)))

    assert str(error).splitlines()[-1].startswith("  again     pytest --attn-keep, or attn_spec.keep(error)")
    told = attn_spec.keep(error, tmp_path / "kept")
    (path,), (script,) = (list((tmp_path / "kept" / "cases").glob(f"*.{end}")) for end in ("json", "py"))
    assert told.splitlines() == [
        f"  replay    attn-spec replay {path.stem} --kernel NAME",
        f"  script    python {script} [package.module:function]",
    ]
    assert "import attn_spec" not in script.read_text()
    assert ran(script, tmp_path, "mine:right")[0] == 0
    if what == "output":
        code, shown = ran(script, tmp_path)
        assert (code, shown.splitlines()[-1]) == (1, "still wrong")
    case = cases.load(path)
    assert "knows no kernel" in replay.run(case, 60.0).message
    answers = [replay.run(case, 60.0, kernel=f"{FUNCTIONS}:{name}").code for name in ("right", "wrong")]
    assert answers == [0, 1]


def test_a_call_in_the_words_of_a_library_stands_in_the_script_as_it_was(tmp_path):
    q, k, v = tensors()
    given = {"query": q, "key": k, "value": v, "is_causal": False}
    error = refused(lambda: assert_attention(wrong(q, k, v), signature="torch_sdpa", **given))

    kept = kept_calls.kept(error, tmp_path, function="torch.nn.functional:scaled_dot_product_attention")
    code, shown = ran(kept.script, tmp_path)

    assert (code, shown.splitlines()[-1]) == (0, "no longer wrong here")  # the library itself is right
    assert kept.lines(knows_function=True) == [
        f"  replay    attn-spec replay {kept.case}",
        f"  script    python {kept.script}",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 5000}, "the tensors have 160,000 numbers, and a script holds 131,072 at most"),
        ({"numpy": True}, "it differentiates calls of PyTorch in one argument, and this is d"),
    ],
)
def test_a_call_that_no_script_holds_has_a_case_alone(change, message, tmp_path):
    if "numpy" in change:
        given = [x.detach().float().numpy() for x in (*gradients_of(wrong)[0].values(), *gradients_of(wrong)[1:])]
        found = dict(zip(("dq", "dk", "dv"), given[:3], strict=True))
        error = refused(lambda: assert_attention_gradients(found, *given[3:]))
    else:
        given = tensors(torch.float32, change["length"])
        error = refused(lambda: assert_attention(torch.zeros_like(given[0]), *given, rows=2))

    kept = kept_calls.kept(error, tmp_path)
    assert kept.script is None
    assert message in kept.missing
    assert kept.lines(knows_function=False)[1].startswith("  script    none: ")
    assert (tmp_path / "cases" / f"{kept.case}.json").exists()


def test_pytest_keeps_what_an_assertion_refutes_if_it_is_asked_to(pytester):
    pytester.makepyfile(
        mine=FUNCTIONS.read_text(),
        test_it="""
        import torch, mine
        from attn_spec import assert_attention

        def test_wrong():
            q, k, v = torch.randn(3, 1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
            assert_attention(mine.wrong(q, k, v), q, k, v)
        """,
    )
    for words, kept in (([], 0), (["--attn-keep"], 1)):
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
        result.assert_outcomes(failed=1)
        assert len(list(pytester.path.glob(".attn-spec/cases/*.py"))) == kept
    result.stdout.fnmatch_lines(["*replay    attn-spec replay * --kernel NAME"])

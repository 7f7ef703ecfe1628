"""Evidence that cannot be had is said beside the verdict, which stays as it is."""

import pytest
import torch

from attn_spec import testing

PROPERTIES = """
from attn_spec.search.property import Refutation, attention_property
from attn_spec.search.drawing.strategies import problems

@attention_property(source="toy", hunts="nothing", problems=problems)
def test_short(subject, problem):
    '''No problem has more than six queries.'''
    if problem.query_length > 6:
        raise Refutation(f"{problem.query_length} queries", explain=lambda: ["meant so"])
"""
KERNEL = """
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fused")
def attention(q, k, v):
    return v.copy()
"""
BROKEN = """
import {module} as module

def broken(*args, **kwargs):
    raise {error}

{where}.{name} = broken
"""
BUG = "this is a bug of attn-spec *, not of the kernel: KeyError: *oops*"
OOPS, FULL = 'KeyError("oops")', 'OSError(28, "No space left on device")'


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("broken", "line", "has"),
    [
        (("attn_spec.evidence.script", "module", "write", OOPS), f"  missing   script: {BUG}", {"replay"}),
        (("attn_spec.evidence.script", "module", "write", FULL), "  missing   script: OSError: *No space*", {"replay"}),
        (("attn_spec.search.cases", "module", "save", FULL), "  missing   case: OSError: *No space*", set()),
        (("attn_spec.evidence.failure", "module", "block", OOPS), f"  missing   the rest: {BUG}", set()),
        (("attn_spec.search.cases", "module", "hints_of", OOPS), f"  missing   hint: {BUG}", {"replay", "script"}),
        (("attn_spec.search.search", "module", "case_of", OOPS), f"  missing   case: {BUG}", set()),
        (("attn_spec.search.stored_cases", "module.StoredCases", "refuting", OOPS), f"  missing   stored cases: {BUG}",
         {"replay", "script"}),
    ],
    ids=lambda x: f"{x[0]}.{x[2]}" if isinstance(x, tuple) else "",
)  # fmt: skip
def test_a_refutation_stands_without_its_evidence(pytester, broken, line, has):
    pytester.makepyfile(test_toys=PROPERTIES, toy=KERNEL)
    pytester.makeconftest(BROKEN.format(**dict(zip(("module", "where", "name", "error"), broken, strict=True))))
    done = pytester.runpytest_subprocess("--attn-kernel", "toy.py:attention", "--attn-report", "report.jsonl")

    assert done.ret == 1
    done.stdout.fnmatch_lines(["*1 property x 1 subject = 1 verdict: 0 held, 1 refuted*"])
    text = done.stdout.str()
    assert " queries" in text
    done.stdout.fnmatch_lines([line])
    assert {word for word in ("replay", "script") if f"\n  {word}    " in text} == has


def test_a_folder_that_cannot_be_written_costs_no_verdict(pytester):
    pytester.makepyfile(test_toys=PROPERTIES, toy=KERNEL)
    pytester.path.joinpath(".attn-spec").write_text("a file", encoding="utf-8")
    done = pytester.runpytest_subprocess("--attn-kernel", "toy.py:attention")

    assert done.ret == 1
    done.stdout.fnmatch_lines(["  why       7 queries", "  missing   case: FileExistsError: *'.attn-spec'"])


def test_assert_attention_says_that_no_hint_could_be_found(monkeypatch):
    def broken(*args):
        raise KeyError("oops")

    monkeypatch.setattr(testing.Asked, "_hint", broken)
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    with pytest.raises(AssertionError, match=r"missing   hint: this is a bug of attn-spec .* KeyError: 'oops'"):
        testing.assert_attention(torch.zeros(1, 1, 4, 8), q, k, v, contract="fp32")

"""Functions are watched while tests run: a refuted call fails its test, and a table tells what was seen."""

import json

import pytest

MINE = '''
import torch

def attention(q, k, v, *, causal=False):
    """Return attention, whose diagonal is one key late."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    late = torch.ones(s.shape[-2:], dtype=torch.bool).triu(2)
    return torch.softmax(s.masked_fill(late, -torch.inf) if causal else s, -1) @ v
'''
TESTS = """
import mine
import torch
from torch.nn.functional import scaled_dot_product_attention

def qkv():
    return (torch.randn(2, 4, 9, 16) for _ in range(3))

def test_right():
    mine.attention(*qkv())
    scaled_dot_product_attention(*qkv())

def test_wrong():
    mine.attention(*qkv(), causal=True)

def test_dropout():
    scaled_dot_product_attention(*qkv(), dropout_p=0.5)
"""


@pytest.fixture
def run(pytester):
    pytester.makepyfile(mine=MINE, test_mine=TESTS)
    pytester.makeini("[pytest]\nattn_watch = torch.nn.functional.scaled_dot_product_attention\npythonpath = .\n")

    def run(*arguments):
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    return run


def test_a_refuted_call_fails_its_test(run):
    result = run("--attn-watch", "mine:attention")

    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*attn-spec watches mine:attention, torch.nn.functional.scaled_dot_product_attention",
            "*hint      this row is right for the same problem with the diagonal a key later",
            "*replay    attn-spec replay *",
            "*= attn-spec watch =*",
            "mine:attention: 2 calls of 2 kinds",
            "  judged      2 calls and 0 backward passes; 144 rows",
            "  refuted     1 call",
            "  *forward: attn-spec replay *",
            "torch.nn.functional:scaled_dot_product_attention by the signature torch_sdpa: 2 calls of 2 kinds",
            "  not judged  1 x *dropout_p*",
            "  refuted     0 calls",
        ]
    )


def test_workers_are_counted_together_and_a_report_fails_no_test(run, pytester):
    own = ["--attn-watch-report-only", "--attn-watch-report", "seen.json", "-n", "2"]
    run("--attn-watch", "mine:attention", *own).assert_outcomes(passed=3)

    seen = json.loads((pytester.path / "seen.json").read_text())
    assert {one["function"]: one["calls"] for one in seen["functions"]} == {
        "mine:attention": 2,
        "torch.nn.functional:scaled_dot_product_attention": 2,
    }
    assert [one["way"] for one in seen["functions"][0]["refuted"]] == ["forward"]


def test_a_function_that_does_not_exist_ends_pytest_in_a_line(run):
    result = run("--attn-watch", "mine:atention")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --attn-watch: mine has no function atention; did you mean 'attention'*"])

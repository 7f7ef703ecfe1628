"""A refuted merge of states: its report speaks of tokens, and its script needs the kernel's file alone."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from attn_spec.cli.command import main

WRONG = '''
import torch
from attn_spec import kernel


@kernel(framework="torch", dtypes=("float32",), contract="fp32", supports=("lse",), presentation="states_pair_ht")
def merge(v_a, s_a, v_b, s_b):
    """Give each output the weight of the other state."""
    top = torch.maximum(s_a, s_b)
    reference = top.masked_fill(top == -torch.inf, 0.0)
    p_a, p_b = torch.exp(s_b - reference), torch.exp(s_a - reference)
    total = p_a + p_b
    out = p_a.T[..., None] * v_a + p_b.T[..., None] * v_b
    return out / total.masked_fill(total == 0, 1.0).T[..., None], top + torch.log(total)
'''


@pytest.fixture
def merge(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "merge.py").write_text(WRONG)
    return "merge.py:merge"


def test_a_wrong_merge_is_told_in_words_of_merges_and_again_by_its_script(merge, tmp_path):
    command = ["certify", merge, "--property", "accuracy.output_is_within_its_bound", "--workers", "1"]
    told = CliRunner().invoke(main, command)

    assert told.exit_code == 1, told.output
    assert "place     token 0, head 0, column 0" in told.output
    assert "  bias      " in told.output
    assert "  q     " not in told.output
    (script,) = (tmp_path / ".attn-spec" / "cases").glob("*.py")
    again = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert again.returncode == 1, again.stderr
    assert "still fails" in again.stdout
    replayed = CliRunner().invoke(main, ["replay", script.stem])
    assert replayed.exit_code == 1, replayed.output

"""Output for GitHub: commands as its documentation has them, and a summary of the step."""

import re

from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.cli import github

KERNEL = """import numpy as np
from attn_spec import kernel


@kernel(framework="numpy", dtypes=("float32",), supports=("dv", "cross"))
def zeros(q, k, v):
    return np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
"""


def test_a_step_is_given_an_annotation_of_the_kernel_and_a_summary(folder, monkeypatch):
    folder.joinpath("mine.py").write_text(KERNEL)
    path = folder / "summary.md"
    path.write_text("before\n")
    for name, value in {"ACTIONS": "true", "STEP_SUMMARY": str(path), "WORKSPACE": str(folder)}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    done = CliRunner().invoke(cli.main, ["certify", "mine.py:zeros", "--property", "accuracy.output", "--workers", "1"])
    said = path.read_text()

    (line,) = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert re.match(
        r"::error title=refuted%3A accuracy\.output_is_within_its_bound \(float32\),file=mine\.py,line=6::"
        r"Each output element differs .* ",
        line,
    )
    assert said.startswith("before\n## attn-spec: mine:zeros is refuted\n")
    assert "| refuted | `accuracy.output_is_within_its_bound` | Each output element differs" in said
    assert "```text\nREFUTED  Each output element" in said


def test_elsewhere_nothing_is_told(folder, monkeypatch, capsys):
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(github, "commands", lambda document: ["::error::told"])
    monkeypatch.setattr(github, "summary", lambda document, progress: "told")
    github.tell(None, None)

    assert capsys.readouterr().err == ""
    assert not list(folder.iterdir())


def test_a_text_is_escaped_as_a_command_holds_it():
    assert github._escaped("100 %\n:,") == "100 %25%0A:,"
    assert github._escaped("a:b,c", ":,") == "a%3Ab%2Cc"


def test_a_kernel_that_is_named_by_its_module_has_no_place(folder):
    assert github._place("mine:zeros") == {}
    assert github._place("nothing.py:zeros") == {}


def test_a_file_outside_the_workspace_is_named_as_it_was_given(folder, monkeypatch):
    folder.joinpath("mine.py").write_text(KERNEL)
    monkeypatch.setenv("GITHUB_WORKSPACE", "/elsewhere")

    assert github._place("mine.py:zeros") == {"file": "mine.py", "line": "6"}
    assert github._place("mine.py:made_elsewhere") == {"file": "mine.py"}

"""The command that certifies released implementations, with an environment that is this one."""

import sys
from pathlib import Path

import pytest
from attn_spec.reports.released import environments, examination, findings, implementations, report
from attn_spec.reports.released.environments import Environment, Installed
from attn_spec.reports.released.findings import Finding
from attn_spec.reports.released.implementations import Implementation
from attn_spec.reports.released.outcome import from_json

from attn_spec.kernels.signatures.signature import Fact

KERNEL = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="eager")
def attention(q, k, v):
    s = q @ k.swapaxes(2, 3) * np.float32({scale})
    p = np.exp(s - s.max(axis=3, keepdims=True))
    return p @ v / p.sum(axis=3, keepdims=True)
"""
HERE = Installed(environment=Environment(name="here", requirements=()), commands=Path(sys.executable).parent)
PROPERTY = "accuracy.output_is_within_its_bound"


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A right and a wrong implementation in this environment, examined by one property."""
    for name, scale in (("right", "q.shape[3] ** -0.5"), ("wrong", "1.0")):
        (tmp_path / f"{name}.py").write_text(KERNEL.format(scale=scale))
    made = tuple(
        Implementation(
            name=name,
            project="numpy",
            package="numpy",
            function=name,
            environment="here",
            kernel=f"{name}.py:attention",
            facts=(Fact(says="takes no option", source="run"),),
        )
        for name in ("right", "wrong")
    )
    monkeypatch.setattr(implementations, "ADAPTERS", tmp_path)
    monkeypatch.setattr(report, "IMPLEMENTATIONS", made)
    monkeypatch.setattr(report, "implementations_by_name", lambda: {row.name: row for row in made})
    monkeypatch.setattr(report, "by_name", lambda: {"here": HERE.environment})
    monkeypatch.setattr(report, "made", lambda environment, folder: HERE)
    monkeypatch.setattr(report.findings, "read", tuple)
    options = examination._options
    monkeypatch.setattr(examination, "_options", lambda row: [*options(row), "--property", PROPERTY])
    monkeypatch.chdir(tmp_path)
    return made


def certified(tmp_path, *arguments):
    code = report.main(["--output", str(tmp_path / "page.html"), "--profile", "smoke", "--workers", "1", *arguments])
    return code, from_json((tmp_path / "page.json").read_text())[0]


def test_a_refutation_that_nobody_judged_ends_with_1(rows, tmp_path, capsys):
    code, found = certified(tmp_path)

    assert code == 1
    assert "refutations are not judged: wrong; add them to findings.toml" in capsys.readouterr().err
    assert found["right"].result == "passed"
    assert found["right"].power[1] >= found["right"].power[0] > 0
    assert found["right"].version == __import__("numpy").__version__
    assert 0 < found["right"].ratio <= 1
    assert [one.place for one in found["wrong"].open] == [f"{PROPERTY}, float32"]
    assert found["wrong"].open[0].message


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize(("status", "shows"), [(3, 1), (0, 0), (1, 0)])  # 1 is that of a script that fails
def test_a_judged_refutation_ends_with_0_if_its_script_shows_it(tmp_path, monkeypatch, capsys, status, shows):
    for module in (findings, examination):
        monkeypatch.setattr(module, "SCRIPTS", tmp_path)
    (tmp_path / "shown.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path)!r}, 'runs').open('a').write('x')\nraise SystemExit({status})\n"
    )
    judged = Finding(
        implementation="wrong",
        word="defect",
        reason="the scale is left out",
        source="docs",
        properties=(PROPERTY, PROPERTY),
        script="shown.py",
    )
    monkeypatch.setattr(report.findings, "read", lambda: (judged,))
    monkeypatch.setattr("attn_spec.reports.released.page.SCRIPTS", tmp_path)

    ended, found = certified(tmp_path, "--only", "wrong")

    assert ended == 1 - shows
    assert ("shown.py shows no defect of wrong" in capsys.readouterr().err) == (not shows)
    assert found["wrong"].open == ()
    assert found["wrong"].refutations[0].judged == "the scale is left out"
    assert "the scale is left out" not in found["wrong"].refutations[0].message
    assert (tmp_path / "runs").read_text() == "x" * (2 if shows else 1)
    assert "the scale is left out" in (tmp_path / "page.md").read_text()


def test_outcomes_of_others_are_taken_from_the_baseline(rows, tmp_path):
    certified(tmp_path)
    (tmp_path / "page.json").rename(tmp_path / "before.json")
    (tmp_path / "right.py").write_text(KERNEL.format(scale="0.5"))

    code, found = certified(tmp_path, "--only", "right", "--baseline", str(tmp_path / "before.json"))

    assert code == 1
    assert set(found) == {"right", "wrong"}
    assert f"passed before, refuted now; {PROPERTY}, float32 is refuted" in (tmp_path / "page.md").read_text()


def test_an_implementation_that_does_not_import_could_not_run(rows, tmp_path):
    (tmp_path / "right.py").write_text("import a_package_that_is_nowhere\n" + KERNEL.format(scale="1.0"))

    _, found = certified(tmp_path, "--only", "right")

    assert found["right"].result == "could not run"
    assert "a_package_that_is_nowhere" in found["right"].reason


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "rihgt"], "unknown implementation 'rihgt'; did you mean 'right'"),
        (["--baseline", "nowhere.json"], "nowhere.json cannot be read"),
    ],
)
def test_what_cannot_be_done_ends_with_2(rows, arguments, told, capsys):
    assert report.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_environments_are_made_in_the_folder_of_cases():
    assert report.FOLDER.parts[0] == ".attn-spec"
    assert environments.ROOT.joinpath("constraints.txt").is_file()

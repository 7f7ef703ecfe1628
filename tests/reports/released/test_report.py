"""The command that certifies released implementations, with an environment that is this one."""

import sys
from pathlib import Path

import pytest
from attn_spec.reports.released import (
    environments,
    examination,
    implementation,
    production_shape,
    report,
    reproduction,
    watch_runs,
)
from attn_spec.reports.released.certification import certified as certify
from attn_spec.reports.released.environments import Environment, Installed
from attn_spec.reports.released.findings import Finding
from attn_spec.reports.released.implementation import Implementation
from attn_spec.reports.released.outcome import AtShape, from_json

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
METADATA = '# /// script\n# dependencies = ["numpy==2"]\n# ///\n'
HERE = Installed(environment=Environment(name="here", requirements=()), commands=Path(sys.executable).parent)
PROPERTY = "accuracy.output_is_within_its_bound"
AT_SHAPE = AtShape(shape="S=64", result="passed")
#: Examinations that tests of this file have in common.
RUNS = {}


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
            shape="H=2,S=64,D=32",
            facts=(Fact(says="takes no option", source="run"),),
        )
        for name in ("right", "wrong")
    )
    monkeypatch.setattr(implementation, "ADAPTERS", tmp_path)
    monkeypatch.setattr(report, "IMPLEMENTATIONS", made)
    monkeypatch.setattr(report, "implementations_by_name", lambda: {row.name: row for row in made})
    monkeypatch.setattr(report, "by_name", lambda: {"here": HERE.environment})
    monkeypatch.setattr(report, "made", lambda environment, folder: HERE)
    monkeypatch.setattr(report.findings, "read", tuple)
    monkeypatch.setattr(watch_runs, "WATCH_RUNS", ())
    monkeypatch.setattr(examination, "certified", certified_once)
    monkeypatch.setattr(production_shape, "examine", lambda *given, has_groups: (AT_SHAPE, ()))
    monkeypatch.chdir(tmp_path)
    return made


def certified_once(row, findings, installed, *options):
    """Certify what another test has not: the same text under the same findings has the same verdict."""
    text = (implementation.ADAPTERS / row.kernel.partition(":")[0]).read_text()
    asked = (row, text, tuple(findings), options)
    if asked not in RUNS:
        RUNS[asked] = certify(row, findings, installed, *options, "--property", PROPERTY)
    return RUNS[asked]


def certified(tmp_path, *arguments):
    code = report.main(["--output", str(tmp_path / "page.html"), "--profile", "smoke", "--workers", "1", *arguments])
    return code, from_json((tmp_path / "page.json").read_text()).outcomes


def judged(monkeypatch, tmp_path, *properties, **words):
    """Add a finding about the wrong implementation, whose scripts are in ``tmp_path``."""
    for module in ("findings", "reproduction", "page"):
        monkeypatch.setattr(f"attn_spec.reports.released.{module}.SCRIPTS", tmp_path)
    monkeypatch.setattr(reproduction, "fresh", lambda environment, folder: HERE)
    facts = {"word": "limit", "reason": "the scale is left out", "source": "docs", "implementation": "wrong"}
    found = Finding(**{**facts, "properties": properties, **words})
    monkeypatch.setattr(report.findings, "read", lambda: (found,))


def test_a_refutation_that_nobody_judged_ends_with_1(rows, tmp_path, capsys):
    code, found = certified(tmp_path)

    assert code == 1
    assert "wrong: 1 refuted verdict without a finding; write one in findings.toml" in capsys.readouterr().err
    assert found["right"].result == "passed"
    assert found["right"].power[1] >= found["right"].power[0] > 0
    assert found["right"].version == __import__("numpy").__version__
    assert 0 < found["right"].ratio <= 1
    assert [one.place for one in found["wrong"].open] == [f"{PROPERTY}, float32"]
    assert found["wrong"].open[0].message


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (3, ""),
        (0, "is mended since: shown.py ends with 0, not with 3"),
        (1, "has a script that fails: shown.py ends with 1: no such tensor"),  # 1 is that of a script that fails
    ],
)
@pytest.mark.usefixtures("rows")
def test_a_judged_refutation_ends_with_0_if_its_script_shows_it(tmp_path, monkeypatch, capsys, status, told):
    runs = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'runs').open('a').write('x')\n"
    (tmp_path / "shown.py").write_text(
        f"{METADATA}import sys\n{runs}sys.stderr.write('no such tensor')\nsys.exit({status})\n"
    )
    judged(monkeypatch, tmp_path, PROPERTY, PROPERTY, word="defect", script="shown.py")

    ended, found = certified(tmp_path, "--only", "wrong")

    assert ended == (3 if told else 0)
    assert capsys.readouterr().err.endswith(
        f"wrong: the finding 'the scale is left out' {told}\n" if told else "examining wrong\n"
    )
    assert found["wrong"].open == ()
    assert found["wrong"].refutations[0].judged == "the scale is left out"
    assert "the scale is left out" not in found["wrong"].refutations[0].message
    assert [one.why for one in found["wrong"].stale] == ([told] if told else [])
    assert (tmp_path / "runs").read_text() == "x" * (1 if told else 2)
    assert "the scale is left out" in (tmp_path / "page.md").read_text()


def test_a_finding_whose_refutation_is_gone_ends_with_3(rows, tmp_path, monkeypatch, capsys):
    (tmp_path / "wrong.py").write_text(KERNEL.format(scale="q.shape[3] ** -0.5"))
    judged(monkeypatch, tmp_path, PROPERTY)

    code, found = certified(tmp_path, "--only", "wrong")

    assert code == 3
    assert [one.why for one in found["wrong"].stale] == [f"is mended since: {PROPERTY}, float32 held in 10 problems"]
    told = f"the finding 'the scale is left out' {found['wrong'].stale[0].why}"
    assert told in capsys.readouterr().err
    assert told in (tmp_path / "page.md").read_text()


def test_a_finding_about_options_that_covers_no_refutation_ends_with_3(rows, tmp_path, monkeypatch):
    judged(monkeypatch, tmp_path, needs=("causal",))

    code, found = certified(tmp_path, "--only", "wrong")

    assert code == 1  # nobody has judged the refutation that is there, which says more
    assert [one.why for one in found["wrong"].stale] == ["is mended since: it covers no refutation"]


def test_a_finding_about_a_property_that_does_not_exist_is_told(rows, tmp_path, monkeypatch):
    judged(monkeypatch, tmp_path, PROPERTY, "accuracy.output_is_within_its_bond")

    code, found = certified(tmp_path, "--only", "wrong")

    assert code == 3
    assert found["wrong"].open == ()
    (stale,) = found["wrong"].stale
    near = f"which does not exist; did you mean {PROPERTY!r} or "
    assert stale.why.startswith(f"names the property 'accuracy.output_is_within_its_bond', {near}")


def test_outcomes_of_others_are_taken_from_the_baseline(rows, tmp_path):
    certified(tmp_path)
    (tmp_path / "page.json").rename(tmp_path / "before.json")
    (tmp_path / "right.py").write_text(KERNEL.format(scale="0.5"))

    code, found = certified(tmp_path, "--only", "right", "--baseline", str(tmp_path / "before.json"))

    assert code == 1
    assert set(found) == {"right", "wrong"}
    assert f"passed before, refuted now; {PROPERTY}, float32 is refuted" in (tmp_path / "page.md").read_text()


def test_an_interrupted_examination_keeps_the_outcomes_of_the_baseline(rows, tmp_path, monkeypatch):
    certified(tmp_path)
    (tmp_path / "page.json").rename(tmp_path / "before.json")
    examine = examination.examine

    def interrupted(row, *given, **words):
        if row.name == "wrong":
            raise KeyboardInterrupt
        return examine(row, *given, **words)

    monkeypatch.setattr(examination, "examine", interrupted)
    with pytest.raises(KeyboardInterrupt):
        certified(tmp_path, "--baseline", str(tmp_path / "before.json"))

    assert set(from_json((tmp_path / "page.json").read_text()).outcomes) == {"right", "wrong"}


def test_an_implementation_that_does_not_import_could_not_run(rows, tmp_path, capsys):
    (tmp_path / "right.py").write_text("import a_package_that_is_nowhere\n" + KERNEL.format(scale="1.0"))

    code, found = certified(tmp_path, "--only", "right")

    assert code == 3
    assert found["right"].result == "could not run"
    assert "a_package_that_is_nowhere" in found["right"].reason
    assert f"right: could not run: {found['right'].reason}" in capsys.readouterr().err


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

"""The table of released implementations, and the findings about them."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attn_spec.reports.released import environments, findings, implementation, implementations, watch_runs
from attn_spec.reports.released.environments import ENVIRONMENTS, Environment, ReleasedError
from attn_spec.reports.released.implementation import ADAPTERS
from attn_spec.reports.released.implementations import IMPLEMENTATIONS

from attn_spec.kernels import defects
from attn_spec.kernels.signatures.table import SIGNATURES
from attn_spec.problem.shape_spec import AskedShape

ADAPTED = [row for row in IMPLEMENTATIONS if row.is_adapted]


def test_each_row_has_a_name_of_its_own_and_an_environment_of_the_table():
    names = [row.name for row in IMPLEMENTATIONS]

    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    assert {row.environment for row in IMPLEMENTATIONS} <= set(environments.by_name())


@pytest.mark.parametrize("row", IMPLEMENTATIONS, ids=lambda row: row.name)
def test_what_a_row_declares_has_a_source(row):
    assert row.known
    assert all(fact.says and fact.source for fact in row.known)


@pytest.mark.parametrize("row", [row for row in IMPLEMENTATIONS if not row.is_adapted], ids=lambda row: row.name)
def test_a_signature_is_that_of_the_function(row):
    assert SIGNATURES[row.signature].function == row.kernel.replace(":", ".")


@pytest.mark.parametrize("row", ADAPTED, ids=lambda row: row.name)
def test_an_adapter_is_a_declared_function(row):
    file, _, name = row.kernel.partition(":")
    (found,) = (one for one in ast.parse((ADAPTERS / file).read_text()).body if implementation.defines(one) == name)
    declarations = found.decorator_list if isinstance(found, ast.FunctionDef) else [found.value.func]

    assert [ast.unparse(one).partition("(")[0] for one in declarations] == ["kernel"]
    assert 0 < row.lines <= 40


def test_each_adapter_has_its_row():
    assert {path.name for path in ADAPTERS.glob("*.py")} == {row.kernel.partition(":")[0] for row in ADAPTED}


@pytest.mark.parametrize("row", IMPLEMENTATIONS, ids=lambda row: row.name)
def test_a_shape_of_a_production_size_has_several_heads_and_whole_tiles(row):
    shape = AskedShape.parse(row.shape)

    takes_one_head = any("calls have one head" in fact.says for fact in row.facts)
    assert (shape.query_heads == 1) if takes_one_head else (shape.query_heads >= 2)
    assert shape.query_length >= 64
    assert {shape.query_length % 64, shape.key_length % 64, shape.head_dim % 32} == {0}


def test_each_watch_run_has_models_and_a_name_of_its_own():
    runs = watch_runs.WATCH_RUNS

    assert {path.name for path in watch_runs.MODELS.glob("*.py")} == {run.file for run in runs}
    assert len({*watch_runs.by_name(), *implementations.by_name()}) == len(runs) + len(IMPLEMENTATIONS)
    assert {run.environment for run in runs} <= set(environments.by_name())
    for run in runs:
        pinned = environments.by_name()[run.environment].requirements
        assert any(one.startswith(f"{run.package}==") for one in pinned)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda one: one.name)
def test_an_environment_pins_what_it_installs(environment):
    assert all(
        re.fullmatch(r"[\w.-]+(\[\w+\])?==[\w.]+", one) for one in (*environment.requirements, *environment.alone)
    )


def test_a_finding_is_of_a_row_and_expects_a_refutation():
    rows = implementations.by_name()

    for finding in findings.read():
        assert finding.implementation in rows
    assert {path.name for path in findings.SCRIPTS.glob("*.py")} == {
        one.script for one in findings.read() if one.script
    }


def _written(folder, text):
    (path := folder / "written.toml").write_text(text)
    return path


def test_findings_are_known_defects_of_a_search(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text(
        '[[finding]]\nimplementation = "torch-sdpa"\nword = "limit"\nsource = "run"\nproperties = ["a.b", "c.d"]\n'
        'dtype = "float16"\n'
        'reason = "a \\"quoted\\" reason"\n\n'
        '[[finding]]\nimplementation = "torch-sdpa"\nword = "contract"\nsource = "run"\nneeds = ["mask", "bias"]\n'
        'reason = "both"\n'
    )
    found = findings.read(path)
    (tmp_path / "defects.toml").write_text(findings.as_known_defects(found, {"a.b", "c.d"}))

    assert defects.read(tmp_path / "defects.toml") == tuple(defect for one in found for defect in one.defects)
    assert [len(one.defects) for one in found] == [2, 1]
    assert [one.word for one in found] == ["limit", "contract"]
    assert [one.property for one in defects.read(_written(tmp_path, findings.as_known_defects(found, {"c.d"})))] == [
        "c.d",
        None,
    ]
    assert findings.as_known_defects(found[:1], ()) == ""


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"word": "bug"}, "is judged as defect, convention, limit, contract, not as 'bug'"),
        ({"source": " "}, "the finding 'why' needs a source"),
        ({"word": "defect"}, "needs a script if it is a defect, and only then"),
        ({"script": "shown.py"}, "needs a script if it is a defect, and only then"),
        ({"word": "defect", "script": "shown.py"}, "the script 'shown.py' of the finding 'why' is not in"),
        ({"reason": ""}, "a known defect needs a reason that is a text"),
        ({"other": "x"}, "cannot be read as findings"),
        ({"properties": []}, "covers nothing; give properties, needs, or both"),
    ],
)
def test_a_finding_that_lacks_something_is_refused(changes, told, tmp_path):
    row = {"implementation": "torch-sdpa", "word": "limit", "source": "run", "properties": ["a.b"], "reason": "why"}
    path = tmp_path / "findings.toml"
    path.write_text(
        "[[finding]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in {**row, **changes}.items())
    )

    with pytest.raises(ReleasedError, match=told):
        findings.read(path)


@pytest.fixture
def commands(monkeypatch):
    """Commands that an environment is made by; each installation puts the attn-spec of this process there."""
    found, digest = [], {"installed": ""}

    def run(environment, command):
        found.append([str(one) for one in command])
        if str(environments.ROOT) in found[-1]:
            digest["installed"] = environments.source_digest()

    def printed(self, command, folder, limit=None):
        return subprocess.CompletedProcess(command, 0, stdout=digest["installed"] + "\n")

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(environments.Installed, "run", printed)
    return found


def test_an_environment_is_made_once_for_the_same_requirements(tmp_path, commands):
    environment = Environment(name="small", requirements=("one==1",), alone=("two==2",))

    installed = environments.made(environment, tmp_path)

    assert installed.commands == tmp_path / "small" / "bin"
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert commands[1][-2:] == [str(environments.ROOT), "one==1"]
    assert commands[2][-2:] == ["--no-deps", "two==2"]
    assert environments.made(environment, tmp_path) == installed
    assert len(commands) == 3
    environments.made(Environment(name="small", requirements=("one==2",)), tmp_path)
    assert len(commands) == 5


def test_attn_spec_alone_is_installed_again_after_a_change_of_the_checkout(tmp_path, commands, monkeypatch):
    environment = Environment(name="small", requirements=("one==1",), alone=("two==2",))
    environments.made(environment, tmp_path)
    monkeypatch.setattr(environments, "source_digest", lambda: "of another commit")

    environments.made(environment, tmp_path)

    pip = [str(tmp_path / "small" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    root = environments.ROOT
    assert commands[3:] == [[*pip, "--constraint", str(root / "constraints.txt"), str(root)]]


def test_an_environment_with_another_attn_spec_than_this_process_is_refused(tmp_path, commands, monkeypatch):
    monkeypatch.setattr(environments, "_run", lambda environment, command: None)

    with pytest.raises(ReleasedError, match=r"the environment 'small' holds other files of attn-spec .* run the comm"):
        environments.made(Environment(name="small", requirements=("one==1",)), tmp_path)


def test_an_environment_is_current_while_it_has_the_files_of_this_process(monkeypatch):
    here = environments.Installed(
        environment=Environment(name="here", requirements=()), commands=Path(sys.executable).parent
    )

    assert here.is_current
    monkeypatch.setattr(environments, "source_digest", lambda: "of another commit")
    assert not here.is_current


def test_paths_that_are_told_begin_at_the_folder_of_the_environment(tmp_path):
    made = environments.Installed(
        environment=Environment(name="torch", requirements=()), commands=tmp_path / "torch" / "bin"
    )
    assert made.told(f"it raised in {tmp_path}/torch/lib/python3.11/one.py:3") == "it raised in lib/python3.11/one.py:3"


def test_an_installation_that_fails_tells_the_last_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(environments.sys, "executable", "false")

    with pytest.raises(
        ReleasedError, match=r"the environment 'small' cannot be made: .*\n?See that the index of packages"
    ):
        environments.made(Environment(name="small", requirements=()), tmp_path)
    assert list(tmp_path.glob("*.txt")) == []


def test_only_a_checkout_makes_environments(tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "ROOT", tmp_path)

    with pytest.raises(ReleasedError, match="is no checkout of attn-spec; clone the repository"):
        environments.made(ENVIRONMENTS[0], tmp_path)

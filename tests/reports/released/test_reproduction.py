"""Scripts of defects in fresh environments, with an environment that is this one."""

import sys
from pathlib import Path

import pytest
from attn_spec.reports.released import environments, findings, reproduce, reproduction
from attn_spec.reports.released.environments import Environment, Installed, ReleasedError

METADATA = '# /// script\n# dependencies = ["numpy==2.0"]\n# ///\n'
SHOWS = "import sys\nprint('0.5, not 1')\nsys.exit(3)\n"


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Folder of scripts that run in this environment; the environments that were asked for are in ``made``."""
    made = []

    def fresh(environment, folder):
        made.append(environment)
        return Installed(environment=environment, commands=Path(sys.executable).parent)

    monkeypatch.setattr(reproduction, "SCRIPTS", tmp_path)
    monkeypatch.setattr(reproduction, "fresh", fresh)
    return made


@pytest.mark.parametrize("script", [one.script for one in findings.read() if one.script])
def test_each_script_pins_the_packages_that_its_environment_has(script):
    pinned = [each for one in environments.ENVIRONMENTS for each in (*one.requirements, *one.alone)]

    assert reproduction.requirements(script)
    assert set(reproduction.requirements(script)) <= set(pinned)


def test_a_script_runs_twice_with_the_packages_that_it_names(scripts, tmp_path):
    (tmp_path / "shown.py").write_text(METADATA + SHOWS)

    found = reproduction.reproduce("shown.py")

    assert scripts == [Environment(name="shown", requirements=("numpy==2.0",))]
    assert (found.printed, found.failure) == (("0.5, not 1\n",) * 2, "")


@pytest.mark.parametrize(
    ("body", "runs", "told"),
    [
        ("print('1')", 1, "is mended since: shown.py ends with 0, not with 3"),
        ("raise ValueError('no such tensor')", 1, "has a script that fails: shown.py ends with 1: ValueError: no such"),
        ("import os, sys\nprint(os.getpid())\nsys.exit(3)", 2, "has a script that prints another text each time"),
        ("import time\ntime.sleep(9)", 1, "has a script without a result: shown.py took more than 1 s"),
    ],
)
@pytest.mark.usefixtures("scripts")
def test_a_script_that_shows_nothing_says_what_it_did(tmp_path, monkeypatch, body, runs, told):
    monkeypatch.setattr(reproduction, "LIMIT", 1.0)
    (tmp_path / "shown.py").write_text(METADATA + body)

    found = reproduction.reproduce("shown.py")

    assert found.failure.startswith(told)
    assert len(found.printed) == runs


def test_an_environment_that_cannot_be_made_is_told(scripts, tmp_path, monkeypatch):
    def fresh(environment, folder):
        raise ReleasedError("no version is found")

    monkeypatch.setattr(reproduction, "fresh", fresh)
    (tmp_path / "shown.py").write_text(METADATA + SHOWS)

    assert reproduction.reproduce("shown.py").failure == (
        "has a script that no environment could run: no version is found"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (SHOWS, "names no packages; give it inline metadata"),
        ("# /// script\n# dependencies = []\n# ///\n", "names no packages; give it inline metadata"),
        ("# /// script\n# dependencies =\n# ///\n", "the inline metadata of .* is no TOML"),
    ],
)
def test_a_script_that_names_no_packages_is_refused(scripts, tmp_path, text, told):
    (tmp_path / "shown.py").write_text(text)

    with pytest.raises(ReleasedError, match=told):
        reproduction.requirements("shown.py")


@pytest.fixture
def command(scripts, tmp_path, monkeypatch):
    """Function that runs the command about the script of one defect, whose body is given."""
    facts = {"word": "defect", "reason": "it is 0.5", "source": "docs", "properties": ("a.b",), "script": "shown.py"}

    def command(body, name="wrong"):
        (tmp_path / "shown.py").write_text(METADATA + body)
        monkeypatch.setattr(findings, "SCRIPTS", tmp_path)
        monkeypatch.setattr(findings, "read", lambda: (findings.Finding(implementation="wrong", **facts),))
        return reproduce.main([name])

    return command


def test_the_command_prints_what_the_runs_of_a_script_showed(command, capsys):
    assert command(SHOWS) == 0
    sentence = "2 runs in a fresh environment of numpy==2.0 showed the defect, with the same text, on "
    printed = capsys.readouterr().out
    assert printed.startswith(f"wrong: it is 0.5\n{sentence}")
    assert printed.endswith("\n    0.5, not 1\n    0.5, not 1\n")


def test_the_command_ends_with_3_where_a_script_shows_nothing(command, capsys):
    assert command("print('1')") == 3
    sentence = "This finding is mended since: shown.py ends with 0, not with 3."
    assert capsys.readouterr().out == f"wrong: it is 0.5\n{sentence}\n    1\n"


def test_the_command_knows_the_implementations_that_have_a_defect(command, capsys):
    assert command(SHOWS, "wrnog") == 2
    assert "no script shows a defect of 'wrnog'; did you mean 'wrong'" in capsys.readouterr().err


def test_a_fresh_environment_has_the_requirements_alone(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(environments, "_run", lambda environment, command: commands.append(list(map(str, command))))

    installed = environments.fresh(Environment(name="small", requirements=("one==1",)), tmp_path)

    place = tmp_path / "small"
    assert installed.commands == place / "bin"
    assert commands == [
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "one==1"],
    ]

"""Every command of the README does what the README says, in the order of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_commands_of_the_readme(folder, whole):
    """As they stand; or with accuracy for all properties."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    said = ""
    for language, block in BLOCKS:
        match language:
            case "python" | "toml":
                name = block.splitlines()[0].removeprefix("# ")
                folder.joinpath(name).write_text(block)
            case "sh":
                for line in block.splitlines():
                    command, _, comment = line.partition("#")
                    if command.startswith("make"):
                        continue
                    part = command.startswith("attn-spec certify") and "--property" not in command and not whole
                    command += " --property accuracy" * part
                    done = subprocess.run(
                        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
                    )
                    said = done.stdout
                    exits = re.search(r"exits with (\d)", comment)
                    code = int(exits[1]) if exits else 0
                    assert done.returncode == code, f"{line}\n{said}{done.stderr}"
            case "text":
                assert block in said, said


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", TEXT, flags=re.MULTILINE))
def test_the_targets_of_the_readme_exist(target):
    # Running them would run this test; that they can be run shows in continuous integration.
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_every_file_of_the_package_is_named_once_in_reading_order():
    named = re.findall(r"`(\w+\.py)`", TEXT.partition("## Files")[2])
    files = [path.name for path in (ROOT / "attn_spec").rglob("*.py") if path.name != "__init__.py"]

    assert sorted(named) == sorted(files)

"""Every command of the README does what the README says, in the order of the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
#: Language and text of each block, and the exit code of its last command if the text after it says one.
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$(?:\n+It ends with (\d+))?", TEXT, flags=re.MULTILINE | re.DOTALL)
#: Other sentences about exit codes, and the tests that show them.
SENTENCES = {
    "exits with 1 when a property is refuted": "cli/test_cli.py::test_a_refuted_kernel_is_shown_with_its_smallest_case",
    "The exit code is 0 when every property held": "cli/test_cli.py::test_a_sound_kernel_is_certified_twice_alike",
    "the run ends there, with 2": "cli/test_cli.py::test_a_known_misfit_ends_the_run_with_its_cause_and_remedy",
    "ends with exit code 2, and no certificate": "isolation/test_sources.py::"
    "test_a_kernel_that_writes_over_its_own_file_gets_no_certificate",
    "without a GPU it says so and ends with 2": "reports/gpu/test_command.py::"
    "test_without_a_gpu_it_says_so_and_exits_with_2",
    "the command exits with 1, and with 3": "reports/statistics/test_page.py::test_too_few_draws_are_inconclusive",
}


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_the_commands_of_the_readme(folder, whole):
    """The commands run unchanged, or with accuracy for all properties."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    said = ""
    for language, block, after in BLOCKS:
        match language:
            case "python" | "toml":
                name = block.splitlines()[0].removeprefix("# ")
                folder.joinpath(name).write_text(block)
            case "sh":
                *others, last = block.splitlines()
                for line in [*others, f"{last}  # exits with {after}" if after else last]:
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


def test_every_sentence_about_an_exit_code_is_shown_by_a_test():
    prose = " ".join(
        re.sub(r"^```\w+\n.*?^```$(\n+It ends with \d+)?", "", TEXT, flags=re.MULTILINE | re.DOTALL).split()
    )
    told = re.findall(r"(?:exits?|ends?)(?: there,)? with (?:exit code )?\d|exit code is \d", prose)

    for sentence, shown in SENTENCES.items():
        assert prose.count(sentence) == 1
        file, name = shown.split("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert len(told) == len(SENTENCES)


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", TEXT, flags=re.MULTILINE))
def test_the_targets_of_the_readme_exist(target):
    # Running them would run this test; that they can be run shows in continuous integration.
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_every_file_of_the_package_is_named_once_in_reading_order():
    named = re.findall(r"`(\w+\.py)`", TEXT.partition("## Files")[2])
    files = [path.name for path in (ROOT / "attn_spec").rglob("*.py") if path.name != "__init__.py"]

    assert sorted(named) == sorted(files)

"""Exit codes of the command after several runs, and with a closed stdout."""

import subprocess
import sys

import pytest

from attn_spec.cli.exit_codes import of_all


@pytest.mark.parametrize(
    ("codes", "one"),
    [
        ((0, 0), 0),
        ((0, 3, 0), 3),
        ((3, 1, 0), 1),
        ((1, 130), 130),
        ((4, 0), 4),
        ((4, 3), 3),
        ((2, 3), 2),
        ((2, 1), 1),
        ((), 3),
    ],
)
def test_of_several_runs_the_one_that_says_most_decides(codes, one):
    assert of_all(codes) == one


def test_a_reader_that_leaves_ends_the_command_quietly():
    command = [sys.executable, "-m", "attn_spec", "properties"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        said = running.stderr.read()

    assert (running.returncode, said) == (141, "")

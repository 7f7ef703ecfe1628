"""How the command ends where nobody reads what it says."""

import subprocess
import sys


def test_a_reader_that_leaves_ends_the_command_quietly():
    command = [sys.executable, "-m", "attn_spec", "properties"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.close()
        said = running.stderr.read()

    assert (running.returncode, said) == (141, "")

"""Each process has its share of the cores, and what a user has set stays."""

import os
import subprocess
import sys

import pytest

from attn_spec.workers import threads

KERNEL = """import os
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32",), contract="fp32")
def attention(q, k, v):
    raise ValueError(f"threads: {os.environ.get('OMP_NUM_THREADS')}, {os.environ.get('NPROC')}")
"""


@pytest.fixture
def unset(monkeypatch):
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("cores", "processes", "each"), [(2, 2, "1"), (2, 1, "2"), (16, 3, "5"), (2, 5, "1")])
def test_the_cores_are_shared(cores, processes, each, unset, monkeypatch):
    monkeypatch.setattr(threads, "cores", lambda: cores)
    assert threads.share(processes) == dict.fromkeys(threads.VARIABLES, each)


def test_what_a_user_has_set_stays(unset, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NPROC", "7")
    assert list(threads.share(1).values()) == ["3", "3", "3", "7"]


@pytest.mark.parametrize("said", [{}, {"OMP_NUM_THREADS": "3"}])
def test_the_process_of_a_kernel_has_its_share(said, folder):
    (folder / "mine.py").write_text(KERNEL)
    environment = {name: value for name, value in os.environ.items() if name not in threads.VARIABLES} | said
    command = [sys.executable, "-m", "attn_spec", "certify", "mine.py:attention", "--workers", str(threads.cores())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    number = said.get("OMP_NUM_THREADS", "1")
    assert f"threads: {number}, {number}" in done.stdout + done.stderr

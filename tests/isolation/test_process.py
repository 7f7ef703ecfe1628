"""Limits of a kernel's process: one verdict, in words, and a new process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attn_spec.first_look.first_look import first_look
from attn_spec.first_look.misfit import MisfitError
from attn_spec.isolation import confinement
from attn_spec.isolation.foreign import isolated
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.misbehaviour import CallFailed, Crashed, Misbehaviour, OutOfMemory
from attn_spec.kernels.subject import Subject
from attn_spec.search.plain_calls import plain
from attn_spec.search.preflight import preflight

FILE = Path(__file__).with_name("misbehaving.py")


@pytest.fixture(scope="module")
def subject():
    return Subject(isolated(f"{FILE}:at_work", memory=8.0), "float32", call_limit=5.0)


def of_keys(subject, keys):
    problem = plain(subject.kernel, "float32")
    return problem.replace(k=problem.k.repeat(3, axis=2)[:, :, :keys], v=problem.v.repeat(3, axis=2)[:, :, :keys])


DEATHS = {
    11: r"the kernel's call raised SystemExit: bye \(.*misbehaving\.py:\d+\)",
    12: r"the kernel ended the process \(exit code 7\); its last words: all is lost",
    13: r"the kernel crashed the process \(SIGSEGV\)$",
    17: "out has shape",
    18: r"the kernel's call raised .*MemoryError: Unable to allocate 64\.0 GiB",
    19: "the kernel's process broke the channel|the kernel crashed the process|the kernel ended the process",
    20: "out is a dict; it must be a ndarray",
    23: r"the kernel ended the process \(exit code 7\); its last words: the table is too small$",
    24: r"the kernel ended the process \(exit code 7\); its last words: torch.AcceleratorError: CUDA error: no table$",
    21: r"the kernel crashed the process \(SIGKILL\)",
}


def test_want_of_memory_is_told_apart(subject):
    with pytest.raises(OutOfMemory):
        subject(of_keys(subject, 18))


def test_a_crash_is_told_apart(subject):
    with pytest.raises(Crashed, match="SIGSEGV"):
        subject(of_keys(subject, 13))


@pytest.mark.parametrize("keys", DEATHS)
def test_a_death_is_told_and_costs_one_call(subject, keys):
    with pytest.raises(Misbehaviour, match=DEATHS[keys]):
        subject(of_keys(subject, keys))
    assert np.isfinite(subject(plain(subject.kernel, "float32"))["output"]).all()


def test_a_call_that_does_not_return_is_ended(subject):
    quick = Subject(subject.kernel, "float32", call_limit=0.3)
    with pytest.raises(CallFailed, match=r"the kernel's call did not return within 0\.3 s"):
        quick(of_keys(subject, 14))
    assert np.isfinite(subject(plain(subject.kernel, "float32"))["output"]).all()


def test_what_it_prints_is_no_answer(subject):
    problem = of_keys(subject, 15)
    np.testing.assert_array_equal(subject(problem)["output"], subject(problem)["output"])


def test_processes_that_it_leaves_behind_end_with_it():
    subject = Subject(isolated(f"{FILE}:at_work"), "float32")
    fork = int(subject(of_keys(subject, 16))["output"].ravel()[0])
    os.kill(fork, 0)
    subject.kernel.host.end()
    deadline = time.monotonic() + 5
    while _is_alive(fork) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(fork)


def _is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_result_that_is_altered_afterwards_is_the_one_returned(subject):
    problem = of_keys(subject, 22)
    assert not subject(problem)["output"].any()  # a thread fills it later
    time.sleep(0.1)
    assert not subject(problem)["output"].any()


def test_inputs_changed_in_place_are_told():
    subject = Subject(isolated(f"{FILE}:in_place"), "float32")
    with pytest.raises(Misbehaviour, match="the kernel changed its input v in place"):
        subject(plain(subject.kernel, "float32"))


def test_a_kernel_that_does_not_load_is_refused(folder):
    (folder / "ends.py").write_text("import os, sys\nprint('no licence', file=sys.stderr)\nos._exit(3)\n")
    (folder / "leaves.py").write_text("exit('no licence')\n")
    with pytest.raises(KernelError, match=r"exit code 3\); its last words: no licence while the kernel was loaded"):
        isolated("ends.py:attention")
    with pytest.raises(KernelError, match=r"leaves\.py does not import: SystemExit: no licence"):
        isolated("leaves.py:attention")


def test_a_class_is_known_to_be_one(folder):
    (folder / "layer.py").write_text("class Layer:\n    def __init__(self, q, k, v):\n        pass\n")
    kernel = isolated("layer.py:Layer", framework="numpy")
    with pytest.raises(MisfitError, match="it is a class: calling it makes an instance"):
        first_look(preflight(kernel, ["float32"]).subjects)
    kernel.host.end()


def test_a_worker_ends_with_the_judge_whatever_that_dies_of(tmp_path):
    source = (
        "import os, sys\nfrom attn_spec.isolation.foreign import isolated\n"
        f"kernel = isolated({str(FILE)!r} + ':attention')\n"
        "print(kernel.host.wire.process._running.process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while _is_alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_alive(int(done.stdout))


def test_a_worker_is_told_nothing(monkeypatch, folder):
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "here")
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", "there")
    subject = Subject(isolated(f"{FILE}:telling"), "float64")
    output = subject(plain(subject.kernel, "float64"))["output"].ravel()
    told = bytes(output[: int(output[-1])].astype(np.uint8)).decode()
    arguments, descriptors, environment, modules, working = told.splitlines()
    assert arguments == "['']"
    assert descriptors == "0 1 2 3 4"  # nothing, twice a log, and two pipes
    assert environment == ""
    assert modules == ""
    assert Path(working) != folder
    assert not Path(working).is_relative_to(folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone is asked to")
def test_the_judge_is_not_to_be_read(subject):
    assert confinement.hides_memory()

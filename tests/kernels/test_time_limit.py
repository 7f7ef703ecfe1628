"""A limit on the time of a block."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attn_spec.kernels.declarations.declaration import kernel
from attn_spec.kernels.misbehaviour import CallFailed
from attn_spec.kernels.subject import Subject
from attn_spec.kernels.time_limit import (
    GRACE,
    MOST_CROWDED,
    OutOfTime,
    crowding,
    ended_after,
    time_limit,
    waited,
)
from attn_spec.search.drawing.regimes import Recipe


def test_a_time_limit_ends_with_its_block():
    with pytest.raises(OutOfTime), time_limit(0.01):
        time.sleep(1)
    with time_limit(0.01):
        pass
    time.sleep(0.02)


@pytest.mark.parametrize(("load", "cores", "expected"), [(0.5, 2, 1), (2.0, 2, 1), (6.0, 2, 3), (1000.0, 2, 8)])
def test_a_limit_grows_with_the_processes_that_want_a_core(load, cores, expected, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))

    assert crowding() == expected


def test_a_system_that_does_not_know_its_load_has_the_plain_limit(monkeypatch):
    def unknown():
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unknown)

    assert crowding() == 1


def test_a_call_that_shares_its_core_may_take_as_many_times_as_long(monkeypatch):
    @kernel(framework="numpy", dtypes=("float32",), contract="fused")
    def slow(q, k, v):
        time.sleep(0.3)
        return q

    subject = Subject(slow, "float32", call_limit=0.2)
    problem = Recipe().problem()
    monkeypatch.setattr("attn_spec.kernels.subject.crowding", lambda: 1.0)
    with pytest.raises(CallFailed, match=r"within 0\.2 s; if calls are slow"):
        subject(problem)
    monkeypatch.setattr("attn_spec.kernels.subject.crowding", lambda: 4.0)
    subject(problem)
    monkeypatch.setattr("attn_spec.kernels.subject.crowding", lambda: 1.25)
    with pytest.raises(CallFailed, match=r"within 0\.2 s, nor within 0\.25 s, as 1\.2 processes shared each core"):
        subject(problem)


def test_a_call_of_many_sequences_may_take_its_time_for_each(monkeypatch):
    @kernel(framework="numpy", dtypes=("float32",), contract="fused")
    def slow(q, k, v):
        time.sleep(0.3)
        return q

    monkeypatch.setattr("attn_spec.kernels.subject.crowding", lambda: 1.0)
    monkeypatch.setattr("attn_spec.kernels.subject.SECONDS_OF_ENTRY", 0.01)
    subject = Subject(slow, "float32", call_limit=0.1)
    with pytest.raises(CallFailed, match=r"within 0\.1 s; if calls are slow"):
        subject(Recipe(batch=2).problem())
    with pytest.raises(CallFailed, match=r"within 0\.2 s; if calls are slow"):
        subject(Recipe(batch=20).problem())
    subject(Recipe(batch=200).problem())


@pytest.fixture
def starved(monkeypatch):
    """Have processes that wait for a core for a share of the time."""

    def make(share):
        began = time.monotonic()

        def waits(processes):
            return share * (time.monotonic() - began) * len(processes)

        monkeypatch.setattr("attn_spec.kernels.time_limit.waited", waits)

    return make


def test_a_call_has_its_seconds_beside_those_in_which_it_waits_for_a_core(starved):
    postponed = []

    starved(0.9)
    with time_limit(0.1, 0.1, (1,), postponed.append):
        time.sleep(0.25)
    assert 0 < postponed[0] < 0.1

    starved(0.75)
    with pytest.raises(OutOfTime) as late, time_limit(0.1, 0.1, (1,)):
        time.sleep(5)
    assert late.value.allowed > 0.3


def test_a_call_that_does_nothing_but_wait_for_a_core_ends_too(starved):
    starved(1.0)

    with pytest.raises(OutOfTime) as late, time_limit(0.05, 0.05, (1,)):
        time.sleep(5)
    assert late.value.allowed > 0.05 * MOST_CROWDED / 2


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this system does not say how long a process waits"
)
def test_processes_that_share_a_core_wait_for_it():
    core = min(os.sched_getaffinity(0))
    spins = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    crowd = [subprocess.Popen([sys.executable, "-c", spins]) for _ in range(2)]
    numbers, end = [each.pid for each in crowd], time.monotonic() + 20
    while not (delays := waited(numbers)) and time.monotonic() < end:
        time.sleep(0.05)
    for each in crowd:
        each.kill()
        each.wait()

    assert delays > 0
    assert waited(numbers) == 0  # they are gone


def test_what_ended_a_process_tells_the_limit_of_its_call():
    assert ended_after("Timeout (0:00:06.500000)!\nThread 0x1 (most recent call first):\n") == 6.5 - GRACE
    assert ended_after("first words\nTimeout (1:02:05)!\n") == 3725 - GRACE
    assert ended_after("a kernel that prints Timeout (0:00:06)!\n") == 0
    assert ended_after("") == 0


def test_the_last_resort_writes_what_is_read_of_it(monkeypatch):
    source = "import time\nfrom attn_spec.kernels import time_limit\ntime_limit.GRACE = 0.125\n"
    source += "with time_limit.last_resort(0.25):\n    time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    monkeypatch.setattr("attn_spec.kernels.time_limit.GRACE", 0.125)
    assert (done.returncode, ended_after(done.stderr)) == (1, 0.25)

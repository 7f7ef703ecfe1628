"""Ranks in processes give the bits of ranks in one; one that dies, raises or is silent is an error and not a hang."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from attn_spec.implementations import rank_pool, torch_ring, torch_tree
from attn_spec.implementations.rank_pool import POOL, RankError, RankPool
from attn_spec.implementations.rank_process import packed, unpacked

from attn_spec.emulation.ranks import Work, contiguous, striped, zigzag
from attn_spec.emulation.ring import RingRank, TreeRank, over_ranks

#: Each kernel, and what it runs.
KERNELS = pytest.mark.parametrize(
    ("kernel", "program", "ranks", "layout"),
    [
        pytest.param(torch_ring.attention, RingRank, 4, zigzag, id="ring"),
        pytest.param(torch_ring.contiguous, RingRank, 2, contiguous, id="contiguous"),
        pytest.param(torch_ring.striped_queries, RingRank, 3, striped, id="striped"),
        pytest.param(torch_tree.attention, TreeRank, 4, contiguous, id="tree"),
    ],
)


def tensors(*shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, *shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@KERNELS
def test_ranks_in_processes_give_the_bits_of_ranks_in_turn(kernel, program, ranks, layout, dtype):
    in_turn = over_ranks("in_turn", program, ranks, layout=layout)
    for length in (1, 3, 33):  # fewer than ranks too
        q, k, v, dO = tensors((4, length, 8), (2, length, 8), (2, length, 5), (4, length, 5), dtype=dtype)
        answers = [each(q, k, v, causal=True) for each in (kernel, in_turn)]
        saved = dO, q, k, v, *answers[1]
        gradients = [each.backward_function(*saved, causal=True) for each in (kernel, in_turn)]

        assert all(torch.equal(*pair) for pair in zip(*answers, strict=True))
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


@pytest.mark.parametrize("x", [torch.tensor(1.5), torch.ones(2, 3).mT, torch.zeros(0, 3), torch.tensor([-torch.inf])])
def test_tensors_travel_as_they_are(x):
    got = unpacked(packed((x.bfloat16(), "beside")))

    assert got[0].dtype == torch.bfloat16
    assert got[0].shape == x.shape
    assert torch.equal(got[0], x.bfloat16())
    assert got[1] == "beside"


def ask(pool=POOL, **changed):
    q, k, v = tensors((2, 9, 4), (2, 9, 4), (2, 9, 4))
    return over_ranks("asked", RingRank, 4, run=pool)(**{"q": q, "k": k, "v": v, **changed})


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_where_the_machine_takes_a_rank_new_ranks_answer(how, monkeypatch):
    expected = ask()
    before = POOL.pids
    os.kill(before[1], how)
    monkeypatch.setattr(POOL, "limit", 4.0)

    assert torch.equal(ask()[0], expected[0])
    assert end(before)
    assert not set(POOL.pids) & set(before)


def test_a_rank_that_is_killed_twice_is_named_at_once():
    before = time.monotonic()

    with pytest.raises(RankError) as refused:
        POOL([Work(signal.raise_signal, "__call__", (signal.SIGKILL,))])

    assert time.monotonic() - before < POOL.limit
    assert str(refused.value) == (
        "rank 0 of 4 was killed by SIGKILL. The ranks were ended, and the next call starts new ones. "
        "If no person or program killed it, check the system log for an out-of-memory kill"
    )
    assert POOL.pids == []


def test_a_rank_that_raises_is_quoted_and_not_run_again(monkeypatch):
    ask()
    monkeypatch.setattr(POOL, "_start", lambda: pytest.fail("new ranks"))
    short = tensors((2, 9, 3))[0]

    with pytest.raises(RankError) as refused:
        ask(k=short)

    first, *rest = str(refused.value).splitlines()
    assert first.startswith("rank ")
    assert " of 4 raised RuntimeError: Expected size for first two dimensions of batch2 tensor" in first
    assert first.endswith("The ranks were ended, and the next call starts new ones.")
    assert any("in part" in line for line in rest)


def test_a_rank_that_ends_by_itself_is_named(capfd):
    with pytest.raises(RankError) as refused:  # ranks started earlier write to another stderr
        RankPool(1)([Work(exit, "__call__", (3,))])

    assert str(refused.value) == (
        "rank 0 of 1 ended with exit code 1. The ranks were ended, and the next call starts new ones. "
        "Its output on stderr says why"
    )
    assert "SystemExit: 3" in capfd.readouterr().err


def test_ranks_that_are_silent_twice_are_named_after_the_limit():
    with pytest.raises(RankError) as refused:
        RankPool(2, limit=1.0)(2 * [Work(signal.raise_signal, "__call__", (signal.SIGSTOP,))])

    assert str(refused.value) == (
        "no answer within 1 s from rank 0, 1 of 2. The ranks were ended, and the next call starts new ones. "
        "If the problem is large, make a RankPool with a larger limit"
    )


def test_a_rank_that_does_not_take_its_work_is_waited_for_until_the_limit(monkeypatch):
    pool = RankPool(1, limit=1.0)
    whole = over_ranks("whole", RingRank, 1, run=pool)
    start = pool._start

    def stopped():
        start()
        os.kill(pool.pids[0], signal.SIGSTOP)

    monkeypatch.setattr(pool, "_start", stopped)
    with pytest.raises(
        RankError, match=r"^rank 0 of 1 did not take its work \(BlockingIOError\)\. The ranks were ended"
    ):
        whole(*tensors(*3 * [(1, 10_000, 50)]))  # more than the connection buffers
    assert pool.pids == []


def test_ranks_that_do_not_start_are_an_error(monkeypatch):
    monkeypatch.setattr(rank_pool, "COMMAND", "raise SystemExit(1)")

    with pytest.raises(RankError, match=r"^the process that starts ranks has ended; its output on stderr says why\. "):
        ask(RankPool(4))


def test_one_rank_sends_itself_nothing():
    q, k, v, dO = tensors(*4 * [(1, 3, 2)])
    pool = RankPool(1)
    alone, in_turn = (over_ranks("one", RingRank, 1, **run) for run in ({"run": pool}, {}))
    saved = dO, q, k, v, *alone(q, k, v)

    assert all(map(torch.equal, alone.backward_function(*saved), in_turn.backward_function(*saved)))
    pool.close()


def test_ranks_meet_whatever_the_user_sets(monkeypatch):
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    pool = RankPool(2)

    assert torch.equal(over_ranks("two", RingRank, 2, run=pool)(*torch.ones(3, 1, 1, 4, 2))[0], torch.ones(1, 1, 4, 2))
    pool.close()


def test_more_works_than_ranks_are_refused():
    with pytest.raises(ValueError, match=r"^there are 1 ranks, not 2; make a RankPool\(2\)$"):
        RankPool(1)([Work(None, "forward", ())] * 2)


SCRIPT = """
import os, sys, time, torch
from attn_spec.implementations import torch_tree
from attn_spec.implementations.rank_pool import POOL

def call():
    torch_tree.attention(*torch.ones(3, 1, 1, 4, 2))
    return POOL.pids

mine = call()
if float(sys.argv[1]) and not os.fork():  # a child that calls nothing keeps nothing alive
    time.sleep(30)
    os._exit(0)
POOL._lock.acquire()  # as another thread does that is in a call
if not (child := os.fork()):
    print(*call(), flush=True)
    POOL.close()
    os._exit(0)
POOL._lock.release()
os.waitpid(child, 0)
assert call() == mine
print(*mine, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.mark.parametrize("is_killed", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_ranks_end_with_the_process_that_started_them(is_killed, tmp_path):
    """A script that guards nothing by its name may call the kernel, and so may a process that it forks."""
    tmp_path.joinpath("script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "60" if is_killed else "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        of_child, own = ([int(word) for word in process.stdout.readline().split()] for _ in range(2))
        if is_killed:
            process.kill()
        process.wait(30)

    assert len({*own, *of_child}) == 8
    assert end([*own, *of_child])


def end(pids):
    """Return whether all processes of these ids end within ten seconds."""
    last = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < last:
        time.sleep(0.02)
    return not any(map(alive, pids))


def alive(pid):
    """Return whether there is a process of that id which is no zombie."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False

"""Sweeps give the same in one process, in several and by a Dask cluster, whoever dies meanwhile."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from attn_spec.reports.proof.validation import bounds, false_alarms
from distributed import KilledWorker, LocalCluster

from attn_spec.workers import cluster
from attn_spec.workers.sweep import add_options, refusals, sweep
from attn_spec.workers.task import LostTaskError, SchedulerError, Task
from tests.workers.held_search import held_search
from tests.workers.held_tasks import begun, die, end_nothing, fail, square

#: A cluster that starts is slow: `make exhaustive` asks it.
EXHAUSTIVE = pytest.mark.exhaustive

#: Light in-tree and emulated kernels, so that a chunk takes a second.
SUBJECTS = (("numpy_naive", "float32"), ("numpy_tiled", "float32"), ("numpy_naive", "float64"))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Change the working directory, to which cases in flight are written."""
    monkeypatch.chdir(tmp_path)


def chunks(folder):
    return [Task.of(f"{name} {dtype}", held_search, name, dtype, str(folder)) for name, dtype in SUBJECTS]


def squares(folder, count):
    return [Task.of(f"square {n}", square, n, str(folder)) for n in range(count)]


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "too long"
        time.sleep(0.01)


@contextlib.contextmanager
def killing_the_first(folder, whom):
    """Kill the process of the first task that begins, or its parent, and then let all tasks go on.

    They go on whatever happens, so that a test fails and does not wait for ever.
    """

    def kill():
        try:
            until(lambda: begun(folder))
            first = begun(folder)[0]
            os.kill(first[whom], signal.SIGKILL)
            until(lambda: not is_alive(first[whom]))  # the task may be given to who is at another until all go on
        finally:
            folder.joinpath("go").touch()
        return first

    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(kill)


def facts(tally):
    """Return all that a tally holds, in a form that can be compared."""
    ratios = {name: [values.tolist() for values in every] for name, every in tally.ratios.items()}
    return tally.problems, tally.entries, tally.violations, ratios, tally.hardest[0], repr(tally.hardest[1])


@pytest.fixture(scope="module", name="serial")
def _serial(tmp_path_factory):
    """Return the results of the chunks, one after another in one process."""
    folder = tmp_path_factory.mktemp("serial")
    folder.joinpath("go").touch()
    return [facts(tally) for tally in sweep(chunks(folder))]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@EXHAUSTIVE
def test_a_process_is_killed_and_the_sweep_gives_what_it_gives_in_one(tmp_path, serial):
    with killing_the_first(tmp_path, whom=2) as killed:
        found = [facts(tally) for tally in sweep(chunks(tmp_path), jobs=2)]

    assert found == serial
    assert all(problems for problems, *_ in found)
    names = [name for name, *_ in begun(tmp_path)]
    assert sorted(names) == sorted([*(f"{name} {dtype}" for name, dtype in SUBJECTS), killed.result()[0]])


@EXHAUSTIVE
def test_a_worker_of_a_cluster_is_killed_and_the_sweep_gives_the_same(tmp_path, serial, address):
    with killing_the_first(tmp_path, whom=1) as killed:
        found = [facts(tally) for tally in sweep(chunks(tmp_path), scheduler=address)]

    assert found == serial
    assert [name for name, *_ in begun(tmp_path)].count(killed.result()[0]) >= 2
    until(lambda: not is_alive(killed.result()[2]))  # what the worker ran ended with it
    assert len({parent for _, parent, _ in begun(tmp_path)}) >= 2


@EXHAUSTIVE
def test_equal_tasks_are_each_run_at_a_cluster(tmp_path, address):
    tmp_path.joinpath("go").touch()

    found = list(sweep([Task.of("square", square, 3, str(tmp_path))] * 3, scheduler=address))

    assert found == [9, 9, 9]
    assert len(begun(tmp_path)) == 3


def test_results_come_in_the_order_of_tasks_and_no_more_are_drawn_than_asked(tmp_path):
    tmp_path.joinpath("go").touch()
    drawn = []

    def endless():
        for n in range(10**9):
            drawn.append(n)
            yield Task.of(f"square {n}", square, n, str(tmp_path))

    with closing(sweep(endless(), jobs=2, ahead=4)) as every:
        first = [next(every) for _ in range(5)]

    assert first == [0, 1, 4, 9, 16]
    assert len(drawn) == 8


@pytest.mark.parametrize("where", ["process", pytest.param("cluster", marks=EXHAUSTIVE)])
def test_a_task_that_takes_every_process_down_is_named(where, request):
    chosen = {"jobs": 2} if where == "process" else {"scheduler": request.getfixturevalue("address")}

    with pytest.raises(LostTaskError, match=r"^crash was lost: each of 3 processes that ran it died$"):
        list(sweep([Task.of("crash", die, 0)], **chosen))


@pytest.mark.parametrize("where", ["here", "process", pytest.param("cluster", marks=EXHAUSTIVE)])
def test_what_a_task_raises_is_raised_with_its_name(where, request):
    chosen = {"here": {}, "process": {"jobs": 2}}.get(where)
    chosen = {"scheduler": request.getfixturevalue("address")} if chosen is None else chosen
    every = sweep([Task.of(f"task {n}", fail, n) for n in range(4)], **chosen)

    with pytest.raises(ValueError, match="two") as raised:
        list(every)

    assert "raised by task 2" in raised.value.__notes__


def test_processes_end_with_the_sweep_and_what_their_tasks_began_too(tmp_path):
    tasks = [*squares(tmp_path, 1), Task.of("endless", end_nothing, str(tmp_path))]
    every = sweep(tasks, jobs=2)

    def children():
        return [tuple(map(int, path.name.split()[1:])) for path in tmp_path.glob("child *")]

    def let_go():
        try:
            until(children)
        finally:
            tmp_path.joinpath("go").touch()

    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(let_go)
        assert next(every) == 0
        waiting.result()
    start = time.monotonic()
    every.close()

    assert time.monotonic() - start < 4
    assert not any(is_alive(pid) for pid in children()[0])


SWEEP = """
import signal
import sys
from attn_spec.workers.sweep import sweep
from attn_spec.workers.task import Task
from tests.workers.held_tasks import square

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a run in the background would ignore
    list(sweep([Task.of("square", square, n, sys.argv[1]) for n in range(2)], jobs=2))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_whoever_started_them(number, tmp_path):
    root = Path(__file__).parents[2]
    script = tmp_path / "script.py"
    script.write_text(SWEEP)
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
    )
    until(lambda: len(begun(tmp_path)) == 2)
    running.send_signal(number)
    _, told = running.communicate(timeout=30)

    assert running.returncode == -number, told.decode()
    assert told.decode().count("KeyboardInterrupt") == (number == signal.SIGINT)
    until(lambda: not any(is_alive(own) for _, _, own in begun(tmp_path)), seconds=10)


@pytest.mark.parametrize("wrong", ["tcp://127.0.0.1:9", "nonsense://x", "host.invalid:8786"])
def test_an_address_where_no_scheduler_is_is_refused_soon(wrong):
    start = time.monotonic()

    with pytest.raises(SchedulerError, match=f"no Dask scheduler answers at '{wrong}': "), cluster.at(wrong, 0.5):
        pass

    assert time.monotonic() - start < 5


def test_a_scheduler_without_workers_is_refused_soon():
    with LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        text = rf"^the Dask scheduler at {empty.scheduler_address} has no workers; `dask worker .* --nthreads N` starts"
        with pytest.raises(SchedulerError, match=text), cluster.at(empty.scheduler_address, 0.3):
            pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(SchedulerError, match=r"--scheduler needs Dask: pip install 'attn-spec\[dask\]'"):
        list(sweep([], scheduler="tcp://127.0.0.1:9"))


@EXHAUSTIVE
def test_a_worker_with_another_attn_spec_is_refused(address, monkeypatch):
    monkeypatch.setattr(cluster, "source_digest", lambda: "another")

    with pytest.raises(SchedulerError, match="a Dask worker has another attn-spec than this process; install the same"):
        list(sweep([Task.of("task", fail, 1)], scheduler=address))


def test_words_of_dask_are_put_in_ours():
    task, killed = Task.of("task", fail, 1), KilledWorker("key", None, 3)

    assert str(cluster.explained(task, killed)).startswith("task was lost: each of 4 workers that ran it died")
    assert str(cluster.explained(task, CancelledError())).startswith("the Dask scheduler is gone, and with it task;")
    assert "install the same attn-spec there" in str(cluster.explained(task, ModuleNotFoundError("no x")))


def test_a_function_of_the_main_module_is_named_by_what_others_call_it(monkeypatch):
    monkeypatch.setattr(bounds.searched, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", bounds)

    assert Task.of("x", bounds.searched).function == "attn_spec.reports.proof.validation.bounds:searched"


def test_commands_take_jobs_or_a_scheduler(capsys):
    parser = argparse.ArgumentParser(prog="command")
    add_options(parser, jobs=3)

    assert vars(parser.parse_args([])) == {"jobs": 3, "scheduler": None}
    assert "--scheduler ADDRESS" in parser.format_help()
    for wrong in (["--jobs", "0"], ["--jobs", "2", "--scheduler", "x"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
    told = capsys.readouterr().err
    assert "must be 1 or more, not 0" in told
    assert "not allowed with argument" in told


def test_a_command_that_finds_no_scheduler_ends_with_2(capsys, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.5)
    for main in (false_alarms.main, bounds.main):
        with pytest.raises(SystemExit) as ended:
            main(["--scheduler", "tcp://127.0.0.1:9"])
        assert ended.value.code == 2
        assert "error: no Dask scheduler answers at 'tcp://127.0.0.1:9'" in capsys.readouterr().err


def test_refusals_end_a_command_in_one_line(capsys):
    parser = argparse.ArgumentParser(prog="command")

    with pytest.raises(SystemExit), refusals(parser):
        raise LostTaskError("lost")

    assert capsys.readouterr().err == "command: error: lost\n"

"""The end of a process that two threads ask for at the same time."""

import threading

import pytest

from attn_spec.workers.processes import _Process


@pytest.mark.parametrize("_", range(40))
def test_whoever_is_second_to_end_a_process_is_no_error(_):
    process, meeting, errors = _Process(), threading.Barrier(4), []

    def cut():
        meeting.wait()
        try:
            process.cut()
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=cut) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    process.end()

    assert errors == []

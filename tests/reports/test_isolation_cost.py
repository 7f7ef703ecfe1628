"""The cost of isolation is measured on one kernel, here and in a process of its own."""

from attn_spec.reports import isolation_cost


def test_calls_are_timed_here_and_there():
    here, there = isolation_cost.call_seconds("numpy_naive", 5)
    assert 0 < here < 0.1
    assert here < there + 0.001 < 0.5


def test_memory_is_that_of_both_processes():
    judge, worker = isolation_cost.peaks("numpy_naive", 512)
    assert judge > 20
    assert worker > 20

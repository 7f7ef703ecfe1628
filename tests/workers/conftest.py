"""A Dask cluster of two worker processes on this machine."""

import pytest
from distributed import LocalCluster


@pytest.fixture(scope="session")
def address():
    """Return the address of the cluster's scheduler. A worker that a test kills is started again."""
    alone = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**alone, memory_limit=0) as two:  # a worker that is short of memory pauses, and a test waits
        yield two.scheduler_address

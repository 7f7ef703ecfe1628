"""A Dask cluster of two worker processes on this machine."""

import pytest
from distributed import LocalCluster


@pytest.fixture(scope="session")
def address():
    """The address of its scheduler. A worker that a test kills is started again."""
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as two:
        yield two.scheduler_address

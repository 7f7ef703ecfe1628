"""Thread counts of numeric libraries in each of several processes: a process gets its share of the cores.

Each library starts as many threads as there are cores, in every process, unless the environment says otherwise.
Concurrent processes would then have more threads than there are cores, and wait for one another.
"""

from __future__ import annotations

import os

#: Variables that set the number of threads: of OpenMP, OpenBLAS, MKL, and of XLA, which runs JAX.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")


def share(processes: int) -> dict[str, str]:
    """Return the variables for each of ``processes`` concurrent processes.

    A variable that the user has set stays; OMP_NUM_THREADS then applies to the other libraries too.
    """
    own = str(max(cores() // processes, 1))
    number = os.environ.get(VARIABLES[0], own)
    return {name: os.environ.get(name, number) for name in VARIABLES}


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

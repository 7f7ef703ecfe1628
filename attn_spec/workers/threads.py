"""How many threads libraries of numbers have in each of several processes: its share of the cores.

Each library starts as many threads as there are cores unless the environment says otherwise, in every process. So
processes that run side by side would have more threads than there are cores, which wait for one another.
"""

from __future__ import annotations

import os

#: Variables that say how many: of OpenMP, OpenBLAS, MKL, and of XLA, which runs JAX.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")


def share(processes: int) -> dict[str, str]:
    """The variables for each of so many processes at once; what the user has set stays, of OpenMP for all libraries."""
    own = str(max(cores() // processes, 1))
    number = os.environ.get(VARIABLES[0], own)
    return {name: os.environ.get(name, number) for name in VARIABLES}


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Limits of a kernel's process: environment it does not see, memory it may use, and how it ends with the judge.

A process of the same user can still end the judge, and write the user's files; root can do anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Option numbers of prctl, from <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4

#: Prefixes of environment variables that reveal the judge: where it works, and what it was asked.
TELLING = ("PYTEST", "HYPOTHESIS", "ATTN_SPEC", "COVERAGE", "COV_", "PWD", "OLDPWD", "_=")


def environment() -> dict[str, str]:
    """Return the environment without the variables that reveal the judge."""
    return {name: value for name, value in os.environ.items() if not f"{name}=".startswith(TELLING)}


def hide_memory() -> None:
    """Prevent other processes of this user from reading or tracing this one; has an effect on Linux only."""
    _prctl(_PR_SET_DUMPABLE, 0)


def hides_memory() -> bool:
    """Return whether the system prevents other processes of this user from reading this one."""
    return _prctl(_PR_GET_DUMPABLE, 0) == 0


def end_with_parent() -> None:
    """Ask the system to end this process when its parent ends, for any reason; has an effect on Linux only."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(gibibytes: float | None) -> None:
    """Limit the address space of this process to ``gibibytes``; None sets no limit."""
    if gibibytes is not None:
        import resource  # Windows does not have this module

        most = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _prctl(option: int, value: int) -> int:
    """Return the system's answer to prctl, or -1 on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return -1
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

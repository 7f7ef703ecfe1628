"""What a kernel's process is not given, and what it may not do to the judge, as far as the system lets that be said.

A process of the same user can still end the judge, and write the user's files; root can do anything.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Numbers of <sys/prctl.h>.
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4

#: Variables of the environment that tell of the judge, by their beginnings: where it works, and what it was asked.
TELLING = ("PYTEST", "HYPOTHESIS", "ATTN_SPEC", "COVERAGE", "COV_", "PWD", "OLDPWD", "_=")


def environment() -> dict[str, str]:
    """The environment without what tells of the judge."""
    return {name: value for name, value in os.environ.items() if not f"{name}=".startswith(TELLING)}


def hide_memory() -> None:
    """Keep other processes of this user from reading or tracing this one; Linux alone is asked to."""
    _prctl(_PR_SET_DUMPABLE, 0)


def hides_memory() -> bool:
    """Whether the system keeps them from it."""
    return _prctl(_PR_GET_DUMPABLE, 0) == 0


def end_with_parent() -> None:
    """Let the system end this process when its parent ends, whatever that dies of; Linux alone is asked to."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(gibibytes: float | None) -> None:
    """Limit the addresses that this process may have."""
    if gibibytes is not None:
        import resource  # which Windows does not have

        most = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _prctl(option: int, value: int) -> int:
    """The answer of the system; -1 where there is no such call."""
    if not sys.platform.startswith("linux"):
        return -1
    return ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)

"""Run the tests on one mutant, in a process that is of no use afterwards: its modules are the mutant's.

    python -m attn_spec.reports.proof.mutation.trial < pickled mutant, test files, seconds

The last line it prints is JSON: what killed the mutant, or null, and the seconds it took.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import io
import json
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import attn_spec

from .sample import Mutant, path_of

#: Seconds of computing one mutant may take; the tests take less than half of it.
LIMIT = 600
_COMMAND = (sys.executable, "-m", "attn_spec.reports.proof.mutation.trial")


class MutationError(RuntimeError):
    """Nothing can be said of the mutants: there are no tests here, or they fail without a mutation."""


def tried(mutant: Mutant | None, tests: Sequence[str], limit: int = LIMIT) -> tuple[str | None, float]:
    """Return the test that kills a mutant, or None, and the seconds; ``tests`` name test files without ``test_``.

    Raises :class:`MutationError`.
    """
    start = time.monotonic()
    given = pickle.dumps((mutant, _files(tests), limit))
    done = subprocess.run(_COMMAND, input=given, capture_output=True, check=False, cwd=_checkout())  # noqa: S603
    if done.returncode:
        return f"the death of the process, exit code {done.returncode}", time.monotonic() - start
    killed_by, seconds = json.loads(done.stdout.splitlines()[-1])
    return killed_by, seconds


def _try(mutant: Mutant | None, tests: Sequence[str], limit: int) -> tuple[str | None, float]:
    """Run the tests on a mutant until one fails: what killed it, and the seconds."""
    start, first = time.monotonic(), _First()
    for name in [name for name in sys.modules if name.split(".")[0] in {"attn_spec", "tests"}]:
        del sys.modules[name]
    if mutant is not None:
        sys.meta_path.insert(0, _Mutated(mutant))
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, limit)  # the timer of real time belongs to the limits of calls under test
    # With assertion rewriting, pytest's own finder would be asked for the module first.
    options = "-x -q --assert=plain -p no:cacheprovider -p no:xdist --hypothesis-seed=0"
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            status = pytest.main([*options.split(), "-m", "exhaustive or not exhaustive", *tests], plugins=[first])
    except _LateError:
        return "timeout", time.monotonic() - start
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return (first.failed or f"pytest, exit status {int(status)}") if status else None, time.monotonic() - start


class _LateError(BaseException):
    """The tests have taken too long; no handler of exceptions in the code under test may catch it."""


def _late(*_: Any) -> None:
    raise _LateError


class _First:
    """A plugin of pytest that remembers the first test that failed."""

    failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Mutated(importlib.machinery.SourceFileLoader):
    """Finds one module, ahead of every other finder, and loads it from other source than its file."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(f"attn_spec.{mutant.module}", str(path_of(mutant.module)))
        self.source = mutant.source

    def find_spec(self, name: str, *_: Any) -> Any:
        """Find the mutated module, by the protocol of finders."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - as loaders are asked
        """Return the mutated source."""
        return self.source

    def get_code(self, fullname: str) -> Any:  # noqa: ARG002 - as loaders are asked
        """Return the mutated code, compiled anew, never from a cache."""
        return compile(self.source, self.path, "exec")


def _files(tests: Sequence[str]) -> list[str]:
    """Return the files of tests. Raises :class:`MutationError`."""
    folder = _checkout() / "tests"
    files = [folder.joinpath(name).with_name(f"test_{Path(name).name}.py") for name in tests]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise MutationError(
            f"no test file {', '.join(missing)}: run this in a checkout of attn-spec, installed editable"
        )
    return [str(file) for file in files]


def _checkout() -> Path:
    return Path(attn_spec.__path__[0]).parent


if __name__ == "__main__":
    print(json.dumps(_try(*pickle.loads(sys.stdin.buffer.read()))))  # noqa: S301 -- of our own making

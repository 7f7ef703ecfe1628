"""Fixtures that the tests of attn-spec share: running the command in a folder of its own, kernels from source text."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an empty working directory, whose modules are forgotten with it."""
    monkeypatch.chdir(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture
def attn_spec(folder: Path) -> Run:
    """Run the command ``attn-spec`` in the empty working directory."""

    def run(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "attn_spec", *arguments]
        environment = {**os.environ, "COLUMNS": "120", "PYTEST_ADDOPTS": ""}
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False, env=environment
        )

    return run


@pytest.fixture(autouse=True)
def own_seeds(request: pytest.FixtureRequest) -> None:
    """Seed each test, so that it draws the same numbers whatever ran before it."""
    begin_draws(request.config)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed each module, which may draw when it is imported."""
    begin_draws(collector.config)


def begin_draws(config: pytest.Config) -> None:
    """Set every generator that the process shares to the seed of this run."""
    seed = int(config.getoption("--hypothesis-seed") or 0) % 2**32
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 -- the state that kernels under test may use
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """Restore sys.path: finding a kernel in a file puts its folder in front, where a json.py would shadow a library."""
    monkeypatch.setattr(sys, "path", list(sys.path))

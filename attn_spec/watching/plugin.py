"""The watch in pytest: functions are watched while tests run, and a refuted call fails its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attn_spec import atomic
from attn_spec.watching.tally import Tally, document, summed, table
from attn_spec.watching.target import target
from attn_spec.watching.watch import watch

#: Key of the tallies of a worker of pytest-xdist.
OUTPUT = "attn_watch"


class WatchPlugin:
    """Watch functions for the time of a test session."""

    def __init__(self, config: pytest.Config, names: list[str]) -> None:
        """Find the functions. Raises :class:`attn_spec.watching.target.WatchError`."""
        self.config, self.names = config, names
        for name in names:
            target(name)
        self.own: list[Tally] = []
        #: Tallies of the workers of pytest-xdist.
        self.others: list[Tally] = []

    def _option(self, name: str) -> Any:
        return self.config.getoption(f"attn_watch_{name}")

    @property
    def tallies(self) -> list[Tally]:
        """Tallies of all processes."""
        return summed([*self.own, *self.others])

    def pytest_report_header(self) -> str:
        """Return the header that names the functions."""
        return f"attn-spec watches {', '.join(self.names)}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        """Watch while tests run, in the process that runs them."""
        if self.config.pluginmanager.hasplugin("dsession"):
            return (yield)
        how = {"rows": self._option("rows"), "share": self._option("share"), "report_only": True}
        with watch(*self.names, **how) as self.own:
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Fail a test in which a call was refuted."""
        before = [len(one.refuted) for one in self.own]
        result = yield
        found = [each for one, count in zip(self.own, before, strict=True) for each in one.refuted[count:]]
        if found and not self._option("report_only"):
            pytest.fail("\n\n".join(map(str, found)), pytrace=False)
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the tallies of a worker of pytest-xdist."""
        self.others += map(Tally.from_json, getattr(node, "workeroutput", {}).get(OUTPUT, []))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Hand the tallies to the process that reports, or write the JSON report there."""
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[OUTPUT] = [one.to_json() for one in self.own]
        elif path := self._option("report"):
            atomic.write(Path(path), document(self.tallies))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was seen of each function."""
        terminalreporter.section("attn-spec watch")
        terminalreporter.write_line("\n".join(table(self.tallies)))

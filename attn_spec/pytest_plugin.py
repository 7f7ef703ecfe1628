"""The pytest plugin: options, one test for each property x kernel x dtype, rows, and the denominator.

pytest loads this module at every start in every environment that has attn-spec, so it imports nothing heavy until a
property is collected. Rows are sent in ``report.user_properties``, which pytest-xdist passes to its controller.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attn_spec.problem.shape_spec import EXAMPLE, AskedShape, ShapeError
from attn_spec.search.order import rank
from attn_spec.search.profiles import PROFILES
from attn_spec.search.verdict import Verdict
from attn_spec.sessions import selection
from attn_spec.sessions.selection import Key
from attn_spec.sessions.session import BLOCK, NEAR, ROW, Session
from attn_spec.workers.threads import share

if TYPE_CHECKING:
    from attn_spec.judgement.long.blocks import RowJudgement
    from attn_spec.kernels.subject import Subject
    from attn_spec.search.property import Property

_SESSION = pytest.StashKey[Session]()


def _share(text: str) -> tuple[int, int]:
    """Return the numbers of I/N."""
    number, slash, count = text.partition("/")
    if slash and number.isdecimal() and count.isdecimal() and int(number) < int(count):
        return int(number), int(count)
    raise ArgumentTypeError(f"must be I/N with 0 <= I < N, e.g. 0/2, not {text!r}")


def _shape(text: str) -> AskedShape:
    """Return the shape that a text describes."""
    try:
        return AskedShape.parse(text)
    except ShapeError as error:
        raise ArgumentTypeError(str(error)) from None


OPTIONS: dict[str, dict[str, Any]] = {
    "kernel": {"action": "append", "default": [], "help": "kernel to examine, file.py:name, package.module:name or a "
               "short name; may be repeated; default: every kernel of attn_spec.implementations"},
    "dtype": {"action": "append", "default": [], "help": "dtype to examine; may be repeated; default: all declared"},
    "property": {
        "action": "append",
        "default": [],
        "help": "exercise only properties whose id contains this; may be repeated",
    },
    "shape": {"action": "append", "default": [], "type": _shape, "metavar": "SPEC", "help": "shape to examine too, by "
              f"sampled rows, e.g. {EXAMPLE}; may be repeated"},
    "device": {"default": "cpu", "help": "device to run kernels on, e.g. cuda (default: cpu)"},
    "profile": {"default": "smoke", "choices": list(PROFILES), "help": "how long to search (default: smoke)"},
    "seed": {"type": int, "help": "seed of the search; default: the profile's"},
    "call-limit": {"type": float, "default": 60.0, "help": "seconds one kernel call may take (default: 60)"},
    "report": {"type": Path, "help": "write verdicts to this file as they come, one JSON object a line"},
    "continue": {"type": Path, "help": "run only properties without a verdict in this earlier report"},
    "share": {"type": _share, "default": (0, 1), "metavar": "I/N", "help": "examine one of N shares, I/N with I from "
              "0: every N-th property, kernel and dtype"},
    "known-defects": {
        "type": Path,
        "help": "TOML file of expected refutations, with their reasons; or own, the table beside the kernel",
    },
    "brief": {"action": "store_true", "help": "give each property only as many problems as a verdict needs"},
    "isolate": {"default": "auto", "choices": ["auto", "always", "never"], "help": "run a kernel in a process of "
                "its own, which cannot touch the judge; default: auto, for kernels outside attn-spec"},
    "memory": {"type": float, "help": "limit of the address space of a kernel's process, in GiB; default: no limit"},
    "no-first-look": {"action": "store_true", "help": "search the properties even where a first look finds that the "
                      "kernel expects other calls"},
    "framework": {"help": "for undecorated callables: jax, mlx, numpy or torch"},
    "contract": {"help": "for undecorated callables: the arithmetic they declare, e.g. fused"},
    "supports": {"help": "for undecorated callables: options they support; a - removes one: dv,-lse"},
    "signature": {"help": "for undecorated callables: the library's signature with which they are called"},
    "slowness": {"type": float, "help": "for undecorated callables: the time of a call as a multiple of that on "
                 "ordinary hardware"},
    "definition": {"help": "for solutions of FlashInfer-Bench: the file of their definition"},
    "workload": {"help": "for documents of FlashInfer-Bench: a file of workloads, at whose shapes to examine too"},
}  # fmt: skip

#: Options of the watch, all named --attn-watch...
WATCH: dict[str, dict[str, Any]] = {
    "watch": {"action": "append", "default": [], "metavar": "FUNCTION", "help": "judge the calls of this function, "
              "package.module:function, while tests run; may be repeated; also the ini option attn_watch"},
    "watch-share": {"type": float, "default": 0.2, "help": "share of the time that the judge may take (default: 0.2)"},
    "watch-rows": {"type": int, "default": 64, "help": "rows of each head that are judged (default: 64)"},
    "watch-report": {"type": Path, "help": "write what was seen of each function to this file, as JSON"},
    "watch-report-only": {"action": "store_true", "help": "tell of refuted calls, and fail no test"},
}  # fmt: skip


#: Option of assertions.
ASSERTIONS: dict[str, dict[str, Any]] = {
    "keep": {"action": "store_true", "help": "store each call that assert_attention refutes as a case and a script"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all named --attn-..."""
    group = parser.getgroup("attn-spec", "certify attention kernels")
    parser.addini("attn_watch", "functions whose calls are judged while tests run", type="linelist", default=[])
    for name, settings in (OPTIONS | WATCH | ASSERTIONS).items():
        group.addoption(f"--attn-{name}", dest=f"attn_{name.replace('-', '_')}", **settings)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and find named kernels now, so that a wrong name ends in one line."""
    config.addinivalue_line("markers", "property(property_): a property of attention kernels (attn-spec)")
    session = config.stash[_SESSION] = Session(config)
    config.pluginmanager.register(session, "attn_spec.sessions.session")
    try:
        session.check_shapes()
    except ShapeError as error:
        session.tell("refusal", message=str(error))
        raise pytest.UsageError(str(error)) from None
    if watched := [*(config.getoption("attn_watch") or ()), *(config.getini("attn_watch") or ())]:
        _watch(config, watched)
    if config.getoption("attn_kernel"):
        os.environ |= share(int(getattr(config, "workerinput", {}).get("workercount", 1)))
        with _refusals(session):
            session.find_kernels()
            session.describe()
            session.give_account()
        gc.freeze()  # all that is imported by now stays: collections need not go through it again
        atexit.register(gc.unfreeze)  # before the interpreter ends, when libraries count what was never freed


def _watch(config: pytest.Config, names: list[str]) -> None:
    """Watch functions while tests run. Raises ``pytest.UsageError`` for a function that cannot be watched."""
    from attn_spec.watching.plugin import WatchPlugin
    from attn_spec.watching.target import WatchError

    try:
        config.pluginmanager.register(WatchPlugin(config, names), "attn_spec.watching.plugin")
    except WatchError as error:
        raise pytest.UsageError(f"--attn-watch: {error}") from None


@contextlib.contextmanager
def _refusals(session: Session) -> Iterator[None]:
    """End pytest with one line, and a certificate before it begins, if a kernel cannot be examined."""
    from attn_spec.kernels.kernel import KernelError

    try:
        yield
    except KernelError as error:
        session.tell("refusal", message=str(error))
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give every xdist worker the seed that was drawn here."""
    node.workerinput["attn_seed"] = node.config.stash[_SESSION].seed


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return the header that names kernels, device and profile, if kernels were named."""
    return config.stash[_SESSION].header() if config.getoption("attn_kernel") else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a property once for each kernel and dtype."""
    if hasattr(metafunc.function, "attention_property"):
        session = metafunc.config.stash[_SESSION]
        session.find_kernels()
        ids = [f"{subject.kernel.name}-{subject.dtype}" for subject in session.subjects]
        metafunc.parametrize("subject", session.subjects, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests to run: chosen properties of this share; with --attn-continue, those without a verdict.

    All shapes that the user asked for are in the first share, so that no two are in memory at once.
    """
    session = config.stash[_SESSION]
    done = selection.reported(session.option("continue"))
    keys = {item: key_of(item) for item in items}
    chosen = _chosen(session, {key for key in keys.values() if key})
    number, count = session.option("share")
    wanted = [item for item in _in_order(items, keys) if keys[item] is None or keys[item] in chosen]
    large, small = [], []
    for item in wanted:
        property_ = _property_of(item)
        (small if property_ is None or property_.recipes is None else large).append(item)
    own = small[number::count] + (large if number == 0 else [])
    kept = [item for item in own if keys[item] not in done]
    left = set(items) - set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = kept
    session.collected = [key for item in items if (key := keys[item])]
    session.tell("collected", keys=session.collected)


def _in_order(items: list[pytest.Item], keys: dict[pytest.Item, Key | None]) -> list[pytest.Item]:
    """Return the items with the tests of properties reordered: properties that find most come first."""
    ranked = iter(sorted((item for item in items if keys[item]), key=lambda item: rank(keys[item][0])))  # type: ignore[index]
    return [next(ranked) if keys[item] else item for item in items]


def _chosen(session: Session, keys: set[Key]) -> set[Key]:
    """Return the keys that the user chose. Without any property nothing heavy is imported to find out."""
    if not keys:
        return keys
    with _refusals(session):
        return selection.chosen(session.option("property"), keys)


def _property_of(item: pytest.Item) -> Property | None:
    """Return the property that a test checks; None for a test of no property."""
    return getattr(getattr(item, "function", None), "attention_property", None)


def key_of(item: pytest.Item) -> Key | None:
    """Return (property, kernel, dtype) of a test; None for a test of no property."""
    property_ = _property_of(item)
    if property_ is None:
        return None
    subject = item.callspec.params["subject"]  # type: ignore[attr-defined]
    return property_.id, subject.kernel.name, subject.dtype


@pytest.fixture
def search(request: pytest.FixtureRequest) -> Callable[[Property, Subject], None]:
    """Return a function that searches for a problem that refutes a property, and records the verdict as a row."""
    session = request.config.stash[_SESSION]

    def run(property_: Property, subject: Subject) -> None:
        from attn_spec.search.search import PropertyError

        try:
            row, block = session.verdict(property_, subject)
        except PropertyError as fault:
            request.node.user_properties.append((ROW, fault.row.to_json()))
            raise
        request.node.user_properties.append((ROW, row.to_json()))
        if row.verdict is Verdict.NOT_DECLARED:
            pytest.skip(f"{row.verdict}: {row.message}")
        if row.verdict is Verdict.SUSPECT:
            request.node.user_properties.append((BLOCK, block))
        elif row.verdict is Verdict.KNOWN:
            pytest.xfail(row.message)
        elif row.verdict is not Verdict.HELD:
            pytest.fail(block or f"{row.verdict}: {row.message}", pytrace=False)

    return run


@pytest.fixture
def assert_attention(record_property: Callable[[str, object], None]) -> Callable[..., RowJudgement]:
    """Return :func:`attn_spec.testing.assert_attention`, recording error / bound for report and summary."""
    from attn_spec import testing

    def recorded(*tensors: Any, **words: Any) -> RowJudgement:
        judgement = testing.assert_attention(*tensors, **words)
        record_property(NEAR, judgement.ratio)
        return judgement

    return recorded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    """Store the call of a refuted assertion, if ``--attn-keep`` asks for it, and say in the report how to run it."""
    report = yield
    is_loaded = "attn_spec.testing" in sys.modules  # a test that asserted has imported it
    if is_loaded and call.excinfo is not None and item.config.getoption("attn_keep"):
        from attn_spec import faults
        from attn_spec.search.kept_calls import keep
        from attn_spec.testing import NotAttention

        lines: list[str] = []
        if isinstance(error := call.excinfo.value, NotAttention):
            with faults.told("case", lines):
                lines.append(keep(error))
            report.sections.append(("attn-spec", "\n".join(lines)))
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the number of verdicts, and what they cover."""
    session = config.stash[_SESSION]
    if session.rows or session.answers or session.changed:
        terminalreporter.section("attn-spec")
        terminalreporter.write_line("\n".join(session.summary()))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Report the power of the verdicts and the files of kernels, and mark the report as complete."""
    own = session.config.stash[_SESSION]
    if not hasattr(session.config, "workerinput"):
        own.weigh()
    if own.changed_files():
        session.exitstatus = exitstatus = pytest.ExitCode.USAGE_ERROR
    own.tell("end", exit=int(exitstatus))

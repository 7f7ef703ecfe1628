"""What is left to ``make exhaustive``: tests that repeat, at greater length, what others show.

They bear the mark ``exhaustive``. A test says so itself, or of its cases: ``one_in(n)`` leaves the first of each n.

Of a property it is every kernel and dtype but one, which the name of the property chooses. So some kernel meets each
property, and each file meets an equal share of those that concern it. Slow kernels, interpreted, compiled for each
shape or spread over processes, share among themselves, and meet one property in ``SLOW_MEET``. A kernel that so meets
none meets one nevertheless.

What needs a GPU bears the mark ``gpu``; ``make gpu`` runs it.

Own tests draw from fixed seeds on every machine; --hypothesis-seed draws from another, as ``make exhaustive`` does, and
as many as Hypothesis draws unless told.
"""

import atexit
import gc
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from attn_spec.kernels.frameworks.framework import framework

#: Kernels that share the properties among themselves, whatever their framework.
FAST, SLOW = "fast", "slow"
#: Number of examples from a fixed seed, of a test that does not say how many it needs.
FIXED = 40
#: One property in so many is examined for a slow kernel.
SLOW_MEET = 3


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks; leave out what is exhaustive, unless -m says otherwise or kernels are named; fix seeds."""
    config.addinivalue_line("markers", "exhaustive: repeats at greater length what another test shows")
    config.addinivalue_line("markers", "one_in(n): of its cases, all but the first of each n are exhaustive")
    config.addinivalue_line("markers", "gpu: needs a CUDA device, and is skipped without one")
    if not config.option.markexpr and not config.getoption("attn_kernel"):
        config.option.markexpr = "not exhaustive"
    if config.getoption("--hypothesis-seed") is None:
        hypothesis.settings.register_profile("fixed", derandomize=True, database=None, max_examples=FIXED)
        hypothesis.settings.load_profile("fixed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a device, with the reason, where there is none."""
    if item.get_closest_marker("gpu") and (reason := framework("torch").missing("cuda")):
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect without collections of garbage, and let none go through what was collected: tests and modules stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # or nanobind, which JAX uses, would report what was never freed


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all items of a property but those that meet it in the default run; of cases, all but one in n."""
    _leave_one_in(items)
    examined = [item for item in items if hasattr(getattr(item, "function", None), "attention_property")]
    groups = defaultdict(lambda: defaultdict(list))
    for item in examined:
        groups[item.function.attention_property.id][_shared_with(_kernel(item))].append(item)
    meets = [item for property_id, of in groups.items() for item in _meets(property_id, of)]
    meets += _of_other_kernels(examined, {_kernel(item).name for item in meets})
    for item in {*examined} - {*meets}:
        item.add_marker("exhaustive")


def _of_other_kernels(items: list[Any], met: set[str]) -> list[Any]:
    """Return an item of each kernel that is not among ``met``, of a property that applies to it."""
    others = defaultdict(list)
    for item in items:
        if _kernel(item).name not in met and _applies(item):
            others[_kernel(item).name].append(item)
    return [every[zlib.crc32(name.encode()) % len(every)] for name, every in others.items()]


def _meets(property_id: str, of: dict[str, list[Any]]) -> list[Any]:
    """Return the items that meet a property: a fast one, and a slow one for one property in ``SLOW_MEET``.

    There is a slow one too if the property applies to no fast one.
    """
    number = zlib.crc32(property_id.encode())
    fast, slow = ([item for item in of[shared] if _applies(item)] for shared in (FAST, SLOW))
    if not fast and not slow:  # a property that no kernel here concerns
        return [next(iter([*of[FAST], *of[SLOW]]))]
    chosen = [_chosen(fast, number)] if fast else []
    if slow and (not fast or number % SLOW_MEET == 0):
        chosen.append(_chosen(slow, number // SLOW_MEET))
    return chosen


def _leave_one_in(items: list[pytest.Item]) -> None:
    """Mark the cases of each test with the mark ``one_in``, but the first of each n that are not marked already."""
    places: dict[str, int] = defaultdict(int)
    for item in items:
        if (mark := item.get_closest_marker("one_in")) and not item.get_closest_marker("exhaustive"):
            test = item.nodeid.partition("[")[0]
            if places[test] % mark.args[0]:
                item.add_marker("exhaustive")
            places[test] += 1


def _shared_with(kernel: Any) -> str:
    """Return the name of the group of kernels that share the properties with a kernel."""
    return SLOW if kernel.slowness > 1 or kernel.signatures is not None else FAST


def _chosen(items: list[Any], number: int) -> Any:
    """One of the items; of every file as often as of another."""
    by_file = defaultdict(list)
    for item in items:
        by_file[_kernel(item).module].append(item)
    own = list(by_file.values())
    mine = own[number % len(own)]
    return mine[number // len(own) % len(mine)]


def _kernel(item: Any) -> Any:
    return item.callspec.params["subject"].kernel


def _applies(item: Any) -> bool:
    return item.function.attention_property.applies_to(item.callspec.params["subject"])

"""What ``make test`` leaves to ``make exhaustive``: tests that repeat, at greater length, what others show.

They bear the mark ``exhaustive``. A test says so itself; of a property it is every dtype of a kernel but one, which the
names of both choose, so that each kernel meets each property, and each of its dtypes a share of them. Slow kernels of
one file, which share most of their code, share the properties too.
"""

import zlib
from collections import defaultdict
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "exhaustive: repeats at greater length what another test shows")


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all that are alike but one, of those that the property applies to."""
    alike = defaultdict(list)
    for item in items:
        if hasattr(getattr(item, "function", None), "attention_property"):
            alike[_names(item)].append(item)
    for (claim, kernel), every in alike.items():
        applicable = [item for item in every if _is_applicable(item)] or every
        chosen = applicable[zlib.crc32(f"{claim} {kernel}".encode()) % len(applicable)]
        for item in every:
            if item is not chosen:
                item.add_marker("exhaustive")


def _names(item: Any) -> tuple[str, str]:
    """Of the property and of the kernel, or of its module if it is slow."""
    kernel = item.callspec.params["subject"].kernel
    is_slow = kernel.slowness > 1 or kernel.signatures is not None
    return item.function.attention_property.id, kernel.module if is_slow else kernel.name


def _is_applicable(item: Any) -> bool:
    claim, subject = item.function.attention_property, item.callspec.params["subject"]
    return subject.supports(*claim.needs) and not claim.not_applicable(subject)

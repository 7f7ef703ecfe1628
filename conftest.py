"""What ``make test`` leaves to ``make exhaustive``: tests that repeat, at greater length, what others show.

They bear the mark ``exhaustive``. A test says so itself; of a property it is every dtype of a kernel but one, which the
names of both choose, so that each kernel meets each property, and each of its dtypes a share of them.
"""

import zlib
from itertools import groupby
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", "exhaustive: repeats at greater length what another test shows")


@pytest.hookimpl(tryfirst=True)  # before -m reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every dtype of a property and a kernel but one, of those that the property applies to."""
    examined = [item for item in items if hasattr(getattr(item, "function", None), "attention_property")]
    for (claim, kernel), dtypes in groupby(examined, _names):
        every = list(dtypes)
        applicable = [item for item in every if _is_applicable(item)] or every
        chosen = applicable[zlib.crc32(f"{claim} {kernel}".encode()) % len(applicable)]
        for item in every:
            if item is not chosen:
                item.add_marker("exhaustive")


def _names(item: Any) -> tuple[str, str]:
    """Of the property and of the kernel."""
    return item.function.attention_property.id, item.callspec.params["subject"].kernel.name


def _is_applicable(item: Any) -> bool:
    claim, subject = item.function.attention_property, item.callspec.params["subject"]
    return subject.supports(*claim.needs) and not claim.not_applicable(subject)

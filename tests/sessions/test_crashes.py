"""A kernel that crashes at several properties in a row is not asked for the rest, and its verdict says so."""

from dataclasses import replace

import pytest

from attn_spec.search.verdict import Row, Verdict, exit_code
from attn_spec.sessions.crashes import MOST, Crashes

CRASH = Row(
    property="a.b",
    kernel="k",
    dtype="float32",
    verdict=Verdict.REFUTED,
    message="the kernel crashed the process (SIGSEGV); its last words: no table",
)


def noted(*rows):
    crashes = Crashes()
    for row in rows:
        crashes.note(row)
    return crashes


def test_the_rest_is_not_run_after_crashes_in_a_row():
    assert noted(*[CRASH] * (MOST - 1)).row("a.c", "k", "float32") is None

    row = noted(*[CRASH] * MOST).row("a.c", "k", "float32")
    assert (row.property, row.verdict) == ("a.c", Verdict.NOT_EXERCISED)
    assert row.message == "not run, since the kernel crashes: 3 properties in a row ended its process"
    assert exit_code([CRASH, row]) == 1
    assert exit_code([replace(CRASH, verdict=Verdict.KNOWN), row]) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": Verdict.HELD, "message": ""},
        {"message": "output[0, 0, 0, 0] is 1; the truth is 2"},
        {"message": "the kernel's call raised ValueError: no"},
        {"verdict": Verdict.KNOWN},
        {"dtype": "float16"},
        {"kernel": "another"},
    ],
)
def test_another_verdict_or_kernel_ends_the_row(changes):
    crashes = noted(CRASH, CRASH, replace(CRASH, **changes), CRASH, CRASH)
    own = {"dtype", "kernel"} & set(changes)

    assert (crashes.row("a.c", "k", "float32") is None) != bool(own)


def test_what_does_not_apply_to_a_kernel_ends_no_row():
    assert noted(CRASH, CRASH, replace(CRASH, verdict=Verdict.NOT_DECLARED, message=""), CRASH).row(
        "a.c", "k", "float32"
    )

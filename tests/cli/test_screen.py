"""The screen during an examination: each property once, the first failures as they come, a line that fits."""

import sys

import click
import pytest

from attn_spec.cli import screen
from attn_spec.contract import presets
from attn_spec.search.verdict import Row, Verdict
from attn_spec.sessions.progress import Progress

IDS = [f"p.{number}" for number in range(12)]
KERNEL = {
    "kind": "kernel",
    "subject": {"name": "a:f", "source_sha256": "0123456789"},
    "configuration": {
        "device": "cpu",
        "dtypes": ["float32", "float16"],
        "profile": "ci",
        "examples": 60,
        "seed": 7,
    },
    "known_defects": [],
    "catalogue": [{"id": name, "statement": "s", "source": "t", "hunts": "h", "needs": []} for name in IDS],
}
HEADLINE = "a:f (source 01234567) on cpu, float32, float16, profile ci: 60 problems a property, seed 7"


@pytest.fixture
def progress():
    made = Progress()
    made.hear(KERNEL)
    every = [(name, "a:f", dtype) for name in IDS for dtype in ("float32", "float16")]
    for share in range(2):
        made.hear({"kind": "collected", "keys": every[share::2]}, share)
    return made


def verdict(progress, number, dtype, word=Verdict.HELD, **facts):
    row = Row(property=IDS[number], kernel="a:f", dtype=dtype, verdict=word, **facts)
    progress.hear({"kind": "row", "row": row.to_json(), "block": f"{word.upper()}  block of {IDS[number]}"})


def shown(live, progress, capsys):
    live.show(progress)
    return click.unstyle(capsys.readouterr().out).splitlines()


def test_a_property_is_shown_once_all_its_dtypes_are_done(progress, capsys):
    live = screen.Live(shares=2)
    verdict(progress, 0, "float32", ratio=0.25)
    assert shown(live, progress, capsys) == [HEADLINE]

    verdict(progress, 0, "float16", ratio=0.5)
    verdict(progress, 1, "float32", Verdict.NOT_DECLARED, lacks=("mask",))
    verdict(progress, 1, "float16", Verdict.NOT_DECLARED, lacks=("mask",))
    assert shown(live, progress, capsys) == ["  held           p.0  worst error/bound 0.5"]
    assert shown(live, progress, capsys) == []


def test_nothing_is_done_before_all_shares_have_said_what_they_examine(progress, capsys):
    del progress.shares[1]
    verdict(progress, 0, "float32")

    assert shown(screen.Live(shares=2), progress, capsys) == [HEADLINE]


def test_a_refutation_is_shown_when_it_is_found_and_again_when_it_is_small(progress, capsys):
    live = screen.Live(shares=2)
    for number in (0, 1):
        progress.hear({"kind": "found", "key": [IDS[number], "a:f", "float16"], "message": f"{number} is 1"})
    first = ["", "refuted by p.0, float16: 0 is 1", "searching for a smaller problem"]
    assert shown(live, progress, capsys) == [HEADLINE, *first]

    verdict(progress, 0, "float16", Verdict.REFUTED, message="0 is 1")
    assert shown(live, progress, capsys) == ["", "REFUTED  block of p.0", ""]
    progress.hear({"kind": "found", "key": [IDS[2], "a:f", "float16"], "message": "2 is 1"})
    assert shown(live, progress, capsys) == []


def test_so_many_blocks_are_shown_and_no_more(progress, capsys):
    live = screen.Live(shares=2)
    for number in range(screen.BLOCKS + 2):
        verdict(progress, number, "float32", Verdict.REFUTED)
        verdict(progress, number, "float16", Verdict.REFUTED)
    lines = shown(live, progress, capsys)

    assert sum(line.startswith("REFUTED  block") for line in lines) == screen.BLOCKS
    assert sum(line.startswith("  refuted") for line in lines) == screen.BLOCKS + 2


def test_a_silent_screen_says_nothing_on_stdout(progress, capsys):
    verdict(progress, 0, "float32", Verdict.REFUTED)

    assert shown(screen.Live(shares=2, silent=True), progress, capsys) == []


def test_the_line_of_a_terminal_fits_it_and_tells_what_was_refuted_and_what_is_left(progress, capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    live = screen.Live(shares=2)
    live.begun -= 65
    for number in range(5):
        verdict(progress, number, "float32", Verdict.REFUTED if number == 2 else Verdict.HELD)
        verdict(progress, number, "float16")
    progress.hear({"kind": "start", "key": ["p.with_a_name_that_does_not_fit_into_the_line", "a:f", "float16"]})
    live.show(progress)

    line = capsys.readouterr().err.split("\x1b[K")[-1]
    assert line == "[10/24] 1 refuted, 1:05 of about 2:36  p.with_a_name_that_d"
    assert len(line) < 60


def test_the_contract_of_who_declares_nothing_has_the_name_that_certificates_hold():
    assert presets.describe(presets.UNDECLARED) == screen.UNDECLARED


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3599.6, "1:00:00"), (3725, "1:02:05")])
def test_times(seconds, text):
    assert screen._clock(seconds) == text


@pytest.mark.parametrize(
    ("half", "line"),
    [
        ({"word": Verdict.REFUTED, "ratio": 3.0}, "  refuted        p.0, float16  worst error/bound 3"),
        ({"word": Verdict.REFUTED, "ratio": 1e-9}, "  refuted        p.0, float16"),
        ({"ratio": 0.25}, "  held           p.0  worst error/bound 0.5"),
    ],
)
def test_a_verdict_of_some_dtypes_names_them_and_has_their_ratio_alone(progress, capsys, half, line):
    live = screen.Live(shares=2)
    verdict(progress, 0, "float32", ratio=0.5)
    verdict(progress, 0, "float16", **half)

    assert shown(live, progress, capsys)[-1] == line

"""Training statistics as files: the page, the Markdown and the JSON say what was measured; errors say why not."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from attn_spec.reports.errors import svg
from attn_spec.reports.statistics import command, figures, measurement, memory, page
from attn_spec.reports.statistics.measurement import StatisticsError
from attn_spec.reports.statistics.rows import Point
from click.testing import CliRunner

from attn_spec.cli import command as cli
from attn_spec.kernels.kernel import KernelError

POINTS = [
    Point(
        statistic=name,
        kernel="first",
        dtype="float32",
        scaled=scaled,
        d=d,
        n=n,
        sigma=1.0 if scaled else d**0.5,
        draws=100,
        measured=0.25,
        low=0.125,
        high=0.5,
        exact_low=0.375,
        exact_high=0.375,
    )
    for name in ("entropy", "saturation")
    for d, n in ((4, 2), (16, 2), (16, 8))
    for scaled in (True, False)
]
PEAKS = [memory.Peak(kernel=name, n=n, bytes=n * n) for name in ("numpy_tiled", "numpy_naive") for n in (1024, 2048)]
MADE = page.Measured(environment={"attn-spec": "0", "device": "a <processor>"}, points=POINTS, peaks=PEAKS)


def test_the_page_is_self_contained_and_says_every_number():
    text = page.html(MADE)
    tags = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(tag)
    parser.feed(text)

    assert {"script", "link", "iframe", "img"}.isdisjoint(tags)
    assert tags.count("svg") == 2 + 1 + 2
    assert "a &lt;processor&gt;" in text
    assert len(re.findall(r"<use[^>]*><title>first, d = 16, n = 8, without", text)) == 1
    assert text == page.html(replace(MADE, points=list(POINTS)))


def test_the_headline_names_the_kernel_that_contradicts_attention():
    wrong = replace(POINTS[0], kernel="wrong", exact_low=0.75, exact_high=0.75)

    assert page.headline(POINTS) == "Every measured statistic agrees with its exact value"
    silent = replace(POINTS[0], low=0.0, high=math.log(2))
    assert (
        page.headline([*POINTS, silent]) == "Of 1 of 13 measured statistics draws are too few to say; the others agree"
    )
    assert "| too few draws |" in page.markdown(replace(MADE, points=[silent]))
    assert page.headline([*POINTS, wrong]) == "1 of 13 measured statistics contradict attention: wrong"
    assert "**outside**" in page.markdown(replace(MADE, points=[wrong]))


def test_the_json_holds_every_point_and_peak():
    infinite = replace(POINTS[0], high=math.inf)
    stored = json.loads(page.document(replace(MADE, points=[*POINTS, infinite])))

    assert stored["schema"] == page.SCHEMA
    assert stored["points"][0] == POINTS[0].columns()
    assert stored["points"][-1]["high"] == "inf"
    assert stored["peaks"][0] == {"kernel": "numpy_tiled", "n": 1024, "bytes": 1024**2}


def test_a_probability_that_is_at_most_one_digit_is_rounded_up():
    assert [page.at_most(x) for x in (7e-5, 7.4e-5, 9.01e-5)] == ["7e-05", "8e-05", "0.0001"]


def test_figures_along_an_axis_hold_the_other_fixed():
    assert {(each.d, each.n) for each in figures.along(POINTS, "entropy", "d")} == {(4, 2), (16, 2)}
    assert {(each.d, each.n) for each in figures.along(POINTS, "entropy", "n")} == {(16, 2), (16, 8)}


def test_the_command_writes_three_files(folder, monkeypatch):
    monkeypatch.setattr(measurement, "DIMS", (4, 8))
    monkeypatch.setattr(measurement, "KEYS", (2, 4))
    arguments = ["statistics", "numpy_tiled", "--draws", "1024", "--no-memory", "-o", "found.html"]
    done = CliRunner().invoke(cli.main, arguments)

    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == {"found.html", "found.md", "found.json"}
    assert all(each["agrees"] for each in json.loads((folder / "found.json").read_text())["points"])
    assert "# Every measured statistic agrees with its exact value" in (folder / "found.md").read_text()
    assert done.output.endswith("\nEvery measured statistic agrees with its exact value\n")


def test_too_few_draws_are_inconclusive(folder, monkeypatch):
    """A kernel that is as slow as 16 calls is asked for a sixteenth of the draws, which the table shows."""
    monkeypatch.setattr(measurement, "DIMS", (4,))
    monkeypatch.setattr(measurement, "KEYS", (2,))
    slow = "from attn_spec.implementations import numpy_tiled\nfrom dataclasses import replace\n"
    (folder / "slow.py").write_text(slow + "attention = replace(numpy_tiled.attention, slowness=16.0)\n")
    done = CliRunner().invoke(cli.main, ["statistics", "slow.py", "--draws", "512", "--no-memory"])

    assert done.exit_code == 3, done.output
    assert re.search(r"\nOf \d+ of \d+ measured statistics draws are too few to say; the others agree\n$", done.output)
    text = (folder / "statistics.md").read_text(encoding="utf-8")
    assert re.search(r"\| entropy \| `\w+` \| 4 \| 32 \| without \| 32 \| .* \| too few draws \|", text)
    assert "| draws of numpy_tiled | 32, as slow as 16 calls |" in text


KERNEL = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float64",), contract="eager", supports=("scale", "dv", "cross", "lse"))
def attention(q, k, v, *, scale=None):
    return np.full((*q.shape[:3], v.shape[-1]), {value}), np.full(q.shape[:3], {value})
"""


@pytest.mark.parametrize(("value", "told"), [("np.nan", "not a number"), ("0.0", "0")])
def test_what_has_no_place_in_a_figure_is_in_the_table_and_contradicts(value, told, folder, monkeypatch):
    monkeypatch.setattr(measurement, "DIMS", (4,))
    monkeypatch.setattr(measurement, "KEYS", (2,))
    (folder / "wrong.py").write_text(KERNEL.format(value=value))
    done = CliRunner().invoke(cli.main, ["statistics", "wrong.py", "--draws", "64", "--no-memory"])

    assert done.exit_code == 1, done.output
    assert re.search(r"\n\d+ of \d+ measured statistics contradict attention: wrong\n$", done.output)
    assert f"| score_variance | `wrong` | 4 | 32 | without | 64 | {told} | {told} to " in (
        folder / "statistics.md"
    ).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dtype": "bfloat16"}, StatisticsError, "bfloat16 is too coarse for statistics; choose float64 or float32"),
        ({"kernels": ["no_such"]}, KernelError, "no kernel is called 'no_such'"),
        ({"kernels": ["torch_scores:cosine"]}, StatisticsError, "cosine shows none of the statistics: .*Give another"),
        ({"device": "tpu"}, KernelError, "tpu"),
    ],
)
def test_what_cannot_be_measured_is_an_error_that_says_why(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        command.write_statistics(tmp_path / "a.html", with_memory=False, **changes)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_is_measured(tmp_path, monkeypatch):
    def missing():
        raise svg.FigureError("the figures of a report need matplotlib")

    monkeypatch.setattr(svg, "matplotlib", missing)
    monkeypatch.setattr(measurement, "points", lambda *_: pytest.fail("measured in vain"))

    with pytest.raises(svg.FigureError, match="need matplotlib"):
        command.write_statistics(tmp_path / "a.html")

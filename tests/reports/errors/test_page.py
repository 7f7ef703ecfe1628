"""The numeric error report: what is measured, and that the page, the Markdown and the JSON say just that."""

import json
import math
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from attn_spec.reports.errors import command, page, sweep, tables
from attn_spec.reports.errors.rows import Row, Spread, Worst, columns, worst_cases

from attn_spec.search.drawing.regimes import REGIMES, Recipe
from attn_spec.search.verdict import Row as VerdictRow
from attn_spec.search.verdict import Verdict

GALLERY = Path(__file__).parents[3] / "reports" / "gallery"
ENVIRONMENT = {"attn-spec": "0", "profile": "smoke", "device": "a <processor>"}
TINY = sweep.Grid(lengths=(1, 5), magnitudes=(-1, 6), fixed_length=4, queries=3, seeds=2)


def row(**changes):
    """Make a sound row whose numbers all differ."""
    problem = Recipe(regime="normal", seed=1, dtypes="float16", query_length=3, key_length=5).problem()
    worst = Worst(
        index=(0, 0, 2, 7), got=0.25, truth=0.2500001, ulps=3.25, allowed=6.5, ratio=0.5, recipe=repr(problem)
    )
    sound = Row(
        kernel="first",
        spec="numpy_naive",
        dtype="float16",
        device="cpu",
        quantity="output",
        contract="fp32",
        sweep="length",
        regime="normal",
        key_length=5,
        magnitude=1.0,
        elements=192,
        outside_domain=0,
        outside_bound=0,
        ulps=Spread(3.25, 2.5, 0.75),
        row_ulps=Spread(1.25, 1.125, 0.25),
        row_allowed=Spread(4.5, 4.25, 2.0),
        relative=Spread(1.5e-3, 1e-3, 2e-4),
        ratio=Spread(0.5, 0.375, 0.0625),
        worst=worst,
    )
    return replace(sound, **changes)


def many_rows(names, dtypes, grid):
    """Make a row at every point of the grid for each kernel, dtype and quantity."""
    places = [("length", "normal", n, 1.0) for n in grid.lengths]
    places += [("magnitude", "normal", grid.fixed_length, 2.0**e) for e in grid.magnitudes]
    places += [("regime", regime, grid.fixed_length, math.nan) for regime in REGIMES]
    return [
        row(
            kernel=name,
            dtype=dtype,
            quantity=quantity,
            sweep=kind,
            regime=regime,
            key_length=length,
            magnitude=magnitude,
            row_ulps=Spread(0.5 + 0.013 * length + index, 0.5, 0.25),
            ratio=Spread((0.1 + 0.2 * index) % 1, 0.05, 0.01),
        )
        for index, name in enumerate(names)
        for dtype in dtypes
        for kind, regime, length, magnitude in places
        for quantity in ("output", "lse")
    ]


ROWS = many_rows(["first", "second"], ["float32", "bfloat16"], TINY)
VERDICTS = [
    VerdictRow(property="accuracy.output", kernel="first", dtype="float32", verdict=Verdict.HELD, examples=12),
    VerdictRow(property="masking.empty", kernel="first", dtype="float32", verdict=Verdict.NOT_DECLARED),
    VerdictRow(
        property="accuracy.output",
        kernel="first",
        dtype="bfloat16",
        verdict=Verdict.REFUTED,
        case="7f3c",
        message="3 elements are <outside>",
    ),
]


class Document(HTMLParser):
    """Tags, references and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.references, self.words, self.cells = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        self.words.append(data)
        if self.cells:
            self.cells[-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def text():
    """Return the page of all rows and verdicts."""
    return page.html(ROWS, ENVIRONMENT, VERDICTS)


def test_shapes_asked_for_are_on_the_page_with_what_was_looked_at():
    words = "B=1,Hq=2,Hkv=2,Sq=9,Sk=9,D=8 normal: 4 of 18 rows"
    verdicts = [replace(VERDICTS[0], looked_at=(words,)), *VERDICTS[1:]]

    assert words in Document(page.html(ROWS, ENVIRONMENT, verdicts)).text
    assert f"| `accuracy.output` | `first` | float32 | {words} |" in tables.markdown(ROWS, ENVIRONMENT, verdicts)
    assert "Shapes asked for" not in page.html(ROWS, ENVIRONMENT, VERDICTS)


def test_the_page_needs_nothing_from_outside_and_no_script(text):
    document = Document(text)

    assert {"script", "link", "iframe", "img", "object", "embed"}.isdisjoint(document.tags)
    assert document.references
    assert all(reference.startswith("#") for reference in document.references)
    assert not re.findall(r"@import|url\((?!#)|\son\w+=", text)
    assert set(re.findall(r'https?://[^"]*', text)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_page_of_twelve_kernels_at_four_dtypes_is_below_a_megabyte():
    rows = many_rows(
        [f"library:kernel_{i}" for i in range(12)], ["float64", "float32", "float16", "bfloat16"], sweep.FULL
    )

    assert len(page.html(rows, ENVIRONMENT).encode()) < 1_000_000


def test_equal_rows_give_equal_bytes(text):
    assert text == page.html(list(ROWS), dict(ENVIRONMENT), list(VERDICTS))
    assert tables.markdown(ROWS, ENVIRONMENT) == tables.markdown(list(ROWS), dict(ENVIRONMENT))


def test_the_markdown(snapshot):
    unsound = row(kernel="second", ratio=Spread(2.5, 1.5, 0.5), outside_bound=17)
    silent = row(kernel="third", elements=0, worst=None, failure="out has shape (1,) | it must be (2,)")

    assert tables.markdown([row(), row(quantity="lse"), unsound, silent], ENVIRONMENT, VERDICTS) == snapshot


def test_matrix_cells_are_the_largest_numbers_of_the_rows(text):
    found = ["".join(cell.split("\n")) for cell in Document(text).cells]

    for name in ("first", "second"):
        for dtype in ("float32", "bfloat16"):
            own = [r for r in ROWS if (r.kernel, r.dtype, r.quantity) == (name, dtype, "output")]
            ulps = max(r.row_ulps.max for r in own if r.sweep == "length")
            ratio = max(r.ratio.max for r in own)
            assert f"{tables.number(ulps)}{tables.number(ratio)} of bound" in "".join(
                "".join(c.split("\n")) for c in found
            )


def test_every_measured_point_of_a_figure_can_be_hovered():
    one = many_rows(["first"], ["float32"], TINY)
    figures = re.findall(r"<svg.*?</svg>", page.html(one, ENVIRONMENT), re.DOTALL)
    marks = [len(re.findall(r"<use[^>]*><title>first, ", figure)) for figure in figures]

    lines = [len(TINY.lengths), len(TINY.magnitudes)]
    assert marks == [*lines, len(REGIMES), len(REGIMES), *lines]


def test_figures_keep_their_text_and_take_the_colours_of_the_page(text):
    figure = re.findall(r"<svg.*?</svg>", text, re.DOTALL)[0]

    assert ">largest error, ulp</text>" in figure
    assert "var(--k0)" in figure
    assert "var(--k1)" in figure
    assert "var(--bound)" in figure
    assert not re.search(r"#[0-9a-f]{6}", figure)


def test_worst_cases_show_the_element_and_the_recipe():
    text = Document(page.html([row()], ENVIRONMENT)).text

    assert "Element [0, 0, 2, 7]: got 0.25, exact 0.2500001; 3.2 ulp, allowed 6.5." in text
    assert "Recipe(seed=1, dtypes='float16', query_length=3, key_length=5).problem()" in text


def test_worst_cases_begin_with_the_unsound():
    loud = row(kernel="loud", failure="raised", worst=None)
    outside = row(kernel="outside", outside_bound=1, worst=replace(row().worst, ratio=1.5))

    assert [r.kernel for r in worst_cases([row(), outside, loud])] == ["loud", "outside", "first"]


@pytest.mark.parametrize(
    ("rows", "verdicts", "sentence"),
    [
        ([row()], [], "Every measured error lies inside its bound"),
        ([row(), row(kernel="other", outside_bound=1)], [], "1 of 2 kernel and dtype pairs left their bound"),
        ([row(failure="raised")], [], "1 of 1 kernel and dtype pairs left their bound"),
        ([row()], VERDICTS, "1 of 3 verdicts are refuted"),
    ],
)
def test_the_headline_is_the_finding(rows, verdicts, sentence):
    assert page.headline(rows, verdicts) == sentence
    assert sentence in Document(page.html(rows, ENVIRONMENT, verdicts)).text


def test_verdicts_are_shown_with_their_denominator_and_replay_line(text):
    words = Document(text).text

    counted = "1 held, 1 refuted, 0 suspect, 1 not declared, 0 not exercised"
    assert f"2 properties x 2 subjects = 3 verdicts: {counted}" in words
    assert "1 of 3 verdicts are refuted" in " ".join(" ".join(pair) for pair in tables.opening(ROWS, VERDICTS))
    assert "attn-spec replay 7f3c" in words
    assert "3 elements are <outside>" in words


def test_errors_that_are_not_finite_are_shown_and_stored():
    broken = replace(row().worst, got=math.nan, ulps=math.inf, ratio=math.inf)
    infinite = Spread(math.inf, 1.0, 0.5)
    rows = [row(), row(key_length=9, row_ulps=infinite, ratio=infinite, outside_bound=1, worst=broken)]
    text = Document(page.html(rows, ENVIRONMENT)).text
    stored = json.loads(command.document(rows, ENVIRONMENT))

    assert "∞ times bound" in text
    assert "got nan" in text
    assert stored["rows"][1][stored["columns"].index("ratio.max")] == "inf"
    assert stored["rows"][1][stored["columns"].index("worst.got")] == "nan"


def test_a_kernel_without_an_answer_is_counted_apart_from_accuracy():
    none = Spread.of(np.empty(0))
    failed = row(kernel="silent", elements=0, ratio=none, row_ulps=none, worst=None, failure="the call raised <Error>")
    text = Document(page.html([row(), failed], ENVIRONMENT)).text

    assert "no answer to 1 problem" in text
    assert "the call raised <Error>" in text
    assert "1 problem without an answer" in text


def test_json_holds_every_number_of_every_row():
    stored = json.loads(command.document(ROWS, ENVIRONMENT))
    first = dict(zip(stored["columns"], stored["rows"][0], strict=True))

    assert len(stored["rows"]) == len(ROWS)
    assert first == columns(ROWS[0]) | {"worst.index": list(ROWS[0].worst.index)}
    assert {name.partition(".")[0] for name in first} == {field.name for field in fields(Row)}
    assert first["ulps.p99"] == ROWS[0].ulps.p99


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"),
        (0.0433, "0.043"),
        (0.5, "0.50"),
        (9.96, "10"),
        (1234.5, "1,234"),
        (3.44e6, "3.4 \N{MULTIPLICATION SIGN} 10⁶"),
        (5.1e-4, "5.1 \N{MULTIPLICATION SIGN} 10⁻⁴"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "\N{EN DASH}"),
    ],
)
def test_numbers_are_written_with_two_digits(x, text):
    assert tables.number(x) == text


def test_a_spread_is_made_of_values_of_the_sample():
    sample = np.arange(1.0, 201.0)

    assert Spread.of(sample[::-1]) == Spread(max=200.0, p99=198.0, median=100.0)
    assert Spread.of(np.array([1.0, 2.0, math.nan])) == Spread(max=math.inf, p99=math.inf, median=2.0)
    assert math.isnan(Spread.of(np.empty(0)).max)


def test_the_gallery_is_what_the_code_writes_now():
    stored = json.loads((GALLERY / "report.json").read_text())
    text = (GALLERY / "report.html").read_text()

    assert stored["columns"] == list(columns(row()))
    assert command.verdicts_of(GALLERY / "certificate.json")
    assert {"script", "link", "img"}.isdisjoint(Document(text).tags)
    assert len(text) < 1_000_000
    assert sum(path.stat().st_size for path in GALLERY.iterdir()) < 6_000_000

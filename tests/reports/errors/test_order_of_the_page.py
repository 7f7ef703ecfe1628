"""The order of the page, and the words beside its figures."""

from dataclasses import replace

from attn_spec.reports.errors import page

from attn_spec.search.verdict import Row, Verdict
from tests.reports.errors.test_page import ENVIRONMENT, ROWS, Document

PROPERTY_ID = "accuracy.output_is_within_its_bound"
HELD = Row(property=PROPERTY_ID, kernel="first", dtype="float32", verdict=Verdict.HELD, examples=12)


def test_how_to_read_it_comes_first_and_the_worst_cases_before_the_figures():
    text = page.html(ROWS, ENVIRONMENT, [HELD])
    dtype = ROWS[0].dtype

    places = [
        text.index(f"<h2>{title}")
        for title in ("How to read", "Kernel ", "Properties", "Worst cases", dtype, "Environment")
    ]
    assert places == sorted(places)


def test_regimes_contracts_and_properties_are_explained_in_words():
    words = " ".join(
        Document(
            page.html([replace(row, conventions="empty_row nan") for row in ROWS], ENVIRONMENT, [HELD])
        ).text.split()
    )

    assert "normal every entry is N(0, 1). Hunts" in words
    assert f"{ROWS[0].kernel} {ROWS[0].dtype} {ROWS[0].contract} empty_row nan" in words
    usual = "causal_alignment top_left, empty_row zero, empty_row_by_bias same, lse_base e"
    assert f"The usual conventions: {usual}" in words
    assert f"{PROPERTY_ID} Each output element differs from the true attention by no more than" in words

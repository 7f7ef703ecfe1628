"""Refuted properties on the page: each with its sentence, under what explains it."""

import re
from dataclasses import replace

from attn_spec.reports.errors import page

from attn_spec.search.verdict import Row, Verdict
from tests.reports.errors.test_page import ENVIRONMENT, ROWS, Document

PROPERTY_ID = "accuracy.output_is_within_its_bound"
REFUTED = Row(
    property=PROPERTY_ID, kernel="first", dtype="float32", verdict=Verdict.REFUTED, case="7f3c", message="2 outside"
)


def test_refutations_stand_under_the_hint_that_explains_them_with_their_sentences():
    explained = [replace(REFUTED, hints=("right without scale",), case=f"{n}") for n in range(5)]
    text = page.html(ROWS, ENVIRONMENT, [*explained, REFUTED])
    words = " ".join(Document(text).text.split())

    assert re.findall(r"<h3>(\d refuted.*?)</h3>", text) == [
        "5 refuted: right without scale",
        "1 refuted, with no hint of a cause",
    ]
    assert "Each output element differs from the true attention by no more than" in words
    assert "2 more" in words
    assert "attn-spec replay 7f3c --html 7f3c.html" in words
    assert text.count("<details><summary>2 more") == 1


def test_where_nothing_is_refuted_no_cause_is_named():
    assert "refuted:" not in page.html(ROWS, ENVIRONMENT, [replace(REFUTED, verdict=Verdict.HELD)])

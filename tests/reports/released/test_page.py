"""Outcomes of released implementations, their changes, and their page."""

import json
from dataclasses import replace

import pytest
from attn_spec.reports.released import findings, page
from attn_spec.reports.released.environments import ReleasedError
from attn_spec.reports.released.findings import Finding
from attn_spec.reports.released.implementations import by_name
from attn_spec.reports.released.outcome import COULD_NOT_RUN, Outcome, Refutation, changes, from_json, to_json

JUDGED = Refutation(property_id="masking.a", dtype="float32", message="0.5 is <outside>", judged="the corner is wrong")
LEFT = Refutation(property_id="accuracy.b", dtype="float16", message="1.5 is outside", hints=("without window",))
OUTCOME = Outcome(
    implementation="torch-sdpa",
    result="refuted",
    version="2.13.0",
    packages={"torch": "2.13.0"},
    contracts={"float32": "fused", "float16": "fused"},
    counts={"held": 70, "refuted": 1, "known defect": 1, "total": 72},
    ratio=0.5,
    refutations=(JUDGED, LEFT),
    seconds=12.25,
)
HELD = Outcome(implementation="x-transformers", result="passed", version="1", counts={"held": 9}, power=(3, 4))
ABOUT = {"date": "2026-11-29", "profile": "ci"}


@pytest.fixture
def finding(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "SCRIPTS", tmp_path)
    monkeypatch.setattr(page, "SCRIPTS", tmp_path)
    (tmp_path / "shown.py").write_text("print('wrong')\n")
    return Finding(
        implementation="torch-sdpa",
        word="defect",
        reason=JUDGED.judged,
        source="docs",
        properties=("masking.a",),
        script="shown.py",
    )


@pytest.fixture
def shown(finding):
    rows = by_name()
    return [
        page.Shown(row=rows["torch-sdpa"], outcome=OUTCOME, findings=(finding,)),
        page.Shown(row=rows["x-transformers"], outcome=HELD, findings=()),
    ]


def test_a_page_says_how_each_refutation_was_judged(shown):
    assert shown[0].words == {"defect": 1, page.OPEN: 1}
    assert shown[1].words == {}
    assert page.headline(shown) == "1 of 2 released implementations of 2 projects have no refutation"
    assert page.opening(shown)[:2] == [
        ("1", "defects, each with a script that needs the released package alone"),
        ("1", "refuted verdicts that nobody has judged yet"),
    ]
    text = page.markdown(shown, ABOUT, ["torch-sdpa: new, refuted"])
    assert "| PyTorch: scaled_dot_product_attention | 2.13.0 | signature torch_sdpa | fused | 70 " in text
    assert "- **defect**: the corner is wrong (docs)\n  - `masking.a, float32`: 0.5 is <outside>" in text
    assert "```python\nprint('wrong')\n```" in text
    assert "1 not judged yet:\n\n- `accuracy.b, float16`: 1.5 is outside" in text
    assert "## Changes\n\n- torch-sdpa: new, refuted" in text
    assert "3 of 4" in text


def test_the_html_page_holds_the_same_and_no_markup_of_messages(shown):
    text = page.html(shown, ABOUT)

    assert "0.5 is &lt;outside&gt;" in text
    assert "print(&#39;wrong&#39;)" in text
    assert "Not judged yet" in text
    assert "<h2>Changes</h2>" not in text
    assert text == page.html(shown, ABOUT)


def test_an_implementation_that_could_not_run_says_why(shown):
    left = replace(HELD, result=COULD_NOT_RUN, reason="no module", version="")
    row = page.Shown(row=by_name()["x-transformers"], outcome=left, findings=())

    assert row.cells[4] == "could not run: no module"
    few = replace(HELD, counts={"held": 9, "not exercised": 2})
    assert page.Shown(row=by_name()["x-transformers"], outcome=few, findings=()).cells[4] == "9, 2 not exercised"
    assert page.headline([row]) == "0 of 1 released implementations of 1 projects have no refutation"


def test_outcomes_are_read_as_they_were_written():
    found, about = from_json(to_json([OUTCOME, HELD], ABOUT))

    assert found == {"torch-sdpa": OUTCOME, "x-transformers": HELD}
    assert about == ABOUT
    assert OUTCOME.open == (LEFT,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no json", "is none that `make released` writes"),
        ('{"schema": 0, "outcomes": []}', "is not of version 1; make it again"),
        ('{"schema": 1, "outcomes": [{}]}', "is none that `make released` writes"),
        ('{"outcomes": []}', "is none that `make released` writes"),
        (json.dumps([1]), "is none that `make released` writes"),
    ],
)
def test_another_document_is_refused(text, told):
    with pytest.raises(ReleasedError, match=told):
        from_json(text)


def test_changes_name_what_differs_from_an_earlier_page():
    mended = replace(OUTCOME, result="passed", refutations=(LEFT,), version="2.14.0")
    newer = replace(HELD, version="2")

    assert changes({"torch-sdpa": OUTCOME, "x-transformers": HELD}, [OUTCOME, HELD]) == []
    assert changes({"torch-sdpa": OUTCOME, "x-transformers": HELD}, [mended, newer]) == [
        "torch-sdpa (2.13.0 to 2.14.0): refuted before, passed now; masking.a, float32 is not refuted any more",
        "x-transformers (1 to 2): the same verdicts",
    ]
    assert changes({}, [HELD]) == ["x-transformers: new, passed"]
    assert changes({"torch-sdpa": mended}, [replace(OUTCOME, version="2.14.0")]) == [
        "torch-sdpa (2.14.0): passed before, refuted now; masking.a, float32 is refuted"
    ]

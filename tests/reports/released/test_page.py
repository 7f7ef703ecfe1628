"""Outcomes of released implementations, their changes, and their page."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from attn_spec.reports.released import findings, page, verdicts, watch_runs
from attn_spec.reports.released.changes import changes
from attn_spec.reports.released.environments import ReleasedError
from attn_spec.reports.released.findings import Finding
from attn_spec.reports.released.implementations import by_name
from attn_spec.reports.released.outcome import (
    COULD_NOT_RUN,
    AtShape,
    Document,
    Outcome,
    Refutation,
    Reproduction,
    Stale,
    Watched,
    from_json,
    to_json,
)

from attn_spec.search.verdict import Verdict
from attn_spec.watching.tally import Refuted, Tally

JUDGED = Refutation(property_id="masking.a", dtype="float32", message="0.5 is <outside>", judged="the corner is wrong")
LEFT = Refutation(property_id="accuracy.b", dtype="float16", message="1.5 is outside", hints=("without window",))
AT_SHAPE = AtShape(
    shape="B=1,Hq=8,Hkv=2,Sq=1024,Sk=1024,D=128",
    result="passed",
    ratio=0.25,
    looked_at=("a problem: all rows",),
    seconds=17.5,
    call_seconds={"forward": 0.21, "backward": 0.5},
)
RUN_TWICE = Reproduction(
    script="shown.py", requirements=("torch==2.13.0",), printed=("0.5, not <1>\n",) * 2, date="2026-11-29"
)
OUTCOME = Outcome(
    implementation="torch-sdpa",
    result="refuted",
    version="2.13.0",
    packages={"torch": "2.13.0"},
    contracts={"float32": "fused", "float16": "fused"},
    counts={"held": 70, "refuted": 1, "known defect": 1, "total": 72},
    ratio=0.5,
    refutations=(JUDGED, LEFT),
    at_shape=AT_SHAPE,
    reproductions=(RUN_TWICE,),
    stale=(Stale(reason="the corner is wrong", why="is mended since: masking.c, float16 held in 10 problems"),),
    seconds=12.25,
)
HELD = Outcome(implementation="x-transformers", result="passed", version="1", counts={"held": 9}, power=(3, 4))
SEEN = Tally("torch:attention", "torch_sdpa", calls=1200, kinds=3, judged=40, judged_backward=2, ratio=0.125)
SEEN.left["the time was spent"] = 1160
WATCHED = Watched(name="watched-diffusers", result="passed", version="0.42.1", functions=(SEEN,), seconds=9.0)
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


@pytest.fixture
def runs():
    lost = Watched(name="watched-transformers", result=COULD_NOT_RUN, reason="no module", version="5")
    rows = watch_runs.by_name()
    return [page.ShownRun(row=rows[one.name], outcome=one) for one in (lost, WATCHED)]


def test_a_page_says_how_each_refutation_was_judged(shown):
    assert shown[0].words == {"defect": 1, page.OPEN: 1}
    assert shown[1].words == {}
    assert page.headline(shown) == "1 of 2 released implementations of 2 projects have no refutation"
    assert page.opening(shown)[:2] == [
        ("1", "defects, each with a script that needs the released package alone"),
        ("1", "refuted verdicts that nobody has judged yet"),
    ]
    text = page.markdown(shown, [], ABOUT, ["torch-sdpa: new, refuted"])
    assert "| PyTorch: scaled_dot_product_attention | 2.13.0 | signature torch_sdpa | fused | 70 " in text
    assert "- **defect**: the corner is wrong (docs)\n" in text
    assert "\n  - `masking.a, float32`: 0.5 is <outside>\n" in text
    assert "```python\nprint('wrong')\n```" in text
    assert "1 not judged yet:\n\n- `accuracy.b, float16`: 1.5 is outside" in text
    assert "## Changes\n\n- torch-sdpa: new, refuted" in text
    assert "3 of 4" in text


def test_the_html_page_holds_the_same_and_no_markup_of_messages(shown):
    text = page.html(shown, [], ABOUT)

    assert "0.5 is &lt;outside&gt;" in text
    assert "print(&#39;wrong&#39;)" in text
    assert "Not judged yet" in text
    assert "<h2>Changes</h2>" not in text
    assert text == page.html(shown, [], ABOUT)


def test_an_implementation_that_could_not_run_says_why(shown):
    left = replace(HELD, result=COULD_NOT_RUN, reason="no module", version="")
    row = page.Shown(row=by_name()["x-transformers"], outcome=left, findings=())

    assert row.cells[4] == "could not run: no module"
    few = replace(HELD, counts={"held": 9, "not exercised": 2})
    assert page.Shown(row=by_name()["x-transformers"], outcome=few, findings=()).cells[4] == "9, 2 not exercised"
    assert page.headline([row]) == "0 of 1 released implementations of 1 projects have no refutation"


def test_a_page_says_what_was_examined_at_a_production_size(shown):
    assert shown[0].cells[-1] == "0.25, 18 s, 0.21 + 0.5 s"
    assert shown[1].cells[-1] == ""
    sentence = f"At {AT_SHAPE.shape}: passed; largest error / bound 0.25; 18 s; 0.21 s of a forward pass; 0.5 s of a "
    for text in (page.markdown(shown, [], ABOUT), page.html(shown, [], ABOUT)):
        assert sentence in text
        assert "a problem: all rows" in text
    lost = AtShape(shape="S=1", result="inconclusive", reason="it takes <64> columns", seconds=2)
    row = replace(shown[0], outcome=replace(OUTCOME, at_shape=lost))
    assert row.cells[-1] == "inconclusive, 2 s"
    assert "At S=1: inconclusive: it takes &lt;64&gt; columns; 2 s." in page.html([row], [], ABOUT)


def test_a_page_says_which_calls_of_models_were_judged(shown, runs):
    line = ["Diffusers", "0.42.1", "torch:attention", "1,200", "40", "2", "0.12", "0", "1160 x the time was spent"]
    assert [run.cells for run in runs] == [
        [["Transformers", "5", "", "", "", "", "", "", "could not run: no module"]],
        [line],
    ]
    assert f"| {' | '.join(line)} |" in page.markdown(shown, runs, ABOUT)
    assert "".join(f"<td>{cell}</td>" for cell in line) in page.html(shown, runs, ABOUT)
    assert "Watched models" not in page.html(shown, [], ABOUT)


def test_a_page_says_what_to_look_at(shown, runs):
    mended = "is mended since: masking.c, float16 held in 10 problems"
    sentences = [
        "torch-sdpa: 1 refuted verdict without a finding; write one in findings.toml",
        f"torch-sdpa: the finding 'the corner is wrong' {mended}",
        "watched-transformers: could not run: no module",
    ]

    assert page.to_look_at(shown, runs) == sentences
    text = page.markdown(shown, runs, ABOUT)
    assert "## To look at\n\n" + "\n".join(f"- {one}" for one in sentences) in text
    assert f"- **defect**: the corner is wrong (docs)\n  - This finding {mended}." in text
    assert f"<p>This finding {mended}.</p>" in page.html(shown, runs, ABOUT)
    assert "To look at" not in page.html(shown[1:], runs[1:], ABOUT)


def test_a_page_says_whether_the_script_of_a_defect_ran_in_a_fresh_environment(shown):
    sentence = "2 runs in a fresh environment of torch==2.13.0 showed the defect, with the same text, on 2026-11-29."
    failed = replace(RUN_TWICE, failure="is mended since: shown.py ends with 0, not with 3")
    left, unrun = (replace(shown[0], outcome=replace(OUTCOME, reproductions=given)) for given in ((failed,), ()))

    assert f"{sentence}\n\n```text\n0.5, not <1>\n```" in page.markdown(shown, [], ABOUT)
    assert f"<p>{sentence}</p>\n<pre><code>0.5, not &lt;1&gt;\n</code></pre>" in page.html(shown, [], ABOUT)
    for text in (page.markdown([unrun], [], ABOUT), page.html([unrun], [], ABOUT)):
        assert page.NOT_RUN in text
    for text in (page.markdown([left], [], ABOUT), page.html([left], [], ABOUT)):
        assert "in a fresh environment" not in text
    assert failed.sentence == "This finding is mended since: shown.py ends with 0, not with 3."


def test_a_page_says_which_verdict_was_not_exercised_and_why(shown):
    few = replace(HELD, counts={"held": 9, "not exercised": 1}, unexercised={"masking.a, float32": "60 s were up"})

    told = page.to_look_at([replace(shown[1], outcome=few)], [])

    assert told == ["x-transformers: masking.a, float32 was not exercised: 60 s were up"]
    assert from_json(to_json([few], [], ABOUT)).outcomes == {"x-transformers": few}
    old = replace(few, unexercised={})
    assert page.to_look_at([replace(shown[1], outcome=old)], []) == ["x-transformers: 1 verdict not exercised"]


def test_verdicts_that_were_not_exercised_are_taken_from_a_certificate():
    few = SimpleNamespace(verdict=Verdict.NOT_EXERCISED, message="60 s were up")
    held = SimpleNamespace(verdict=Verdict.HELD, message="")
    document = SimpleNamespace(properties=[SimpleNamespace(id="masking.a", dtypes={"float32": few, "float16": held})])

    assert verdicts.unexercised(document) == {"masking.a, float32": "60 s were up"}


def test_outcomes_are_read_as_they_were_written():
    found = from_json(to_json([OUTCOME, HELD], [WATCHED], ABOUT))

    assert found.outcomes == {"torch-sdpa": OUTCOME, "x-transformers": HELD}
    assert found.watched == {"watched-diffusers": WATCHED}
    assert found.about == ABOUT
    assert OUTCOME.open == (LEFT,)


def test_a_document_without_shapes_and_watches_is_read():
    document = json.loads(to_json([replace(OUTCOME, at_shape=None, stale=(), reproductions=())], [], ABOUT))
    del document["watched"]
    for part in ("at_shape", "stale", "reproductions"):
        del document["outcomes"][0][part]

    found = from_json(json.dumps(document))

    assert found.outcomes == {"torch-sdpa": replace(OUTCOME, at_shape=None, stale=(), reproductions=())}
    assert found.watched == {}


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
    before = Document(outcomes={"torch-sdpa": OUTCOME, "x-transformers": HELD})
    mended = replace(OUTCOME, result="passed", refutations=(LEFT,), version="2.14.0")
    newer = replace(HELD, version="2")

    assert changes(before, [OUTCOME, HELD], []) == []
    assert changes(before, [mended, newer], []) == [
        "torch-sdpa (2.13.0 to 2.14.0): refuted before, passed now; masking.a, float32 is not refuted any more",
        "x-transformers (1 to 2): the same verdicts",
    ]
    assert changes(Document(), [HELD], []) == ["x-transformers: new, passed"]
    assert changes(Document(outcomes={"torch-sdpa": mended}), [replace(OUTCOME, version="2.14.0")], []) == [
        "torch-sdpa (2.14.0): passed before, refuted now; masking.a, float32 is refuted"
    ]


@pytest.mark.parametrize(
    ("old", "now", "told"),
    [
        (None, AT_SHAPE, f"examined at {AT_SHAPE.shape} now, passed"),
        (AT_SHAPE, None, f"not examined at {AT_SHAPE.shape} any more"),
        (replace(AT_SHAPE, shape="S=1"), AT_SHAPE, f"examined at {AT_SHAPE.shape} now, passed"),
        (AT_SHAPE, replace(AT_SHAPE, result="refuted"), f"at {AT_SHAPE.shape} passed before, refuted now"),
        (AT_SHAPE, replace(AT_SHAPE, ratio=0.5, seconds=1, call_seconds={}), ""),
    ],
)
def test_changes_name_what_differs_at_a_production_size(old, now, told):
    before = Document(outcomes={"x-transformers": replace(HELD, at_shape=old)})

    expected = [f"x-transformers (1): {told}"] if told else []
    assert changes(before, [replace(HELD, at_shape=now)], []) == expected


def test_changes_name_findings_that_are_not_confirmed_any_more():
    before = Document(outcomes={"torch-sdpa": replace(OUTCOME, stale=())})

    assert changes(before, [OUTCOME], []) == [
        f"torch-sdpa (2.13.0): the finding {OUTCOME.stale[0].reason!r} {OUTCOME.stale[0].why}"
    ]
    assert changes(Document(outcomes={"torch-sdpa": OUTCOME}), [OUTCOME], []) == []


def test_changes_name_what_differs_of_watched_calls():
    before = Document(watched={"watched-diffusers": WATCHED})
    wrong = replace(SEEN, calls=7, judged=1, refuted=[Refuted("this is not the attention", "forward")])
    fewer = replace(SEEN, judged=1, ratio=0.5)  # the time decides how many calls are judged

    assert changes(before, [], [replace(WATCHED, functions=(fewer,))]) == []
    (line,) = changes(before, [], [replace(WATCHED, result="refuted", functions=(wrong,))])
    assert line == (
        "watched-diffusers (0.42.1): passed before, refuted now; "
        "refuted calls of torch:attention: 0 before, 1 now; calls of torch:attention: 1200 before, 7 now"
    )
    assert changes(before, [], [replace(WATCHED, functions=(replace(SEEN, function="other:attention"),))]) == [
        "watched-diffusers (0.42.1): other:attention is watched now; torch:attention is not watched any more"
    ]
    assert changes(Document(), [], [WATCHED]) == ["watched-diffusers: new, passed"]

"""A certificate counts every verdict, survives its file exactly, refuses what it did not write, and compares."""

import json
import math

import click
import jsonschema
import pytest
from click.testing import CliRunner

from attn_spec.cli import certification, screen
from attn_spec.cli import command as cli
from attn_spec.evidence.certificate import Certificate, CertificateError, build, compare, is_one, load, save
from attn_spec.search.verdict import Row, Verdict, denominator, exit_code, worst
from attn_spec.sessions.progress import Progress

KERNEL = {
    "subject": {"spec": "a.py:f", "name": "a:f", "source_sha256": "00", "distribution": None, "git_commit": None},
    "environment": {"python": "3.11", "torch": None},
    "suite": {"version": "0", "properties_sha256": "11"},
    "configuration": {
        "dtypes": ["float32", "float16"],
        "only": [],
        "device": "cpu",
        "profile": "smoke",
        "examples": 12,
        "floor": 6,
        "seed": 0,
        "shapes": ["B=1,Hq=1,Hkv=1,Sq=4,Sk=4,D=8"],
    },
    "declarations": {
        "declared": True,
        "supports": ["causal"],
        "conventions": {"empty_row": "zero", "deterministic": True},
        "contracts": {"float32": {"summary": "fused", "exp_error": 2.0**-21, "summation_depth": None}},
        "declined": {},
    },
    "catalogue": [
        {"id": f"p.{name}", "statement": "s", "source": "t", "hunts": "h", "needs": []} for name in ("one", "two")
    ],
}


def row(name="p.one", dtype="float32", verdict=Verdict.HELD, **others):
    return Row(property=name, kernel="a:f", dtype=dtype, verdict=verdict, **others)


ROWS = [
    row(examples=12, ratio=0.1, looked_at=("S=4: 2 of 4 rows",)),
    row(dtype="float16", verdict=Verdict.REFUTED, examples=3, ratio=math.inf, case="0123abcd", message="m"),
    row("p.two", verdict=Verdict.NOT_DECLARED),
    row("p.two", dtype="float16", verdict=Verdict.NOT_EXERCISED, discarded=9),
]


def test_verdicts_merge_to_the_worst():
    assert worst([]) is Verdict.NOT_EXERCISED
    assert worst([Verdict.HELD, Verdict.NOT_DECLARED]) is Verdict.HELD
    assert worst([Verdict.NOT_EXERCISED, Verdict.HELD]) is Verdict.NOT_EXERCISED
    assert worst([Verdict.SUSPECT, Verdict.NOT_EXERCISED]) is Verdict.SUSPECT
    assert worst(Verdict) is Verdict.REFUTED


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ([], 3),
        ([Verdict.NOT_DECLARED], 3),
        ([Verdict.HELD, Verdict.NOT_DECLARED], 0),
        ([Verdict.HELD, Verdict.NOT_EXERCISED], 3),
        ([Verdict.HELD, Verdict.SUSPECT], 0),
        ([Verdict.SUSPECT], 3),
        ([Verdict.SUSPECT, Verdict.REFUTED], 1),
        (list(Verdict), 1),
    ],
)
def test_only_a_run_that_exercised_every_property_certifies(verdicts, code):
    assert exit_code([row(verdict=verdict) for verdict in verdicts]) == code


@pytest.mark.parametrize(
    ("verdict", "changes", "result", "last"),
    [
        (Verdict.HELD, {"profile": "certify"}, "certified", "CERTIFIED"),
        (Verdict.HELD, {"profile": "ci"}, "passed", "PASSED (ci: 12 problems a property)"),
        (
            Verdict.HELD,
            {"profile": "certify", "only": ["p"]},
            "passed",
            "PASSED (certify: 12 problems a property, 1 property alone)",
        ),
        (Verdict.REFUTED, {"profile": "certify"}, "refuted", "REFUTED"),
        (Verdict.NOT_EXERCISED, {"profile": "certify"}, "inconclusive", "INCONCLUSIVE"),
    ],
)
def test_only_all_properties_by_the_profile_of_that_name_certify(verdict, changes, result, last):
    made = build({**KERNEL, "configuration": {**KERNEL["configuration"], **changes}}, [row(verdict=verdict)])

    assert made.result == result
    assert click.unstyle(screen.conclusion(made)) == last


def test_what_is_not_declared_is_told_with_reasons_in_lines_that_fit():
    lacks = [("backward",), ("backward", "mask"), ("mask",), ("lse", "mask"), (), ("gqa",), ("mask",)]
    rows = [
        row(f"p.{n}", verdict=Verdict.NOT_DECLARED, lacks=words, message="" if words else "it gives no bits")
        for n, words in enumerate(lacks)
    ]
    progress = Progress()
    for each in rows:
        progress.add(Row.from_json(json.loads(json.dumps(each.to_json()))))

    (line,) = screen._not_declared(progress)

    reasons = "4 need mask, 1 needs backward, 1 needs gqa, 1 since it gives no bits"
    assert line == f"  not declared   7 properties: {reasons}"
    for n in range(20):
        progress.add(row(f"q.{n}", verdict=Verdict.NOT_DECLARED, lacks=(f"option_{n:02}",)))
    first, *others = screen._not_declared(progress)
    assert first.startswith("  not declared   27 properties: 4 need mask, ")
    assert len(others) > 2
    assert all(len(each) <= screen.WIDTH and each.startswith(" " * 17) for each in others)


def test_the_denominator_counts_what_was_asked():
    text = "2 properties x 2 subjects = 4 verdicts: 1 held, 1 refuted, 0 suspect, 1 not declared, 1 not exercised"

    assert denominator(ROWS) == text


def test_rows_survive_json():
    assert [Row.from_json(json.loads(json.dumps(each.to_json()))) for each in ROWS] == ROWS


def test_every_verdict_is_in_the_certificate():
    made = build(KERNEL, ROWS)

    assert made.result == "refuted"
    assert made.summary == {
        "held": 1,
        "refuted": 1,
        "suspect": 0,
        "not declared": 1,
        "not exercised": 1,
        "known defect": 0,
        "mended": 0,
        "total": 4,
    }
    assert [(result.id, str(result.verdict)) for result in made.properties] == [
        ("p.one", "refuted"),
        ("p.two", "not exercised"),
    ]
    assert made.properties[0].dtypes["float16"].case == "0123abcd"


def test_the_file_is_strict_json_that_reads_back_exactly(tmp_path):
    made = build(KERNEL, ROWS)
    path = save(made, tmp_path / "new" / "c.json")

    assert load(path) == made
    assert load(path).properties[0].dtypes["float32"].looked_at == ("S=4: 2 of 4 rows",)
    assert load(path).configuration.shapes == ("B=1,Hq=1,Hkv=1,Sq=4,Sk=4,D=8",)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    ratios = [found["ratio"] for found in document["properties"][0]["dtypes"].values()]
    assert ratios == [{"value": "inf", "hex": "inf"}, {"value": 0.1, "hex": (0.1).hex()}]
    jsonschema.validate(document, Certificate.model_json_schema(by_alias=True))
    assert [each.name for each in path.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda d: "not json", "document: Invalid JSON"),
        (lambda d: [], "document: Input should be an object"),
        (lambda d: {**d, "schema": 3}, "schema: Input should be 2"),
        (
            lambda d: {**d, "result": "fine"},
            "result: Input should be 'certified', 'passed',",
        ),
        (lambda d: {key: value for key, value in d.items() if key != "declarations"}, "declarations: Field required"),
        (lambda d: {**d, "stars": 5}, "stars: Extra inputs are not permitted"),
    ],
)
def test_a_malformed_certificate_is_refused_with_the_place(change, text, tmp_path):
    path = save(build(KERNEL, ROWS), tmp_path / "c.json")
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))

    with pytest.raises(CertificateError) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path} is not a certificate of schema 1 or 2:\n")
    assert text in str(refused.value)
    assert str(refused.value).endswith("Make it again with `attn-spec certify`")


def of_schema_1(path):
    """Rewrite a certificate in the words of schema 1."""
    document = json.loads(path.read_text().replace('"not declared"', '"not claimed"'))
    document["claims"] = document.pop("declarations")
    path.write_text(json.dumps({**document, "schema": 1}))


def test_a_certificate_of_schema_1_says_the_same(tmp_path):
    made = build(KERNEL, ROWS[:3])
    path = save(made, tmp_path / "c.json")
    of_schema_1(path)

    assert path.read_text().count('"not claimed"') == 3  # of a property at a dtype, of the property, in the summary
    assert load(path) == made
    assert compare(load(path), made) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"properties": "none"}, "properties: Input should be a valid array"),
        ({"summary": []}, "summary: Input should be an object"),
        ({"claims": None}, "declarations: Input should be an object"),
    ],
)
def test_a_malformed_certificate_of_schema_1_is_refused_likewise(change, text, tmp_path):
    path = save(build(KERNEL, ROWS), tmp_path / "c.json")
    of_schema_1(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(CertificateError, match=text):
        load(path)


def test_a_certificate_of_schema_2_has_no_word_of_schema_1(tmp_path):
    path = save(build(KERNEL, ROWS), tmp_path / "c.json")
    path.write_text(path.read_text().replace('"not declared"', '"not claimed"'))

    with pytest.raises(CertificateError, match="verdict: Input should be 'not declared'"):
        load(path)


def test_an_absent_certificate_is_named(tmp_path):
    with pytest.raises(CertificateError, match=r"absent.json cannot be read: .*No such file"):
        load(tmp_path / "absent.json")


def test_comparing_names_once_what_only_one_has():
    bare = {**KERNEL, "declarations": {**KERNEL["declarations"], "contracts": {}}}

    assert compare(build(KERNEL, ROWS), build(bare, ROWS)) == ["declarations.contracts.float32: 3 entries -> None"]


def test_comparing_names_every_difference():
    old = build(KERNEL, ROWS)
    moved = {**KERNEL, "environment": {"python": "3.12", "torch": None}}
    new = build(moved, [row(examples=12, ratio=0.2), *ROWS[1:3]])

    assert compare(old, old) == []
    assert compare(old, new) == [
        "environment.python: 3.11 -> 3.12",
        "p.one float32: held (12 examples, ratio 0.1) -> held (12 examples, ratio 0.2)",
        "p.two float16: not exercised (0 examples) -> absent",
    ]


@pytest.mark.parametrize(
    ("verdict", "last", "code"),
    [
        (Verdict.HELD, "\x1b[33m\x1b[1mPASSED (smoke: 12 problems a property), 1 suspect\x1b[0m", 0),
        (Verdict.REFUTED, "\x1b[31m\x1b[1mREFUTED, 1 suspect\x1b[0m", 1),
    ],
)
def test_a_kernel_still_passes_with_suspects_and_the_last_line_says_so(verdict, last, code, monkeypatch, tmp_path):
    rows = [row(verdict=verdict), row("p.two", verdict=Verdict.SUSPECT, ratio=2.5, message="too large")]
    progress = Progress()
    progress.kernel = {**KERNEL, "catalogue": [KERNEL["catalogue"][0], FALSE_ALARM]}
    progress.shares = {0: [(one.property, one.kernel, one.dtype) for one in rows]}
    for one in rows:
        progress.add(one, f"{one.verdict.upper()}  s\n  property  {one.property}")
    document = build(progress.kernel, rows)
    monkeypatch.setattr(certification, "examine", lambda request, watch: (document, progress))

    shown = CliRunner().invoke(cli.main, ["certify", "a.py:f", "-o", str(tmp_path / "c.json")], color=True)

    lines = shown.output.splitlines()
    assert (lines[-1], shown.exit_code) == (last, code), shown.output
    assert "\x1b[33m  suspect        p.two  worst statistic/threshold 2.5\x1b[0m" in lines
    assert "\x1b[33mSUSPECT  s" in lines
    assert load(tmp_path / "c.json").properties[1].false_alarm == 1e-9


FALSE_ALARM = {**KERNEL["catalogue"][1], "false_alarm": 1e-9}


def test_nothing_is_counted_in_a_row_until_it_is():
    assert (row().examples, row().discarded, row().ratio, row().readings, row().message) == (0, 0, None, (), "")


def test_a_file_that_is_no_certificate_is_not_overwritten(tmp_path):
    path = tmp_path / "mine.json"
    for text in ("{", "[]", '{"result": 1}'):
        path.write_text(text)
        done = CliRunner().invoke(cli.main, ["certify", "numpy_naive", "-o", str(path)])

        assert (done.exit_code, path.read_text()) == (2, text)
        assert (
            done.stderr
            == f"Error: {path} is not a certificate, and would be overwritten; remove it, or choose another --output\n"
        )
    save(build(KERNEL, ROWS), path)
    assert is_one(path)

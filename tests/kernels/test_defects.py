"""Tables of known defects: what they may hold, what each row is about, and what becomes of verdicts under them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attn_spec.kernels.defects import Defect, DefectError, read
from attn_spec.search.verdict import Row, Verdict, against, exit_code

PROPERTY_ID = "accuracy.output_is_within_its_bound"
TABLE = f'[[defect]]\nproperty = "{PROPERTY_ID}"\nreason = "loses the last key"\n'
EXHAUSTIVE = pytest.mark.exhaustive  # a table of one kernel or of others does what a table of several does
KERNEL = """
import ctypes
import numpy as np
from attn_spec import kernel
from attn_spec.kernels.defects import Defect

def sound(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v

def broken(q, k, v):
    return sound(q, k[:, :, 1:], v[:, :, 1:]) if k.shape[2] > 1 else v

table = (Defect(property="accuracy.output_is_within_its_bound", reason="loses a key", link="https://example.org/7"),)
declare = dict(framework="numpy", dtypes=("float32",), contract="eager")
known, mended = (kernel(**declare, known_defects=table, name=f.__name__)(f) for f in (broken, sound))
plain = kernel(**declare, name="broken")(broken)
def crashing(q, k, v):
    return ctypes.string_at(0) if k.shape[2] != 8 else sound(q, k, v)

crashes = kernel(**declare, known_defects=table, name="crashes")(crashing)
wrong = kernel(**declare, name="wrong", known_defects=(Defect(property="accuracy.outputs", reason="x"),))(sound)
"""


def row(verdict, **changes):
    return replace(
        Row(property=PROPERTY_ID, kernel="k", dtype="float32", verdict=verdict, examples=10, message="why"), **changes
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"dtype": "float32"}, True),
        ({"dtype": "float16"}, False),
        ({"kernel": "k"}, True),
        ({"kernel": "other"}, False),
        ({"property": PROPERTY_ID.removesuffix("bound")}, False),
    ],
)
def test_a_row_is_of_a_property_a_dtype_and_a_kernel(changes, expected):
    defect = Defect(**{"property": PROPERTY_ID, "reason": "r", **changes})

    assert defect.is_of("k", "float32", PROPERTY_ID) == expected
    assert against(row(Verdict.REFUTED), [defect]).verdict is (Verdict.KNOWN if expected else Verdict.REFUTED)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (Verdict.REFUTED, Verdict.KNOWN, "r (https://example.org). why"),
        (Verdict.SUSPECT, Verdict.KNOWN, "r (https://example.org). why"),
        (Verdict.HELD, Verdict.MENDED, "no longer seen in 10 problems; if it is mended, remove it from the table: r"),
        (Verdict.NOT_DECLARED, Verdict.NOT_DECLARED, "why"),
        (Verdict.NOT_EXERCISED, Verdict.NOT_EXERCISED, "why"),
    ],
)
def test_a_known_defect_fails_nothing_while_it_lasts(before, after, message):
    found = against(row(before), [Defect(property=PROPERTY_ID, reason="r", link="https://example.org")])

    assert found.verdict is after
    assert found.message.startswith(message)


@pytest.mark.parametrize("before", [Verdict.REFUTED, Verdict.HELD])
def test_a_search_may_miss_a_rare_defect(before):
    found = against(row(before), [Defect(property=PROPERTY_ID, reason="r", rare=True)])

    assert found.verdict is (Verdict.KNOWN if before is Verdict.REFUTED else Verdict.HELD)


def test_what_a_known_defect_makes_of_a_run():
    held = row(Verdict.HELD)

    assert exit_code([held, row(Verdict.KNOWN)]) == 0
    assert exit_code([held, row(Verdict.MENDED)]) == 3
    assert exit_code([row(Verdict.KNOWN)]) == 3
    assert exit_code([held, row(Verdict.KNOWN), row(Verdict.REFUTED)]) == 1


@pytest.mark.parametrize(
    ("needed", "verdict"),
    [
        ((), Verdict.REFUTED),
        (("window",), Verdict.REFUTED),
        (("causal", "window"), Verdict.KNOWN),
        (("causal", "window", "mask"), Verdict.KNOWN),
    ],
)
def test_an_entry_with_options_covers_what_needs_all_of_them(needed, verdict):
    defect = Defect(needs=["window", "causal"], reason="r", kernel="k")

    assert against(row(Verdict.REFUTED, needed=needed), [defect]).verdict is verdict
    assert against(row(Verdict.REFUTED, needed=needed, kernel="other"), [defect]).verdict is Verdict.REFUTED
    assert against(row(Verdict.HELD), [defect]).verdict is Verdict.HELD


def test_a_table_is_read(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text(TABLE + 'kernel = "k"\ndtype = "float16"\nlink = "https://example.org"\n')

    (defect,) = read(path)

    assert defect == Defect(
        property=PROPERTY_ID, reason="loses the last key", kernel="k", dtype="float16", link="https://example.org"
    )


def test_a_table_of_pyproject_is_read(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text('[project]\nname = "mine"\n' + TABLE.replace("[[defect]]", "[[tool.attn_spec.defect]]"))

    assert read(path) == (Defect(property=PROPERTY_ID, reason="loses the last key"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("defect = [", r"known.toml cannot be read as TOML: "),
        ("[tool]\nattn_spec = 1\n", r"must hold tables \[\[defect\]\] and nothing else, or \[\[tool.attn_spec"),
        ("", r"known.toml must hold tables \[\[defect\]\] and nothing else"),
        (TABLE + "[other]\n", r"must hold tables \[\[defect\]\] and nothing else"),
        (
            TABLE + 'kernels = "k"\n',
            r"defect 1 has unknown keys kernels; known are reason, property, needs",
        ),
        (TABLE + '[[defect]]\nproperty = "p"\n', r"defect 2 must have the keys property, or needs, and reason"),
        ('[[defect]]\nreason = "r"\n', "defect 1: a known defect needs a property that is a text, not None"),
        (
            '[[defect]]\nreason = "r"\nneeds = "window"\n',
            r"defect 1: the needs of a known defect are options, \[\"window\"\], not 'window'",
        ),
        (
            TABLE + '[[defect]]\nproperty = "p"\nreason = " "\n',
            r"defect 2: a known defect needs a reason",
        ),
        (TABLE + 'rare = "yes"\n', "defect 1: rare of a known defect must be true or false, not 'yes'"),
        (
            TABLE + 'dtype = "fp16"\n',
            "defect 1: the dtype of a known defect must be one of .*, bfloat16, float8_e4m3fn, .*, not 'fp16'",
        ),
    ],
)
def test_a_table_that_is_wrong_says_where(tmp_path, text, message):
    path = tmp_path / "known.toml"
    path.write_text(text)

    with pytest.raises(DefectError, match=message):
        read(path)
    with pytest.raises(DefectError, match=r"absent.toml cannot be read as TOML"):
        read(tmp_path / "absent.toml")


@pytest.fixture
def certify(attn_spec, folder):
    folder.joinpath("mine.py").write_text(KERNEL)
    for file, kernels in (
        ("known", ["broken"]),
        ("other", ["brokn", "flash"]),
        ("others", ["flash"]),
        ("several", ["broken", "flash"]),
    ):
        folder.joinpath(f"{file}.toml").write_text("".join(f'{TABLE}kernel = "{kernel}"\n' for kernel in kernels))

    def run(name, *arguments):
        return attn_spec("certify", f"mine.py:{name}", "--property", "accuracy.", *arguments)

    return run


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "file", "code", "says"),
    [
        pytest.param("plain", "", 1, "REFUTED  Each output element differs", marks=EXHAUSTIVE),
        pytest.param(
            "plain",
            "known.toml",
            3,
            f"known defect   {PROPERTY_ID}  (loses the last key. output[0",
            marks=EXHAUSTIVE,
        ),
        ("known", "own", 3, f"known defect   {PROPERTY_ID}  (loses a key (https://example.org/7). output[0"),
        ("known", "", 1, "own table of known defects expects this: it counts with --known-defects own"),
        ("mended", "own", 3, f"mended         {PROPERTY_ID}  (no longer seen in 10 problems"),
        ("wrong", "", 2, "known defects name no property accuracy.outputs; `attn-spec properties` lists them"),
        (
            "crashes",
            "own",
            3,
            f"known defect   {PROPERTY_ID}  (loses a key (https://example.org/7). the kernel crashed the process",
        ),
        ("plain", "other.toml", 2, "other.toml is about brokn, which is not examined; did you mean 'broken'?"),
        pytest.param("plain", "others.toml", 1, "REFUTED  Each output element differs", marks=EXHAUSTIVE),
        ("plain", "several.toml", 3, f"known defect   {PROPERTY_ID}  (loses the last key. output[0"),
        ("plain", "absent.toml", 2, "absent.toml cannot be read as TOML"),
    ],
)
def test_certifying_with_known_defects(certify, name, file, code, says):
    """A chosen family leaves the rest unexercised: 3 is the best there is, and a refutation is still distinct."""
    done = certify(name, *(("--known-defects", file) if file else ()))

    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
    if code == 3:
        summary = json.loads(Path("certificate.json").read_text())["summary"]
        assert summary["refuted"] == 0
        assert summary["known defect"] + summary["mended"] == 1


def test_a_known_defect_is_an_expected_failure_of_pytest(pytester):
    pytester.makepyfile(mine=KERNEL)
    chosen = (
        "--attn-kernel=mine.py:known",
        f"--attn-property={PROPERTY_ID}",
        "-p",
        "no:cacheprovider",
        "--attn-known-defects=own",
    )

    done = pytester.runpytest_subprocess("--pyargs", "attn_spec.properties.test_accuracy", *chosen)

    done.assert_outcomes(xfailed=1, skipped=done.parseoutcomes().get("skipped", 0))

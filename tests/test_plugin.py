"""The pytest plugin: options, verdicts as outcomes, the denominator and workers."""

import json

import pytest

PROPERTIES = '''
"""Toy properties, one for each verdict."""
import numpy as np
from hypothesis import assume, strategies as st
from attn_spec import Problem
from attn_spec.search.property import Refutation, attention_property, observe

def ones(n):
    return Problem(q=np.ones((1, 1, n, 1)), k=np.ones((1, 1, n, 1)), v=np.ones((1, 1, n, 1)))

def lengths(subject):
    return st.integers(1, 40).map(ones)

@attention_property(source="toy", hunts="nothing", problems=lengths)
def test_ones_give_ones(subject, problem):
    """Equal values come back."""
    observe(problem.query_length / 64)
    assert (subject(problem)["output"] == 1).all()

@attention_property(source="toy", hunts="length", problems=lengths)
def test_short(subject, problem):
    """No problem has more than six queries."""
    if problem.query_length > 6:
        raise Refutation(f"{problem.query_length} queries")

@attention_property(source="toy", hunts="nothing", problems=lengths, needs=("softcap",))
def test_capped(subject, problem):
    """Never reached, for want of softcap."""
    raise AssertionError

@attention_property(source="toy", hunts="nothing", problems=lengths)
def test_picky(subject, problem):
    """Almost no problem will do."""
    assume(problem.query_length == 1000)
'''

KERNEL = """
import numpy as np
from attn_spec import kernel

@kernel(framework="numpy", dtypes=("float32", "float64"), contract="fused")
def attention(q, k, v):
    return v.copy()

@kernel(framework="numpy", dtypes=("float32",), contract="fused", name="noisy")
def noisy(q, k, v):
    import warnings
    warnings.warn("slow path")
    print("hello")
    return v.copy()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_toys=PROPERTIES, toy=KERNEL)
    return pytester


def run(suite, *arguments, code=1):
    own = ("-p", "no:cacheprovider", "--attn-isolate=never", "--attn-kernel", "toy.py:attention")
    done = suite.runpytest_subprocess(*own, *arguments)
    assert done.ret == code
    return done


DENOMINATOR = "4 properties x 2 subjects = 8 verdicts: 2 held, 2 refuted, 0 suspect, 2 not declared, 2 not exercised"


def test_verdicts_are_outcomes_and_are_counted(suite):
    done = run(suite, "-rs")

    done.assert_outcomes(passed=2, failed=4, skipped=2)
    done.stdout.fnmatch_lines(
        [
            "attn-spec: toy (*)",
            "attn-spec: cpu, float32, float64, profile smoke, seed 0",
            "*not exercised: 0 problems were tried, 5 are needed: * drawn problems were unusable*",
            DENOMINATOR,
            "SKIPPED * not declared: the kernel does not declare softcap",
        ]
    )
    assert "Traceback" not in done.stdout.str()


def test_workers_of_xdist_send_their_rows_home(suite):
    run(suite, "-n", "2").stdout.fnmatch_lines([DENOMINATOR])


def test_shares_examine_everything_once(suite):
    keys = []
    for number in range(3):
        suite.runpytest_subprocess(
            *("--attn-isolate=never", "--attn-kernel", "toy.py:attention"),
            *(f"--attn-share={number}/3", f"--attn-report={number}.jsonl"),
        )
        lines = map(json.loads, suite.path.joinpath(f"{number}.jsonl").read_text(encoding="utf-8").splitlines())
        collected = next(line["keys"] for line in lines if line["kind"] == "collected")
        keys.append([tuple(key) for key in collected])

    assert [len(found) for found in keys] == [3, 3, 2]
    assert len({key for found in keys for key in found}) == 8


def test_failures_are_shrunk_and_end_in_a_line_to_paste(suite):
    done = run(suite, "--attn-dtype", "float32", "-k", "short")

    done.stdout.fnmatch_lines(
        [
            "REFUTED  No problem has more than six queries.",
            "  property  toys.short",
            "  kernel    toy, float32, cpu",
            "  contract  fused",
            "  problem   Problem(q=np.array([[]1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).reshape(1, 1, 7, 1),*",
            "  why       7 queries",
            "  source    toy",
            "  replay    attn-spec replay ????????",
            "  python    attn_spec.run(problem, 'toy.py:attention'), attn_spec.tensors(problem, 'numpy')",
            "  script    python .attn-spec/cases/????????.py",
        ],
        consecutive=True,
    )


def test_the_report_has_a_line_for_each_verdict(suite):
    run(suite, "--attn-report", "report.jsonl", "--attn-dtype", "float32")
    events = [json.loads(line) for line in (suite.path / "report.jsonl").read_text().splitlines()]

    rows = {event["row"]["property"]: event["row"] for event in events if event["kind"] == "row"}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "toys.ones_give_ones": "held",
        "toys.short": "refuted",
        "toys.capped": "not declared",
        "toys.picky": "not exercised",
    }
    assert 1 / 64 <= rows["toys.ones_give_ones"]["ratio"] <= 40 / 64
    assert [event["kind"] for event in events[:4]] == ["look", "kernel", "account", "collected"]
    found = [(event["key"][0], event["message"].split()[1]) for event in events if event["kind"] == "found"]
    assert found == [("toys.short", "queries")]
    assert events[-1] == {"kind": "end", "exit": 1}


def test_a_warning_of_the_kernel_does_not_refute_it(suite):
    options = ("-p", "no:cacheprovider", "-W", "error", "-k", "ones", "--attn-kernel", "toy.py:noisy")
    suite.runpytest_subprocess(*options).assert_outcomes(passed=1)


def test_a_fault_of_a_property_refutes_nothing(suite):
    suite.makepyfile(
        test_toys=PROPERTIES + '\n    raise KeyError("oops")\n'.replace("    raise", "    1 / 0\n    raise")
    )
    faulty = PROPERTIES.replace('raise Refutation(f"{problem.query_length} queries")', "problem.no_such_field")
    suite.makepyfile(test_toys=faulty)
    done = run(suite, "-k", "short", "--attn-dtype", "float32")

    done.stdout.fnmatch_lines(
        [
            "*PropertyError: this is a bug of attn-spec *, not of the kernel: AttributeError: *no_such_field* at *:*",
            "1 property x 1 subject = 1 verdict: 0 held, 0 refuted, 0 suspect, 0 not declared, 1 not exercised",
        ]
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--attn-kernel", "nowhere.py:f"),
            "ERROR: nowhere.py does not exist (looked in *); give the path of a file that is there",
        ),
        (("--attn-kernel", "toy.py:f"), "ERROR: toy has no 'f'; it has attention, noisy"),
        (("--attn-kernel", "toy.py:nothing"), "ERROR: toy has no 'nothing'; it has attention, noisy"),
        (
            ("--attn-kernel", "toy.py:attention", "--attn-dtype", "bfloat16"),
            "ERROR: toy declares float32, float64, not *",
        ),
        (
            ("--attn-kernel", "toy.py:attention", "--attn-property", "toys.shirt"),
            "ERROR: no property's id contains 'toys.shirt'; did you mean 'toys.short' or *",
        ),
        (
            ("--attn-kernel", "toy.py:attention", "--attn-property", "zzz"),
            "ERROR: no property's id contains 'zzz'; `attn-spec properties` lists them",
        ),
        (("--attn-dtype", "flaot32", "--attn-kernel", "toy.py:attention"), "*'flaot32'; did you mean 'float32'*"),
        (("--attn-share", "2/2"), "*argument --attn-share: must be I/N with 0 <= I < N, e.g. 0/2, not '2/2'"),
        (("--attn-shape", "S=4"), "*argument --attn-shape: 'S=4' lacks Hq, Hkv, D; a full shape is B=2,Hq=32,*"),
        (("--attn-shape", "H=64,S=268435456,D=256"), "ERROR: B=1,Hq=64,* takes about * GiB to examine, and *"),
        (("--attn-share", "half"), "*argument --attn-share: must be I/N with 0 <= I < N, e.g. 0/2, not 'half'"),
        (("--attn-profile", "lazy"), "*argument --attn-profile: invalid choice: 'lazy' (choose from *smoke*"),
    ],
)
def test_a_wrong_option_ends_in_one_line(suite, arguments, text):
    done = suite.runpytest_subprocess("-p", "no:cacheprovider", *arguments)

    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([text.replace("[", "[[]")])


SUSPICIOUS = '''
"""A toy statistic."""
from attn_spec.search.property import Suspicion, attention_property
from test_toys import lengths

@attention_property(source="toy", hunts="length", problems=lengths, false_alarm=1e-6)
def test_lengths_look_short(subject, problem):
    """Lengths look like at most six."""
    if problem.query_length > 6:
        raise Suspicion(f"{problem.query_length} queries")

@attention_property(source="toy", hunts="length", problems=lengths, not_applicable=lambda subject: "its name is toy")
def test_other(subject, problem):
    """Never reached."""
    raise AssertionError
'''


def test_a_suspect_fails_nothing_and_is_shown(suite):
    suite.makepyfile(test_toys=PROPERTIES, test_statistics=SUSPICIOUS)
    options = ("--import-mode=prepend", "-rs", "--attn-dtype", "float32", "--attn-report", "report.jsonl")
    done = run(suite, *options, "test_statistics.py", code=0)

    done.assert_outcomes(passed=1, skipped=1)
    done.stdout.fnmatch_lines(
        [
            "SUSPECT  Lengths look like at most six.",
            "  property  statistics.lengths_look_short",
            "  kernel    toy, float32, cpu",
            "  contract  fused",
            "  problem   Problem(*reshape(1, 1, 7, 1),*",
            "  why       7 queries",
            "  chance    at most 1e-06 for one problem, if the kernel rounds as its contract declares",
            "  source    toy",
            "  replay    attn-spec replay ????????",
            "  python    attn_spec.run(problem, 'toy.py:attention'), attn_spec.tensors(problem, 'numpy')",
        ],
        consecutive=True,
    )
    counted = "0 held, 0 refuted, 1 suspect, 1 not declared, 0 not exercised"
    done.stdout.fnmatch_lines([f"2 properties x 1 subject = 2 verdicts: {counted}"])
    done.stdout.fnmatch_lines(["SKIPPED * not declared: its name is toy"])
    events = [json.loads(line) for line in (suite.path / "report.jsonl").read_text().splitlines()]
    blocks = [event["block"] for event in events if event["kind"] == "row" and event["row"]["verdict"] == "suspect"]
    assert [block.splitlines()[0] for block in blocks] == ["SUSPECT  Lengths look like at most six."]

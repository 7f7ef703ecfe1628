"""Tests that ``make test`` leaves to ``make exhaustive``: per property all kernels and dtypes but one.

And cases of a test, all but one in n.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

FILES = {"toy": ("one", "two"), "other": ("apart",), "interpreted": ("slow",), "compiled": ("built",)}
COSTS = {"slow": {"slowness": 2.0}, "built": {"signatures": 3}}
#: Kernels that share the properties, and how many of these one of them meets: each, or of slow ones a third.
SHARED = {("one", "two", "apart"): (41,), ("slow", "built"): range(8, 20)}
DTYPES = ("float64", "float32", "float16")
KERNELS = """
import numpy as np
from attn_spec import kernel

def mean(q, k, v):
    return v.copy()

def declared(name, costs):
    return kernel(
        framework="numpy", dtypes=("float64", "float32", "float16"), contract="fused", name=name, **costs
    )(mean)

"""
TOYS = """
from attn_spec.search.property import attention_property

def made(name, **declared):
    def check(subject, problem):
        \"\"\"Never called.\"\"\"
    check.__name__ = name
    return attention_property(source="toy", hunts="nothing", **declared)(check)

globals().update({f"test_{n}": made(f"test_{n}") for n in range(40)})
test_late = made("test_late", not_applicable=lambda subject: "" if subject.kernel.slowness > 1 else "too soon")
test_narrow = made("test_narrow", not_applicable=lambda subject: "" if subject.dtype == "float16" else "too wide")
"""


@pytest.fixture
def collected(pytester):
    """Return the dtypes that are examined, by property and kernel."""
    conftest = Path(__file__).parents[1].joinpath("conftest.py").read_text(encoding="utf-8")
    rows = {name: f"{name} = declared({name!r}, {COSTS.get(name, {})})\n" for names in FILES.values() for name in names}
    toys = {f: KERNELS + "".join(map(rows.__getitem__, names)) for f, names in FILES.items()}

    def collect(*arguments, properties=40):
        pytester.makepyfile(conftest=conftest, test_toys=TOYS.replace("range(40)", f"range({properties})"), **toys)
        named = [word for f, names in FILES.items() for name in names for word in ("--attn-kernel", f"{f}.py:{name}")]
        done = pytester.runpytest_subprocess("--collect-only", "-q", "--attn-isolate=never", *named, *arguments)
        found = defaultdict(list)
        for line in done.outlines:
            if match := re.fullmatch(r"test_toys\.py::test_(\w+)\[(\w+)-(\w+)\]", line):
                found[match[1], match[2]].append(match[3])
        return found

    return collect


def test_some_kernel_meets_each_property_and_each_kernel_and_dtype_some(collected):
    found = collected("-m", "not exhaustive")

    assert {len(dtypes) for dtypes in found.values()} == {1}
    for names, meet in SHARED.items():
        assert len([kernel for _, kernel in found if kernel in names]) in meet
        for name in names:
            assert len({dtypes[0] for (_, kernel), dtypes in found.items() if kernel == name}) > 1


def test_a_kernel_that_no_property_chooses_meets_one_nevertheless(collected):
    found = collected("-m", "not exhaustive", properties=1)

    assert {kernel for _, kernel in found} == {name for names in FILES.values() for name in names}
    assert len(found) < 10


def test_what_is_examined_is_what_the_property_concerns(collected):
    found = collected("-m", "not exhaustive")

    assert {dtypes[0] for (property_, _), dtypes in found.items() if property_ == "narrow"} == {"float16"}
    assert [kernel for property_, kernel in found if property_ == "late"] == ["slow"]


def test_of_kernels_that_are_named_all_are_examined(collected):
    found = collected()

    assert len(found) == 5 * 42
    assert {tuple(dtypes) for dtypes in found.values()} == {DTYPES}


@pytest.mark.parametrize(("arguments", "passed"), [((), 1), (("-m", "exhaustive or not exhaustive"), 2)])
def test_what_is_exhaustive_is_left_out_unless_it_is_asked_for(pytester, arguments, passed):
    conftest = Path(__file__).parents[1].joinpath("conftest.py").read_text(encoding="utf-8")
    long = "import pytest\n\ndef test_short(): ...\n\n@pytest.mark.exhaustive\ndef test_long(): ...\n"
    pytester.makepyfile(conftest=conftest, test_both=long)

    pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments).assert_outcomes(
        passed=passed, deselected=2 - passed
    )


@pytest.mark.parametrize(("arguments", "passed"), [((), 3), (("-m", "exhaustive or not exhaustive"), 7)])
def test_of_cases_one_in_n_is_left(pytester, arguments, passed):
    conftest = Path(__file__).parents[1].joinpath("conftest.py").read_text(encoding="utf-8")
    cases = """
        import pytest

        LONG = pytest.param(7, marks=pytest.mark.exhaustive)

        @pytest.mark.one_in(3)
        @pytest.mark.parametrize("case", [LONG, 0, 1, 2, 3, 4])
        def test_it(case):
            assert case in (0, 3) or "%s"

        def test_other(): ...
    """
    pytester.makepyfile(conftest=conftest, test_cases=cases % " ".join(arguments))

    pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments).assert_outcomes(
        passed=passed, deselected=7 - passed
    )

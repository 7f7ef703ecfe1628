"""What ``make test`` leaves to ``make exhaustive``: of a property every dtype of a kernel but one, in turn."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

DTYPES = ("float64", "float32", "float16")
KERNELS = """
import numpy as np
from attn_spec import kernel

def mean(q, k, v):
    return v.copy()

one = kernel(framework="numpy", dtypes=("float64", "float32", "float16"), contract="fused", name="one")(mean)
two = kernel(framework="numpy", dtypes=("float64", "float32", "float16"), contract="fused", name="two")(mean)
slow = kernel(framework="numpy", dtypes=("float64", "float32"), contract="fused", name="slow", slowness=2.0)(mean)
built = kernel(framework="numpy", dtypes=("float64", "float16"), contract="fused", name="built", signatures=3)(mean)
"""
CLAIMS = """
from attn_spec.search.property import attention_property

def claim(name, **declared):
    def check(subject, problem):
        \"\"\"Never called.\"\"\"
    check.__name__ = name
    return attention_property(source="toy", hunts="nothing", **declared)(check)

globals().update({f"test_{n}": claim(f"test_{n}") for n in range(20)})
test_narrow = claim("test_narrow", not_applicable=lambda subject: "" if subject.dtype == "float16" else "too wide")
"""


@pytest.fixture
def collected(pytester):
    """The dtypes that are examined, by property and kernel."""
    conftest = Path(__file__).parents[1].joinpath("conftest.py").read_text(encoding="utf-8")
    pytester.makepyfile(conftest=conftest, test_claims=CLAIMS, toy=KERNELS)

    def collect(*arguments, kernels=("one", "two")):
        named = [word for name in kernels for word in ("--attn-kernel", f"toy.py:{name}")]
        done = pytester.runpytest_subprocess("--collect-only", "-q", *named, *arguments)
        found = defaultdict(list)
        for line in done.outlines:
            if match := re.fullmatch(r"test_claims\.py::test_(\w+)\[(\w+)-(\w+)\]", line):
                found[match[1], match[2]].append(match[3])
        return found

    return collect


def test_each_kernel_meets_each_property_once_and_each_of_its_dtypes_some(collected):
    found = collected("-m", "not exhaustive")

    assert len(found) == 2 * 21
    assert {len(dtypes) for dtypes in found.values()} == {1}
    for kernel in ("one", "two"):
        assert {dtypes[0] for (_, name), dtypes in found.items() if name == kernel} == set(DTYPES)


def test_slow_kernels_of_one_file_share_the_properties(collected):
    found = collected("-m", "not exhaustive", kernels=("one", "slow", "built"))

    assert len(found) == 2 * 21
    assert sum(name == "one" for _, name in found) == 21
    assert {name for _, name in found} == {"one", "slow", "built"}


def test_what_is_examined_is_what_the_property_concerns(collected):
    assert collected("-m", "not exhaustive")["narrow", "two"] == ["float16"]


def test_all_are_examined_by_those_who_ask_for_nothing(collected):
    assert {tuple(dtypes) for dtypes in collected().values()} == {DTYPES}

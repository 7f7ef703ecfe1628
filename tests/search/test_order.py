"""Properties that find most come first, and every id of that order is one."""

import numpy as np

from attn_spec import Problem, kernel
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing import strategies
from attn_spec.search.order import FIRST, rank
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import Property, Suspicion, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict


def test_the_order_names_properties_once():
    assert set(FIRST) <= set(load_all())
    assert len(set(FIRST)) == len(FIRST)
    assert FIRST[0] == "accuracy.output_is_within_its_bound"
    assert rank(FIRST[3]) == 3 < rank("no.such") == len(FIRST)


def test_pytest_collects_properties_in_the_order_and_leaves_other_tests_where_they_are(pytester):
    pytester.makepyfile(test_a="def test_mine(): pass", test_b="def test_mine(): pass")
    options = ("--attn-kernel", "numpy_naive", "--attn-dtype", "float32", "--collect-only", "-q", "--pyargs")
    done = pytester.runpytest_subprocess(*options, "test_a.py", "attn_spec.properties", "test_b.py")

    found = [line.split("::")[-1] for line in done.outlines if "::" in line]
    names = [f"test_{name.partition('.')[2]}[numpy_naive-float32]" for name in FIRST]
    assert found[: len(FIRST) + 1] == ["test_mine", *names]
    assert [name for name in found if not name.startswith("test_sampled_")][
        -1
    ] == "test_mine"  # shapes asked for are last
    assert len(found) == len(load_all()) + 2


def attention(q, k, v):
    return np.zeros((*q.shape[:3], v.shape[3]), q.dtype)


def found_in(check):
    made = kernel(framework="numpy", dtypes=("float32",), contract="fused")(attention)
    facts = {"id": "toy.property", "statement": "", "source": "", "hunts": "", "needs": ()}
    property_ = Property(**facts, check=check, problems=strategies.problems)
    told = []
    row, _ = search(property_, Subject(made, "float32"), PROFILES["smoke"], 0, found=told.append)
    return row, told


def test_what_refutes_is_told_before_it_is_made_smaller():
    def long(subject: Subject, problem: Problem) -> None:
        assert problem.query_length < 3, f"{problem.query_length} queries\nand more"

    row, told = found_in(long)
    assert row.verdict is Verdict.REFUTED
    assert row.message == "3 queries"
    assert len(told) == 1
    assert int(told[0].removesuffix(" queries")) >= 3


def test_a_suspicion_is_not_told_as_a_refutation():
    def suspicious(subject: Subject, problem: Problem) -> None:
        raise Suspicion("odd")

    row, told = found_in(suspicious)
    assert (row.verdict, told) == (Verdict.SUSPECT, [])


def test_a_refutation_is_kept_whatever_becomes_of_who_is_told():
    def never(subject: Subject, problem: Problem) -> None:
        raise AssertionError("no")

    def lost(message: str) -> None:
        raise OSError("no space left")

    made = kernel(framework="numpy", dtypes=("float32",), contract="fused")(attention)
    facts = {"id": "toy.property", "statement": "", "source": "", "hunts": "", "needs": ()}
    property_ = Property(**facts, check=never, problems=strategies.problems)
    row, case = search(property_, Subject(made, "float32"), PROFILES["smoke"], 0, found=lost)
    assert row.verdict is Verdict.REFUTED
    assert case is not None

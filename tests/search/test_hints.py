"""Hints that a case keeps: of a small problem, those that explain the first one too."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.contract.presets import FP32
from attn_spec.judgement.measure import judge
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.causes import hints_of
from attn_spec.search.profiles import PROFILES
from attn_spec.search.property import Refutation, load_all
from attn_spec.search.search import search
from attn_spec.search.verdict import Verdict
from tests.one_head import float32_head


def refuted(*hints):
    return Refutation("", explain=lambda: hints)


def test_where_several_explain_the_smallest_problem_the_first_one_decides():
    assert hints_of(refuted("a", "b"), refuted("b", "c")) == ("b",)
    assert hints_of(refuted("a", "b"), refuted()) == ("a", "b")
    assert hints_of(refuted("a", "b"), refuted("c")) == ("a", "b")
    assert hints_of(refuted("a", "b")) == ("a", "b")
    assert hints_of(ValueError(), refuted("a")) == hints_of(None) == ()


def test_a_hint_that_stands_alone_is_kept_and_the_first_problem_is_not_asked():
    def ask():
        raise AssertionError

    assert hints_of(refuted("a"), Refutation("", explain=ask)) == ("a",)


@pytest.mark.parametrize(
    "named",
    [
        "within the bound of contract 'tf32'",
        "right with conventions={'lse_base': '2'}",
        "dq is zero everywhere, as where no gradient reaches it",
        "this query sees no key; if that answer is meant, declare a convention (now empty_row='zero')",
    ],
)
def test_what_holds_of_all_answers_is_named_only_where_it_explains_the_first_problem_too(named):
    problem = float32_head([[0.0]], [[1.0]], [[1.0]])
    (measured,) = judge(problem, FP32.at("float32"), output=np.ones((1, 1, 1, 1))).measurements
    option = "right for the same problem without causal"

    def first(*hints):
        return Refutation("", measured, lambda: hints)

    assert hints_of(refuted(named), first()) == ()
    assert hints_of(refuted(named, option), first()) == (option,)
    assert hints_of(refuted(named), first(named)) == (named,)
    assert hints_of(refuted(named)) == hints_of(refuted(named), refuted()) == (named,)


def test_the_first_problem_decides_whether_zeros_are_within_a_contract_too():
    problem = float32_head([[0.0]], [[1.0]], [[1.0]])
    (measured,) = judge(problem, FP32.at("float32"), output=np.ones((1, 1, 1, 1))).measurements
    vague, telling = (f"within the bound of contract 'tf32'{words}" for words in (", as zeros are", ""))

    assert hints_of(refuted(vague), Refutation("", measured, lambda: (telling,))) == (telling,)
    assert hints_of(refuted(telling), Refutation("", measured, lambda: (vague,))) == (vague,)


@pytest.mark.parametrize("explained", [True, False])
def test_a_failure_that_is_not_to_be_explained_has_no_case_and_asks_for_no_hint(explained):
    asked = []

    def check(subject, problem):
        raise Refutation("wrong", explain=lambda: asked.append(problem) or ("a hint",))

    made = replace(load_all()["accuracy.output_is_within_its_bound"], check=check)
    subject = Subject(resolve("numpy_naive"), "float32")
    row, case = search(made, subject, PROFILES["smoke"], seed=0, explained=explained)

    assert (row.verdict, row.message.splitlines()[0]) == (Verdict.REFUTED, "wrong")
    assert (case is not None, bool(asked)) == (explained, explained)

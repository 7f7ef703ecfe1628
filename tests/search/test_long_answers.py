"""A long answer is judged in blocks, with the verdict that the theorems have on all of it at once."""

from dataclasses import replace

import numpy as np
import pytest

from attn_spec.judgement.long.row_sample import RowSample
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search import assertions, long_answers
from attn_spec.search.cases import case_of
from attn_spec.search.drawing import long_problems
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.property import Refutation, load_all, recording

SUBJECT = Subject(resolve("torch_eager"), "float32")
PROBLEM = Recipe(
    batch=2, query_heads=4, kv_heads=2, query_length=37, key_length=50, head_dim=8, value_dim=8, causal=True
).problem()


@pytest.fixture
def short_of_memory(monkeypatch):
    """Allow so little memory that the problem is long."""
    monkeypatch.setattr(long_problems, "MEMORY", 2**20)
    assert long_problems.is_long(PROBLEM)


def test_a_problem_is_long_when_the_theorems_would_take_a_gibibyte():
    assert not long_problems.is_long(Recipe(query_length=2**10, key_length=2**11).problem())
    assert long_problems.is_long(Recipe(query_length=2**11 + 1, key_length=2**10).problem())


def test_a_right_answer_is_within_its_bound_in_blocks_too(short_of_memory):
    with recording() as seen:
        assertions.assert_within_bound(SUBJECT, PROBLEM, SUBJECT(PROBLEM))
    assert 0 < seen.ratios["error / bound"] <= 1


@pytest.mark.parametrize("name", ["output", "lse"])
def test_a_wrong_element_is_the_same_one_in_blocks(name, monkeypatch):
    wrong = {key: values.copy() for key, values in SUBJECT(PROBLEM).items()}
    wrong[name][1, 2, 30] += 1.0
    with pytest.raises(Refutation) as whole:
        assertions.assert_within_bound(SUBJECT, PROBLEM, wrong, name)
    monkeypatch.setattr(long_problems, "MEMORY", 2**20)
    with pytest.raises(Refutation, match=r"looked at all 296 rows$") as blocks:
        assertions.assert_within_bound(SUBJECT, PROBLEM, wrong, name)
    property_ = load_all()["accuracy.output_is_within_its_bound"]
    cases = [case_of(property_, SUBJECT, PROBLEM, error.value) for error in (whole, blocks)]

    assert cases[0].worst.index == cases[1].worst.index
    assert (cases[0].worst.outside, cases[0].worst.rows) == (cases[1].worst.outside, cases[1].worst.rows)
    others = {"output": "lse", "lse": "output"}
    assertions.assert_within_bound(SUBJECT, PROBLEM, wrong, others[name])


@pytest.mark.parametrize(("rows", "parts"), [(2, 1), (40, 12)])
def test_heads_of_which_a_sample_leaves_out_rows_are_judged_alone(rows, parts, monkeypatch):
    """One sample of rows would be that of all heads that are judged together."""
    problem = Recipe(query_heads=12, kv_heads=12, query_length=rows, key_length=rows, head_dim=2, value_dim=2).problem()
    dO, counts = np.ones(problem.output_shape), []
    for name in ("judge_parts", "judge_gradient_parts"):
        judge = getattr(long_answers, name)
        monkeypatch.setattr(
            long_answers, name, lambda of, *args, judge=judge, **how: counts.append(len(of)) or judge(of, *args, **how)
        )

    long_answers.assert_rows_of_long_answer(SUBJECT, problem, SUBJECT(problem), sample=RowSample(32))
    monkeypatch.setattr(long_answers, "ROWS", 32)
    long_answers.assert_gradients_of_long_answer(SUBJECT, problem, dO, SUBJECT.gradients(problem, dO))

    assert counts == [parts, parts]


def test_a_sample_says_how_many_rows_it_looked_at():
    problem = replace(PROBLEM.recipe, query_length=500).problem()
    wrong = {key: values + 1.0 for key, values in SUBJECT(problem).items()}
    sample = long_answers.RowSample(32)
    with pytest.raises(Refutation, match=r"looked at 256 of 4000 rows$"):
        long_answers.assert_rows_of_long_answer(SUBJECT, problem, wrong, sample=sample)
    found = long_answers.assert_rows_of_long_answer(SUBJECT, problem, SUBJECT(problem), sample=sample)
    assert (found.rows, found.of, found.drawn) == (256, 4000, 128)
    assert str(found).startswith("256 of 4000 rows, 128 of them at random: a defect in 1 % of them is missed with a")
    assert found.missed(0.05) < 1e-2
    assert np.isfinite(found.ratio)


def test_a_sample_has_more_rows_of_each_head_where_there_are_few_heads():
    one = long_answers.sample_of(Recipe(query_length=5000).problem())
    many = long_answers.sample_of(Recipe(batch=2, query_heads=32, kv_heads=32, query_length=200).problem())
    assert (one.rows, many.rows) == (1024, 128)

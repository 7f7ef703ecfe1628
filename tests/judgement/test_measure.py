"""Measurements on answers whose errors are known beforehand, and the conventions for rows that see no key."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_spec.contract.presets import EAGER, FP32, FUSED, UNDECLARED
from attn_spec.judgement.analysis import Analysis
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.other_contracts import presets_that_hold
from attn_spec.kernels.declarations.declaration import from_callable
from attn_spec.kernels.subject import Subject
from attn_spec.problem.conventions import Conventions, of_call
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe
from tests.one_head import float32_head

FLOAT32 = FP32.at("float32")

#: Scores 0 and 0, so o = 2 and L = log 2; the ulp of float32 at 2 is 2^-22.
TWO_KEYS = float32_head([[0.0]], [[1.0], [1.0]], [[1.0], [3.0]])
#: The second of two queries sees no key; the mean of V is 2.
BLIND = float32_head([[0.0], [0.0]], [[1.0], [1.0]], [[1.0], [3.0]], mask=np.array([[[[True, True], [False, False]]]]))
LOG2 = math.log(2)


def output(problem, *values, **conventions):
    """Return the measurement of an output given value by value."""
    got = np.array(values, dtype=np.float64).reshape(1, 1, problem.query_length, 1)
    return judge(problem, FLOAT32, output=got, conventions=Conventions(**conventions)).measurements[0]


def log_sum_exp(problem, *values, **conventions):
    got = np.array(values, dtype=np.float64).reshape(1, 1, problem.query_length)
    return judge(problem, FLOAT32, lse=got, conventions=Conventions(**conventions)).measurements[0]


def test_ulps_relative_error_and_ratio_of_one_ulp():
    m = output(TWO_KEYS, 2 + 2.0**-22)

    assert m.ulps.item() == pytest.approx(1.0, rel=1e-6)
    assert m.relative.item() == pytest.approx(2.0**-23, rel=1e-6)
    assert m.ratios.item() == pytest.approx(2.0**-22 / m.allowed.item(), rel=1e-6)
    assert m.ratio == m.ratios.item()
    assert not m.outside.any()


def test_an_error_is_relative_to_every_truth_but_zero():
    one, nothing = (float32_head([[0.0]], [[1.0]], [[value]]) for value in (1.0, 0.0))

    assert output(one, 1.0 + 2.0**-20).relative.item() == pytest.approx(2.0**-20, rel=1e-6)
    assert np.isnan(output(nothing, 2.0**-20).relative.item())


def test_an_exact_answer_has_the_error_of_the_oracle_alone():
    m = output(TWO_KEYS, 2.0)

    assert m.error.item() <= 2.0**-10 * m.allowed.item()
    assert m.ulps.item() < 2.0**-10


def test_an_error_just_inside_and_just_outside_what_is_allowed():
    allowed = output(TWO_KEYS, 2.0).allowed.item()

    assert not output(TWO_KEYS, 2 + 0.999 * allowed).outside.any()
    assert output(TWO_KEYS, 2 + 1.002 * allowed).outside.all()
    assert output(TWO_KEYS, 2 - 1.002 * allowed).outside.all()


@pytest.mark.parametrize("got", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_no_number_is_infinitely_wrong(got):
    for m in (output(TWO_KEYS, got), log_sum_exp(TWO_KEYS, got)):
        assert m.outside.all()
        assert m.ratio == np.inf
        assert m.ulps.item() == np.inf


def test_an_error_of_a_hundred_orders_of_magnitude_is_still_an_error():
    assert output(TWO_KEYS, 1e300).outside.all()


def test_the_lse_is_measured_in_the_contracts_format():
    m = log_sum_exp(TWO_KEYS, float(np.float32(LOG2)) + 2.0**-24)

    assert m.dtype == "float32"
    assert 0.5 < m.ulps.item() < 1.5
    assert judge(TWO_KEYS, replace(FLOAT32, lse="bfloat16"), lse=m.got).measurements[0].ulps.item() < 2.0**-15


def test_base_2():
    assert log_sum_exp(TWO_KEYS, 1.0, lse_base="2").ulps.item() < 2.0**-10
    assert log_sum_exp(TWO_KEYS, LOG2, lse_base="2").outside.all()


@pytest.mark.parametrize("bits", [130, 137, 185])
def test_a_logarithm_of_base_2_may_be_found_in_the_softmax_format(bits):
    def cut(x):  # to bfloat16
        significand, exponent = math.frexp(x)
        return math.ldexp(math.floor(significand * 2**8), exponent - 8)

    contract = replace(FLOAT32, softmax="bfloat16", exponent="natural", rounding="toward_zero")
    score = float(np.nextafter(np.float32((bits + 1) * 2.0**12), np.float32(0)))
    problem = float32_head([[score]], [[1.0]], [[1.0]], scale=1.0)
    lse = np.full((1, 1, 1), cut(cut(score) * cut(math.log2(math.e))))

    judgement = judge(problem, contract, lse=lse, conventions=Conventions(lse_base="2"))

    assert not judgement.refuted
    assert judgement.ratio > 0.35  # the room is that of five roundings; these are three
    assert log_sum_exp(TWO_KEYS, 1.0).outside.all()


@pytest.mark.parametrize(("convention", "value"), [("zero", 0.0), ("mean_of_v", 2.0), ("nan", np.nan)])
def test_a_row_that_sees_no_key_follows_the_convention(convention, value):
    for got in (0.0, 2.0, np.nan):
        same = got == value or (np.isnan(got) and np.isnan(value))
        assert output(BLIND, 2.0, got, empty_row=convention).outside.ravel().tolist() == [False, not same]


#: Four queries of two keys: all hidden by the mask, by a bias, each by one of them, and none.
EMPTY_BY = float32_head(
    [[0.0]] * 4,
    [[1.0], [1.0]],
    [[1.0], [3.0]],
    mask=np.array([[0, 0], [1, 1], [0, 1], [1, 1]], dtype=bool)[None, None],
    bias=np.array([[0, 0], [-np.inf, -np.inf], [0, -np.inf], [0, 0]])[None, None],
)


@pytest.mark.parametrize(("by_bias", "value"), [("zero", 0.0), ("mean_of_v", 2.0), ("nan", np.nan)])
@pytest.mark.parametrize(("by_mask", "other"), [("zero", 0.0), ("mean_of_v", 2.0), ("nan", np.nan)])
def test_a_row_that_a_bias_empties_may_have_another_output_than_one_that_a_mask_empties(by_mask, other, by_bias, value):
    agreed = {"empty_row": by_mask, "empty_row_by_bias": by_bias}
    right = output(EMPTY_BY, other, value, other, 2.0, **agreed)
    wrong = output(EMPTY_BY, 7.0, 7.0, 7.0, 7.0, **agreed)

    decided = by_mask == by_bias  # the row that both empty is a mean over the one key that the mask hides, or not
    assert not right.outside.any()
    assert wrong.outside.ravel().tolist() == [True, True, decided, True]
    assert wrong.asked.ravel().tolist() == [True, True, decided, True]


def test_a_row_that_a_bias_empties_has_the_output_of_other_empty_rows_unless_more_is_said():
    for name, value in (("zero", 0.0), ("mean_of_v", 2.0), ("nan", np.nan)):
        assert not output(EMPTY_BY, value, value, value, 2.0, empty_row=name).outside.any()
    answer = np.array([7.0, 0.0, 7.0, 2.0]).reshape(1, 1, 4, 1)
    found = judge(EMPTY_BY, FLOAT32, output=answer, conventions=of_call({"empty_row_by_bias": "zero"}))
    assert found.measurements[0].asked.ravel().tolist() == [False, True, False, True]
    assert not found.refuted


def test_rows_with_keys_are_judged_alone():
    judgement = judge(BLIND, FLOAT32, output=np.array([3.0, 3.0]).reshape(1, 1, 2, 1), lse=np.full((1, 1, 2), 9.0))
    left = judgement.of_rows_with_keys()

    assert [m.outside.ravel().tolist() for m in judgement.measurements] == [[True, True], [True, True]]
    assert [m.outside.ravel().tolist() for m in left.measurements] == [[True, False], [True, False]]
    assert [m.measured.ravel().tolist() for m in left.measurements] == [[True, False], [True, False]]


@pytest.mark.parametrize(("quantity", "rows"), [("output", (1, 1, 1, 1)), ("lse", (1, 1, 1))])
@pytest.mark.parametrize("empty_row", ["zero", "mean_of_v", "nan"])
def test_a_row_that_sees_no_key_is_not_judged_where_a_hidden_score_may_overflow(quantity, rows, empty_row):
    """-inf is added to it to hide it: NaN."""
    hidden = float32_head([[1.0]], [[2.0**16]], [[1.0]], mask=np.zeros((1, 1, 1, 1), dtype=bool))
    answer = {quantity: np.full(rows, 7.0)}

    assert not judge(
        hidden, replace(FLOAT32, softmax="float16"), conventions=Conventions(empty_row=empty_row), **answer
    ).exercised
    assert judge(hidden, FLOAT32, conventions=Conventions(empty_row=empty_row), **answer).refuted


def test_a_row_of_zeros_is_exactly_zero_but_a_mean_is_rounded():
    assert output(BLIND, 2.0, 1e-300).outside.any()
    assert output(BLIND, 2.0, -0.0).ratio < 1
    assert not output(BLIND, 2.0, 2 + 2.0**-22, empty_row="mean_of_v").outside.any()


@pytest.mark.parametrize(("convention", "right"), [("-inf", -np.inf), ("+inf", np.inf)])
def test_the_lse_of_a_row_that_sees_no_key(convention, right):
    for got in (-np.inf, np.inf, 0.0, np.nan, -1e30):
        m = log_sum_exp(BLIND, np.float32(LOG2), got, empty_lse=convention)
        assert m.outside.ravel().tolist() == [False, got != right]


def test_an_undeclared_lse_is_not_measured():
    m = log_sum_exp(BLIND, np.float32(LOG2), 12345.0, empty_lse="undeclared")

    assert m.measured.ravel().tolist() == [True, False]
    assert np.isnan(m.ratios[0, 0, 1])
    assert not m.outside.any()


def test_the_worst_element_is_that_of_the_largest_ratio():
    problem = float32_head([[0.0]] * 3, [[1.0], [1.0]], [[1.0], [3.0]])

    assert output(problem, 2.0, 2 + 2.0**-22, 2.0).worst == (0, 0, 1, 0)
    assert output(problem, 2.5, 2 + 2.0**-22, 2.0).worst == (0, 0, 0, 0)
    assert output(problem, 2.5, 2.0, np.nan).worst == (0, 0, 2, 0)


def test_of_contracts_that_say_nothing_the_first_speaks():
    """A format that overflows puts both contracts outside their domains."""
    narrow = replace(FUSED, score_accumulation="float16", alternatives=(replace(FUSED, stored_scores="float16"),))
    problem = float32_head([[300.0]], [[300.0]], [[1.0]], dtypes="float16")

    judgement = judge(problem, narrow.at("float16"), output=np.full((1, 1, 1, 1), 1.0))

    assert not judgement.exercised
    assert judgement.contract.score_accumulation == "float16"


def test_a_judgement_names_the_worse_quantity():
    got = {"output": np.full((1, 1, 1, 1), 2.0), "lse": np.full((1, 1, 1), 0.7)}
    judgement = judge(TWO_KEYS, FLOAT32, **got)

    assert judgement.refuted
    assert judgement.worst.name == "lse"
    assert judgement.ratio == judgement.worst.ratio
    assert [m.name for m in judgement.measurements] == ["output", "lse"]


def test_rows_that_may_overflow_are_not_measured():
    problem = float32_head([[2.0]], [[2.0**14]], [[1.0]], dtypes="float16")
    narrow = replace(FUSED, score_accumulation="float16").at("float16")

    judgement = judge(problem, narrow, output=np.full((1, 1, 1, 1), np.nan))

    assert not judgement.exercised
    assert not judgement.refuted
    assert judgement.ratio == 0.0


def test_no_queries_is_nothing_measured():
    problem = Problem(q=np.ones((1, 1, 0, 3)), k=np.ones((1, 1, 4, 3)), v=np.ones((1, 1, 4, 2)))
    judgement = judge(problem, FLOAT32, output=np.zeros((1, 1, 0, 2)), lse=np.zeros((1, 1, 0)))

    assert not judgement.exercised
    assert judgement.ratio == 0.0


def test_the_oracle_is_a_thousand_times_sharper_than_the_bound():
    problem = Recipe(query_length=4, key_length=20, head_dim=8, value_dim=4, dtypes="float64").problem()
    contract = FUSED.at("float64")

    truth, bound = Analysis(problem).truth_and_bound(contract)

    assert (truth["output"].radius <= 2.0**-10 * bound.allowed["output"]).all()
    assert (truth["lse"].radius <= 2.0**-10 * bound.allowed["lse"]).all()


def test_presets_that_hold_are_those_coarse_enough():
    problem = Recipe(query_length=4, key_length=20, head_dim=8, value_dim=4).problem()
    truth, bound = Analysis(problem).truth_and_bound(FLOAT32)

    assert presets_that_hold(problem, output=truth["output"].value) == ["fused", "fp32", "tf32", "eager", "split_kv"]
    assert presets_that_hold(problem, output=truth["output"].value + 4 * bound.allowed["output"]) == ["tf32"]
    assert presets_that_hold(problem, output=truth["output"].value + 1.0) == []


def test_sdpa_that_declares_nothing_is_within_the_bounds_of_its_gradients():
    """A fused backward pass subtracts rowsum(dO O) with O as stored, which the gradients of eager attention do not."""
    problem = Recipe(dtypes="float16", batch=3, query_length=15, key_length=3, head_dim=16, value_dim=16, scale=1.0)
    problem, dO = problem.problem(), np.ones((3, 1, 15, 16))
    sdpa = from_callable(lambda q, k, v, scale: torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale))
    found = Subject(sdpa, "float16").gradients(problem, dO)

    assert judge_gradients(problem, EAGER.at("float16"), dO, found).refuted
    assert not judge_gradients(problem, UNDECLARED.at("float16"), dO, found).refuted


@pytest.mark.parametrize(("base", "judged"), [("e", True), ("2", False)])
def test_a_log_sum_exp_of_base_2_overflows_where_the_natural_one_does_not(base, judged):
    """log 2 + 6e4 is a float16; over ln 2 it is not."""
    problem = Problem(**{name: np.array([[[[x]]]]) for name, x in (("q", 6e4), ("k", 1.0), ("v", 1.0))})
    found = judge(
        problem,
        replace(FP32.at("float32"), lse="float16"),
        lse=np.full((1, 1, 1), np.inf),
        conventions=Conventions(lse_base=base),
    )

    assert found.refuted is found.exercised is judged

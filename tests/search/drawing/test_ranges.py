"""Problems that a contract says too little of are drawn inside its range, and what was asked for stays."""

import pytest

from attn_spec import kernel as declare
from attn_spec.contract.contract import Contract
from attn_spec.contract.presets import EAGER, FUSED
from attn_spec.judgement.analysis import analysis_of
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing import ranges
from attn_spec.search.drawing.ranges import within_range
from attn_spec.search.drawing.regimes import Recipe

SHAPE = {"query_length": 8, "key_length": 24, "head_dim": 16, "value_dim": 8}


def subject(contract, dtype):
    kernel = declare(framework="numpy", dtypes=(dtype,), contract=contract)(lambda q, k, v: v)
    return Subject(kernel, dtype)


def said(problem, contract):
    """Return the share of the output for which a contract has a bound."""
    bound = analysis_of(problem).truth_and_bound(contract.at(problem.dtype))[1]
    return bound.domain_of("output").mean()


@pytest.mark.parametrize(
    ("contract", "recipe"),
    [
        (EAGER, {"dtypes": "float16", "regime": "huge", "size": 32.0}),
        (FUSED, {"dtypes": "float16", "feature_map": "exp", "size": 8.0}),
        (Contract(reference="zero", reference_range=8.0), {"dtypes": "float32", "size": 8.0}),
    ],
)
def test_a_problem_that_a_contract_says_little_of_is_made_smaller(contract, recipe):
    asked = Recipe(**SHAPE | recipe)

    found = within_range(subject(contract, asked.dtype), asked, (), backward=False)

    assert said(asked.problem(), contract) < 0.9
    assert said(found, contract) > 0.97
    assert found.score_shape == asked.problem().score_shape


def test_a_problem_inside_the_range_is_left_as_it_is():
    asked = Recipe(dtypes="float16", **SHAPE)

    found = within_range(subject(EAGER, "float16"), asked, (), backward=True)

    assert found.digest() == asked.problem().digest()


def test_a_shift_that_was_asked_for_stays():
    asked, contract = Recipe(dtypes="float32", shift=300.0, **SHAPE), Contract(reference="zero", reference_range=8.0)
    kernel = subject(contract, "float32")

    free, fixed = (within_range(kernel, asked, fields, backward=False) for fields in ((), ("shift",)))

    assert said(free, contract) > 0.97
    assert free.recipe.shift == 0
    assert fixed.recipe.shift == 300


def test_a_problem_that_nothing_brings_inside_is_its_own():
    asked = Recipe(dtypes="float32", **SHAPE)
    contract = Contract(reference="zero", reference_range=1e-30)

    assert within_range(subject(contract, "float32"), asked, (), backward=False).digest() == asked.problem().digest()


@pytest.mark.parametrize("backward", [False, True])
def test_sums_that_overflow_here_too_are_not_surely_inside_and_warn_of_nothing(backward):
    problem = Recipe(dtypes="float64", value_size=2.0**1020, **SHAPE).problem()

    assert not ranges._is_surely_inside(subject(FUSED, "float64"), problem, backward=backward)


@pytest.mark.parametrize(
    "bent", [{"softcap": 2.0**20}, {"softcap": 2.0**-20}, {"dropout_p": 0.5, "dropout_keep": "half@BHQK"}]
)
def test_what_a_softcap_or_dropout_multiplies_may_leave_the_range(bent):
    near = {**SHAPE, "dtypes": "float16", "regime": "normal"}
    values = ranges.NEAR * 65504 / ranges._widest(analysis_of(Recipe(**near).problem()).intermediates)
    plain, other = (Recipe(**near, value_size=0.75 * values, **more).problem() for more in ({}, bent))
    half = subject(EAGER, "float16")

    assert ranges._is_surely_inside(half, plain, backward=False)
    assert not ranges._is_surely_inside(half, other, backward=False)


@pytest.mark.parametrize("bent", [{"softcap": 50.0}, {"dropout_p": 0.5, "dropout_keep": "half@BHQK"}])
def test_a_softcap_and_dropout_need_no_judgement_to_be_inside(bent):
    problem = Recipe(**SHAPE, **bent).problem()

    assert ranges._is_surely_inside(subject(FUSED, "float32"), problem, backward=True)
    assert said(problem, FUSED) == 1

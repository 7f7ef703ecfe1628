"""The adversary: no rounding that a contract allows leads outside its bound, and some lead nearly there."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from attn_spec.reports.proof.adversary.attack import QUANTITIES, attained
from attn_spec.reports.proof.adversary.cases import FINE, STAGES, WAYS, Way, attack, stages
from attn_spec.reports.proof.adversary.presets import presets
from attn_spec.reports.proof.adversary.problems import NARROW, small_problem
from attn_spec.reports.proof.adversary.random import random_attack, random_attacks
from attn_spec.reports.proof.adversary.report import (
    LOOSE,
    TOLERANCE,
    concerns,
    faults,
    lines,
    main,
    outdated,
    strongest,
    unexplained,
)

from attn_spec.numbers import bits


def attacks_of(stage):
    return [case for case in stages() if case[0] == stage]


def dealt():
    """Deal each way to one of the stages that it may have narrow, to all stages in turn."""
    able = {}
    for stage, way, _ in stages():
        able.setdefault(way, []).append(stage)
    return {way: of[number % len(of)] for number, (way, of) in enumerate(able.items())}


#: The stage that is narrow when a way is attacked here.
DEALT = dealt()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("share", [30, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("stage", STAGES)
def test_no_choice_of_roundings_leaves_the_bound(stage, share):
    every = attacks_of(stage)
    sample = [case for case in every if DEALT[case[1]] == stage][::share]

    assert faults(strongest(sample or every[:4])) == []


def test_every_way_is_attacked_with_some_stage_narrow():
    assert set(DEALT) == {way.name for way in WAYS}


@pytest.mark.parametrize("number", [8, pytest.param(40, marks=pytest.mark.exhaustive)])
def test_no_choice_of_roundings_leaves_the_bound_of_an_arithmetic_drawn_at_random(number):
    assert faults(strongest(random_attacks(number))) == []


#: Ways in which a stage alone attains nearly all of the bound of a quantity.
ATTAINED = {
    ("stored_scores", "plain"): {"lse": 0.99, "dv": 0.99},
    ("softmax", "V = 1"): {"output": 0.9, "dk": 0.9},
    ("probabilities", "plain"): {"output": 0.75, "dv": 0.9},
    ("output", "plain"): {"output": 0.99},
    ("gradients", "plain"): {"dq": 0.99, "dk": 0.99, "dv": 0.99},
    ("lse", "plain"): {"lse": 0.99, "dq": 0.99, "dk": 0.99, "dv": 0.99},
    ("score_gradients", "large scores"): {"dq": 0.99, "dk": 0.99},
    ("partial_outputs", "ring"): {"output": 0.6},
    ("multiplicands", "roots of the scale"): {"lse": 0.99},
    ("row_sum", "sink, above the scores, first"): {"output": 0.8, "dsinks": 0.8},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("stage", "way"), ATTAINED)
def test_the_adversary_attains_bounds(stage, way):
    (case,) = [case for case in attacks_of(stage) if case[1] == way]

    found = attained(case[2])

    for quantity, least in ATTAINED[stage, way].items():
        assert found[quantity] >= least


def test_bounds_of_presets_are_attained_to_three_tenths_in_float32():
    """A row pays once for what the errors of delta, and of the LSE, cost dQ."""
    worst = strongest(case for case in presets() if case[0] in {"fused float32", "eager float32", "tf32 float32"})

    assert faults(worst) == []
    for label, of in worst.items():
        for quantity in ("output", "lse", "dq", "dk", "dv"):
            assert of[quantity][0][0] >= 0.3, (label, quantity)


def test_a_missing_rounding_is_found():
    """A contract that declares fewer roundings of its row sum than are made is exceeded."""
    way = Way(name="", problem={"n": 6})
    problem = small_problem(**way.problem)
    case = attack(way, problem, replace(FINE, row_sum="float16"), np.ones((1, 1, 1, 2)), seed=0)
    executed = attained(case, ("lse",))["lse"]

    shallow = replace(case, contract=replace(case.contract, summation_depth=1))

    assert executed <= 1
    assert attained(shallow, ("lse",))["lse"] > 1


def test_every_seed_draws_an_arithmetic():
    contracts = [case.contract for _, _, case in random_attacks(300)]
    narrow = {stage for contract in contracts for stage in STAGES if getattr(contract, stage) != "float64"}

    assert narrow >= {"output", "gradients", "softmax"}


def test_sinks_are_drawn_too():
    with_sinks = [case.order.sink for _, _, case in random_attacks(60) if case.problem.sinks is not None]

    assert set(with_sinks) == {"with_keys", "first", "last"}


def test_layers_are_drawn_too():
    layers = [case for _, _, case in random_attacks(60) if case.problem.projects]

    assert 5 < len(layers) < 25
    assert {case.problem.query_heads > 1 for case in layers} == {True, False}
    assert "float16" in {case.contract.operands for case in layers}


def test_a_constant_folded_into_the_exponent_is_one_number():
    """A layer with one visible key, whose log-sum-exp differed by the constants if there were several."""
    case = random_attack(642)

    assert case.problem.projects
    assert case.order.exponent_folded
    assert case.contract.exponent == "base2_fused"
    assert faults(strongest([("", "", case)])) == []


def test_a_stage_concerns_what_it_rounds():
    assert concerns("stored_scores", "doutput_projection_bias")
    assert not concerns("softmax", "doutput_projection_bias")
    assert not concerns("output", "dkey_projection")
    assert not concerns("output_accumulation", "dvalue_projection")
    assert concerns("output_accumulation", "doutput_projection")


def test_problems_are_made_of_narrow_numbers():
    for way in WAYS:
        problem = way.made_by(**way.problem)
        if problem.projects and way.problem.get("form"):
            continue  # its numbers are to be rounded
        assert all(bits.is_representable(x, NARROW) for x in (problem.q, problem.k, problem.v))


def test_reasons_are_about_stages_and_quantities_that_exist():
    labels = {*STAGES, *(label for label, _, _ in presets())}
    assert all(label in labels and quantity in QUANTITIES for label, quantity in LOOSE)
    assert all(concerns(*key) for key in LOOSE)


def test_the_report_prints_a_table_and_its_totals(capsys):
    status = main(["--stage", "lse", "--way", "one key", "--most", "1"])

    shown = capsys.readouterr().out
    assert status == 0
    assert "lse                    lse     1.000  one key" in shown
    assert "bounds attacked: 0 exceeded" in shown


def test_the_report_refuses_a_way_that_does_not_exist(capsys):
    with pytest.raises(SystemExit):
        main(["--way", "sideways"])

    assert "no way of computing has 'sideways' in its name; leave --way out to see them all" in capsys.readouterr().err


def test_an_excess_and_an_unexplained_looseness_are_named():
    found = {"lse": {"lse": [(1.5, "plain"), (0.4, "ring")], "dv": [(0.1, "plain")]}}

    assert faults(found) == ["lse, plain: lse attains 1.5 of its bound"]
    assert unexplained(found) == ["lse: dv attains 0.1 at most"]
    assert outdated({"partial_outputs": {"lse": [(0.5, "ring")], "dv": [(0.1, "ring")]}}) == [
        "partial_outputs: lse attains 0.5, so its reason for less is outdated"
    ]
    assert list(islice(lines(found), 1)) == ["lse                    lse     1.500  plain"]
    assert TOLERANCE < 1e-3


def without_sinks(attack):
    return replace(attack, problem=attack.problem.replace(sinks=None))


def test_an_exact_root_of_the_scale_leaves_operands_their_digits():
    """A layer whose operands of bfloat16 are multiplied by 1: they enter a product of tf32 without a rounding."""
    found = attained(without_sinks(random_attack(7001429)), ("lse",))
    assert 0.5 < found["lse"] < 1


def test_the_difference_of_two_stored_products_is_rounded_after_them():
    """P dP - P D in bfloat16: dK attained 1.0001 of a bound that had the roundings of the products, but not on them."""
    assert 0.99 < attained(without_sinks(random_attack(7001785)), ("dk",))["dk"] <= 1
